"""Pushes that were begun and not ended, as they are kept over restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.sources.buckets.unfinished import UnfinishedPushes

if TYPE_CHECKING:
    from pathlib import Path


def test_a_push_that_was_killed_is_known_to_the_next_daemon(tmp_path: Path) -> None:
    UnfinishedPushes(tmp_path / "pushes").begin("s3://models/a b")
    left = UnfinishedPushes(tmp_path / "pushes")
    assert left.left() == ["s3://models/a b"]
    left.end("s3://models/a b", whole=True)
    assert left.left() == UnfinishedPushes(tmp_path / "pushes").left() == []


def test_a_push_that_runs_is_not_given_up_and_one_that_failed_is(tmp_path: Path) -> None:
    pushes = UnfinishedPushes(tmp_path / "pushes")
    pushes.begin("s3://models/a")
    assert pushes.left() == []
    pushes.end("s3://models/a", whole=False)
    assert pushes.left() == ["s3://models/a"]


def test_a_half_written_note_is_of_a_push_that_sent_nothing(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"addr')
    assert UnfinishedPushes(tmp_path).left() == []
