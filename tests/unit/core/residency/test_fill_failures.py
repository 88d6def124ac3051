"""Failures behind readers: the pause grows, and what was made after all, or is something else now, is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import ArtifactError, CapacityError, ConversionError, LostPeerError
from trims.core.residency import fill_failures
from trims.core.residency.fill_failures import FIRST_PAUSE_S, LONGEST_PAUSE_S, RETRY_EARNED_S, Failures

if TYPE_CHECKING:
    import pytest

BROKEN = ArtifactError("torn")


def test_the_pause_after_a_failure_doubles_up_to_an_hour() -> None:
    books, pauses = Failures(), []
    for _ in range(30):
        noted = books.note("a", BROKEN, 10.0)
        assert noted is not None
        pauses.append(noted.not_before_s - 10.0)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert noted.times == 30


def test_an_image_is_held_back_until_its_pause_is_over_and_no_other_is() -> None:
    books = Failures()
    books.note("a", BROKEN, 1.0)
    assert books.hold_back("a", FIRST_PAUSE_S)
    assert not books.hold_back("a", 1.0 + FIRST_PAUSE_S)
    assert not books.hold_back("b", 1.0)


def test_the_last_error_is_told() -> None:
    books = Failures()
    books.note("a", BROKEN, 1.0)
    books.note("a", ConversionError("too slow"), 2.0)
    found = books.of("a")
    assert found is not None
    assert str(found.error) == "too slow"


def test_what_may_pass_by_itself_is_remembered_and_tried_again_soon() -> None:
    books = Failures()
    for _ in range(3):
        noted = books.note("a", CapacityError("memory is full"), 1.0)
        assert noted is not None
        assert (noted.times, noted.not_before_s) == (0, 1.0 + RETRY_EARNED_S)
    assert books.of("a") == noted


def test_the_pause_of_a_broken_artifact_goes_on_growing_after_a_lack_of_memory() -> None:
    books = Failures()
    books.note("a", BROKEN, 1.0)
    books.note("a", CapacityError("memory is full"), 1.0)
    noted = books.note("a", BROKEN, 1.0)
    assert noted is not None
    assert (noted.times, noted.not_before_s) == (2, 1.0 + 2 * FIRST_PAUSE_S)


def test_an_attempt_that_was_stopped_says_nothing_of_the_image() -> None:
    books = Failures()
    assert books.note("a", LostPeerError("the daemon is shutting down"), 1.0) is None
    assert books.of("a") is None


def test_only_another_kind_of_reason_is_news() -> None:
    books, news = Failures(), []
    for error in (CapacityError("1 MB free"), CapacityError("2 MB free"), BROKEN, BROKEN, CapacityError("1 MB free")):
        noted = books.note("a", error, 1.0)
        assert noted is not None
        news.append(noted.is_news)
    assert news == [True, False, True, False, True]


def test_what_was_made_after_all_begins_again_with_the_shortest_pause() -> None:
    books = Failures()
    books.note("a", BROKEN, 1.0)
    books.note("a", BROKEN, 1.0)
    books.forget("a")
    books.forget("a")
    assert books.of("a") is None
    noted = books.note("a", BROKEN, 1.0)
    assert noted is not None
    assert (noted.times, noted.not_before_s) == (1, 1.0 + FIRST_PAUSE_S)


def test_the_oldest_failures_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill_failures, "_REMEMBERED", 2)
    books = Failures()
    for key in ("a", "b", "a", "c"):
        books.note(key, BROKEN, 1.0)
    assert [key for key in "abc" if books.of(key)] == ["a", "c"]
