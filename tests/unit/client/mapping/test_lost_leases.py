"""Unasked messages of the daemon, places in order of preference, and workspace: the client's half."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from raw_door import WAIT_S, Door, Peer, grant
from trims_client import connect
from trims_client.mapping.mappings import MappedImages

from trims.core.errors import (
    CallerError,
    CapacityError,
    LostPeerError,
    ModelNotFoundError,
    NotSupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client.connection.channel import Channel

    from trims.wire.frames import Message


def lost(lease: int) -> Message:
    return {"event": "lost", "lease": lease, "message": "the keeper has ended"}


# -- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [{"event": "news", "lease": 3}, {"event": ["lost"]}, {"event": "lost", "lease": "3"}])
def test_events_a_client_does_not_know_are_passed_over(
    event: Message, door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment()

    def chatty(peer: Peer) -> None:
        request = peer.greeted()
        peer.say(event)
        peer.say(grant(request, fd), fd)
        peer.listen_to_the_end([])

    door.serves(chatty)
    with connect(folder) as session, session.open("m") as weights:
        session._flush()
        assert weights.lost is None


def test_a_loss_is_told_to_the_weights_the_log_and_on_lost(
    door: Door, folder: Path, segment: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    fds, heard, told = [segment(1), segment(2)], [], []

    def lose(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fds[0], lease=3), fds[0])
        peer.say(grant(peer.hear(), fds[0], lease=4), fds[0])
        peer.say(lost(3))
        peer.say(lost(4))
        peer.say(grant(peer.hear(), fds[1], lease=5), fds[1])
        peer.listen_to_the_end(heard)

    door.serves(lose)
    with connect(folder, on_lost=told.append) as session:
        first, again = session.open("m"), session.open("same")
        assert first.lost is None
        with session.open("m") as after:
            session._flush()
            assert first.lost == again.lost == "the keeper has ended"
            assert after.lost is None
            assert (int(first["w"][0]), int(after["w"][0])) == (1, 2), "what is mapped stays"
        first.close()
        again.close()
        assert first.lost is None
    door.end()
    assert [tuple(loss) for loss in told] == [
        ("the keeper has ended", "m", "k", "cpu"),
        ("the keeper has ended", "same", "k", "cpu"),
    ]
    assert [message["lease"] for message in heard] == [5], "a lease that is over is not closed"
    assert caplog.text.count("is lost: the keeper has ended") == 2


def test_a_process_that_asks_for_nothing_hears_of_a_loss(door: Door, folder: Path, segment: Callable[..., int]) -> None:
    fd, told = segment(), threading.Event()

    def lose(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, lease=3), fd)
        peer.say(lost(3))
        peer.listen_to_the_end([])

    door.serves(lose)
    with connect(folder, on_lost=lambda *what: told.set()) as session, session.open("m") as weights:
        assert told.wait(WAIT_S)
        assert weights.lost


def test_a_loss_that_overtakes_the_mapping_of_its_grant_is_not_forgotten(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd, told = segment(), []

    def lose_at_once(peer: Peer) -> None:
        request = peer.greeted()
        peer.say(lost(3))
        peer.say(grant(request, fd, lease=3), fd)
        peer.listen_to_the_end([])

    door.serves(lose_at_once)
    with connect(folder, on_lost=told.append) as session:
        borrow = session._borrow

        def hear_first(channel: Channel, *rest: Any) -> Any:
            session._flush()
            return borrow(channel, *rest)

        session._borrow = hear_first  # type: ignore[method-assign]
        with session.open("m") as weights:
            assert weights.lost == "the keeper has ended"
            session._flush()
    assert [loss.name for loss in told] == ["m"]


def test_what_on_lost_raises_stays_there(
    door: Door, folder: Path, segment: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    fd = segment()

    def lose(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, lease=3), fd)
        peer.say(lost(3))
        peer.say({"id": peer.hear()["id"], "error": {"code": "model_not_found", "message": "no"}})
        peer.listen_to_the_end([])

    def fail(*what: str) -> None:
        raise ValueError("mine")

    door.serves(lose)
    with connect(folder, on_lost=fail) as session, session.open("m"):
        with pytest.raises(ModelNotFoundError):
            session.open("n")
        session._flush()
    wait_until(lambda: "on_lost failed for m" in caplog.text, "not said")  # perhaps by the watcher, which was first


def test_what_is_lost_is_not_taken_up_with_the_next_daemon(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd, came_back, asked = segment(), threading.Event(), []

    def lose_and_die(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, lease=3), fd)
        peer.say(lost(3))

    def next_life(peer: Peer) -> None:
        asked.append(peer.greeted()["op"])
        peer.say({"id": 1, "error": {"code": "model_not_found", "message": "no"}})
        came_back.set()
        peer.listen_to_the_end([])

    door.serves(lose_and_die, next_life)
    with connect(folder) as session, session.open("m") as weights:
        channel = session._channel
        assert channel is not None
        channel.read_to_end()
        with pytest.raises((ModelNotFoundError, LostPeerError)):
            session.open("n")
        assert came_back.wait(WAIT_S)
        assert weights.lost
    assert asked == ["open"], "nothing was resumed"


def test_losses_of_unknown_leases_are_remembered_within_bounds(
    door: Door, channel: Callable[[], Channel], segment: Callable[..., int]
) -> None:
    door.serves(lambda peer: peer.listen_to_the_end([]))
    mappings, made = MappedImages(), channel()
    for lease in range(1000):
        mappings.lose(made, lease, "gone")
    assert len(mappings._lost_early) == 64
    made.owed.append(2000)
    mappings.lose(made, 2000, "gone")
    assert (made, 2000) not in mappings._lost_early
    fd = segment()
    borrow = mappings.borrow(made, grant({"id": 1}, fd, lease=999), os.dup(fd), "m")
    assert borrow.lost == "gone"
    borrow.close()
    assert borrow.lost is None
    assert mappings.held() == []
    made.close()


# -- places in order of preference -------------------------------------------------------------------------------------


def refusing(asked: list[Message], fd: int, *codes: str) -> Callable[[Peer], None]:
    """Refuse so often, with these errors, then grant."""

    def serve(peer: Peer) -> None:
        for at, code in enumerate((*codes, "")):
            asked.append(peer.hear() if at else peer.greeted())
            if code:
                peer.say({"id": asked[-1]["id"], "error": {"code": code, "message": f"{code} it is"}})
            else:
                peer.say(grant(asked[-1], fd), fd)
        peer.listen_to_the_end([])

    return serve


@pytest.mark.parametrize("code", ["not_supported", "capacity", "too_large", "device_lost", "in_use"])
def test_the_next_place_is_taken_where_the_first_cannot_serve_and_it_is_said(
    code: str, door: Door, folder: Path, segment: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Message] = []
    door.serves(refusing(asked, segment(), code))
    with connect(folder) as session, session.open("m", place=("gpu", "cpu")) as weights:
        assert weights.fell_back == f"gpu: {code} it is"
    assert [(message["place"], message.get("instead_of")) for message in asked] == [("gpu", None), ("cpu", "gpu")]
    assert f"m is not opened at gpu but at the next place: {code} it is" in caplog.text


def test_every_place_that_was_refused_is_named(door: Door, folder: Path, segment: Callable[..., int]) -> None:
    asked: list[Message] = []
    door.serves(refusing(asked, segment(), "capacity", "not_supported"))
    with connect(folder) as session, session.open("m", place=["gpu:0", "gpu:1", "cpu"]) as weights:
        assert weights.fell_back == "gpu:0: capacity it is; gpu:1: not_supported it is"
    assert [message.get("instead_of") for message in asked] == [None, "gpu:0", "gpu:1"]


def test_what_is_served_at_once_has_not_fallen_back(door: Door, folder: Path, segment: Callable[..., int]) -> None:
    asked: list[Message] = []
    door.serves(refusing(asked, segment()))
    with connect(folder) as session, session.open_file("/m", place=("gpu", "cpu")) as weights:
        assert weights.fell_back is None
    assert "instead_of" not in asked[0]


@pytest.mark.parametrize(
    ("place", "codes", "error"),
    [
        ("gpu", ["capacity"], CapacityError),
        (("gpu",), ["not_supported"], NotSupportedError),
        (("gpu", "cpu"), ["device_lost", "capacity"], CapacityError),
        (("gpu", "cpu"), ["model_not_found"], ModelNotFoundError),
    ],
)
def test_the_last_place_and_every_other_error_are_final(
    place: Any, codes: list[str], error: type[Exception], door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    asked: list[Message] = []
    door.serves(refusing(asked, segment(), *codes, "deadline"))
    with connect(folder) as session:
        with pytest.raises(error):
            session.open("m", place=place)
        assert len(asked) == len(codes)
        with pytest.raises(CallerError, match="empty list of places"):
            session.open("m", place=())
        session.prefetch  # noqa: B018 - still connected
        with pytest.raises(Exception, match="deadline it is"):
            session.open("m")
        session.open("m").close()


def test_a_deadline_holds_for_all_places_together(
    door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [100.0], []

    def slow(peer: Peer) -> None:
        for hear in (peer.greeted, peer.hear, peer.hear):
            request = hear()
            asked.append(request["deadline_s"])
            now[0] += 4.0
            peer.say({"id": request["id"], "error": {"code": "capacity", "message": "full"}})
        peer.listen_to_the_end([])

    door.serves(slow)
    with connect(folder) as session:
        clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
        monkeypatch.setattr("trims_client.connection.connection.time", clock)
        with pytest.raises(CapacityError):
            session.open("m", place=("gpu:0", "gpu:1", "cpu"), deadline_s=6.0)
    assert asked == [6.0, 2.0, 0.0]


def test_a_device_this_process_cannot_reach_falls_back_too(
    door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, heard = segment(), []

    def serve(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, lease=8, place="gpu:0", device="GPU-1"), fd)
        peer.say({"id": peer.hear()["id"], "error": {"code": "device_lost", "message": "it is gone"}})
        heard.append(peer.hear())
        peer.say({"id": peer.hear()["id"], "error": {"code": "device_lost", "message": "it is not back"}})
        peer.say(grant(peer.hear(), fd, lease=9), fd)
        peer.listen_to_the_end([])

    door.serves(serve)
    with connect(folder) as session, session.open("m", place=("gpu", "cpu")) as weights:
        assert weights.fell_back == "gpu: it is not back", "the place is asked once more, then the next one"
    assert heard == [{"op": "close", "lease": 8}], "the first place's lease is given back"


# -- workspace ----------------------------------------------------------------------------------------------------


def test_workspace_is_reported_for_a_lease_that_is_held(
    door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, heard = segment(), []

    def serve(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd, lease=8), fd)
        heard.append(peer.hear())
        peer.say({"id": heard[-1]["id"], "workspace_bytes": 7})
        peer.say(lost(8))
        peer.listen_to_the_end([])

    door.serves(serve)
    with connect(folder) as session, session.open("m") as weights:
        with pytest.raises(NotSupportedError, match="room is kept free on devices only"):
            weights.report_workspace(7)
        borrow: Any = weights._attachment
        session._report_workspace(borrow, 7)
        wait = threading.Event()
        while not weights.lost:
            session._flush()
            session._channel.read_arrived()  # type: ignore[union-attr]
            assert not wait.wait(0.001)
        with pytest.raises(LostPeerError, match="no lease any more: the keeper has ended"):
            session._report_workspace(borrow, 7)
    assert [(message["op"], message["lease"], message["nbytes"]) for message in heard] == [("workspace", 8, 7)]


@pytest.mark.parametrize("nbytes", [-1, 1 << 53, 7.0, True, None])
def test_what_is_no_number_of_bytes_never_reaches_the_daemon(
    nbytes: Any, door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment()

    def serve(peer: Peer) -> None:
        peer.say(grant(peer.greeted(), fd), fd)
        heard: list[Message] = []
        peer.listen_to_the_end(heard)
        assert {message["op"] for message in heard} == {"close"}

    door.serves(serve)
    with connect(folder) as session, session.open("m") as weights, pytest.raises(CallerError, match="number of bytes"):
        weights.report_workspace(nbytes)
