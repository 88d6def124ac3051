"""Artifacts that a function makes: made once, whole, and by one builder at a time."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest
from format_plugins import build

from trims.core.errors import ArtifactError, ConversionError, NotSupportedError
from trims.formats.base import Limits
from trims.formats.conversion.build import RECORD, build_artifact

if TYPE_CHECKING:
    from pathlib import Path


def test_a_builder_makes_an_artifact_once(builders: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "deep" / "made", tmp_path / "log"
    for _ in range(2):
        assert build("counted", target, builders, log=str(log)) == target / "model.bin"
    assert log.read_text() == "built\n"
    assert (target / "model.bin").read_text() == "x"


def test_the_main_file_is_the_one_the_builder_names(builders: Path, tmp_path: Path) -> None:
    assert build("several", tmp_path / "made", builders) == tmp_path / "made" / "sub" / "weights"
    assert build("one", tmp_path / "other", builders, text="y").read_text() == "y"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("unsaid", ArtifactError, "left 2 files and did not say which is the main one"),
        ("nothing", ArtifactError, "left 0 files"),
        ("wrong_name", ArtifactError, r"returned 'other\.bin', but left \['model\.bin'\]"),
        ("outside", ArtifactError, "which leaves its folder"),
        ("no_name", ArtifactError, "must return a file name or None"),
        ("fails", ConversionError, "builders_of_test:fails: ValueError: the weights are sold out"),
        ("dies", ConversionError, "exited with status 4"),
        ("missing", NotSupportedError, "has no attribute 'missing'"),
    ],
)
def test_a_builder_that_fails_leaves_nothing_behind(
    builders: Path, tmp_path: Path, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        build(name, tmp_path / "out" / "made", builders)
    assert os.listdir(tmp_path / "out") == [".made.lock"]


def test_what_a_killed_builder_left_is_swept_by_the_next(builders: Path, tmp_path: Path) -> None:
    left = tmp_path / "out" / ".made.building-abc"
    left.mkdir(parents=True)
    (left / "half").write_text("h")
    build("one", tmp_path / "out" / "made", builders)
    assert sorted(os.listdir(tmp_path / "out")) == [".made.lock", "made"]


def test_eight_builders_at_once_build_once(builders: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "made", tmp_path / "log"
    start = threading.Barrier(8)
    found: list[Path] = []

    def run() -> None:
        start.wait()
        found.append(build("counted", target, builders, log=str(log)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [target / "model.bin"] * 8
    assert log.read_text() == "built\n"


def test_a_folder_that_no_builder_made_is_refused(builders: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(ArtifactError, match="was not made by a builder"):
        build("one", tmp_path / "made", builders)


def test_a_builder_that_waits_too_long_for_another_says_so(builders: Path, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConversionError, match="another builder is still at it after 0 s"):
            build_artifact("builders_of_test:one", {}, tmp_path / "made", python=None, limits=Limits(time_s=0))


def test_a_folder_keeps_what_made_it(builders: Path, tmp_path: Path) -> None:
    build("one", tmp_path / "made", builders, text="y")
    record = json.loads((tmp_path / "made" / RECORD).read_text())
    assert record == {"main": "model.bin", "call": "builders_of_test:one", "args": {"text": "y"}}


@pytest.mark.parametrize("record", [b"", b"[]", b"{}", b"\xff"])
def test_a_folder_with_a_damaged_record_is_refused_with_the_remedy(
    builders: Path, tmp_path: Path, record: bytes
) -> None:
    build("one", tmp_path / "made", builders)
    (tmp_path / "made" / RECORD).write_bytes(record)
    with pytest.raises(ArtifactError, match=rf"{tmp_path}/made was not made by a builder .* remove it"):
        build("one", tmp_path / "made", builders)
