"""The watch over a keeper: its end is reported once, another one is reported once, and `end` stops both."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keepers import UUID, Served
from looking import wait_until

from trims.core.errors import DaemonAwayError, DeviceLostError, NotSupportedError
from trims.keeper import watch
from trims.keeper.watch import KeeperWatch, _pause_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Told:
    """Calls of a watch's callbacks, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.heard = threading.Condition()

    def lost(self) -> None:
        self._add("lost")

    def back(self) -> None:
        self._add("back")

    def _add(self, event: str) -> None:
        with self.heard:
            self.events.append(event)
            self.heard.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self.heard:
            assert self.heard.wait_for(lambda: len(self.events) >= count, 60), self.events
            return list(self.events)


@pytest.fixture
def start(serve: Callable[[], Served], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KeeperWatch]]:
    """Watch keepers that this finds; no pause between tries."""
    monkeypatch.setattr(watch, "_TRY_AGAIN_S", 0.0)
    made: list[KeeperWatch] = []

    def begin(find: Callable[[], Path], told: Told | None = None) -> KeeperWatch:
        made.append(KeeperWatch("gpu:0", find))
        if told is not None:
            made[-1].start(told.lost, told.back)
        return made[-1]

    yield begin
    for each in made:
        each.end()
        each.end()


def test_the_keepers_state_is_known_from_the_start(served: Served, start: Callable[..., KeeperWatch]) -> None:
    watched = start(lambda: served.path)
    assert watched.state.device == UUID
    with watched.connect() as connection:
        assert connection.hello() == watched.state


def test_a_keeper_that_cannot_be_found_at_the_start_is_the_callers_error(folder: Path) -> None:
    def fails() -> Path:
        raise NotSupportedError("no driver")

    with pytest.raises(NotSupportedError, match="no driver"):
        KeeperWatch("gpu:0", fails)
    with pytest.raises(DaemonAwayError, match="no keeper serves"):
        KeeperWatch("gpu:0", lambda: folder / "k.sock")


def test_an_end_and_the_next_keeper_are_told_once_each(
    serve: Callable[[], Served], start: Callable[..., KeeperWatch]
) -> None:
    keepers, told = [serve()], Told()

    def find() -> Path:
        if keepers[-1].freed is not None:
            keepers.append(serve())
        return keepers[-1].path

    watched = start(find, told)
    keepers[0].end()
    assert told.wait_for(2) == ["lost", "back"]
    assert len(keepers) == 2
    with watched.connect() as connection:
        assert connection.hello().device == UUID


def test_while_no_keeper_starts_the_reason_is_told_and_the_loss_only_once(
    serve: Callable[[], Served], start: Callable[..., KeeperWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, told, tries = serve(), Told(), list[int]()
    ended, may_start = threading.Event(), threading.Event()

    def find() -> Path:
        if not ended.is_set():
            return keeper.path
        tries.append(1)
        if may_start.is_set():
            return serve().path
        raise NotSupportedError("the device is away")

    watched = start(find, told)
    ended.set()
    keeper.end()
    assert told.wait_for(1) == ["lost"]
    assert len(tries) >= watch._QUICK_TRIES
    with pytest.raises(
        DeviceLostError, match="keeper of gpu:0 has ended, and no other keeper starts: the device is away"
    ):
        watched.connect()
    may_start.set()
    assert told.wait_for(2) == ["lost", "back"]


def test_after_its_end_a_watch_tells_nothing_of_its_keeper(served: Served, start: Callable[..., KeeperWatch]) -> None:
    told = Told()
    watched = start(lambda: served.path, told)
    watched.end()
    served.end()
    assert told.events == []
    assert not [thread for thread in threading.enumerate() if thread.name == "trims-gpu:0"]


def test_a_keeper_whose_socket_was_removed_is_asked_in_vain_and_not_killed(
    served: Served,
    start: Callable[..., KeeperWatch],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(watch, "_ASK_EVERY_S", 0.001)
    monkeypatch.setattr("trims.keeper.client.KeeperConnection.kill", lambda self: pytest.fail("it was killed"))
    told = Told()
    monkeypatch.setattr(watch, "_MISSES", 1)
    start(lambda: served.path, told)
    served.path.rename(served.path.with_suffix(".away"))
    wait_until(lambda: "cannot be reached; its readers read on" in caplog.text, "the keeper was not asked")
    assert told.events == []


@given(st.integers(-10, 2000))
def test_pauses_grow_and_have_a_bound(times: int) -> None:
    assert watch._TRY_AGAIN_S <= _pause_s(times) <= _pause_s(times + 1) <= watch._LONGEST_PAUSE_S
    assert _pause_s(0) == watch._TRY_AGAIN_S
    assert _pause_s(100) == watch._LONGEST_PAUSE_S
