"""What the client says when something goes wrong: the numbers are those that the user gave, with their units."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import Door, Peer, grant
from trims_client import connect
from trims_client.weights import Weights

from trims.core.errors import CallerError, CapacityError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("place", ["cpu", ("gpu", "cpu")])
def test_a_deadline_that_passes_is_said_as_the_user_gave_it(
    place: Any, door: Door, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims_client.connection.GRACE_S", 0.1)

    def hang(peer: Peer) -> None:
        request = peer.greeted()
        if request["place"] == "gpu":
            peer.say({"id": request["id"], "error": {"code": "capacity", "message": "full"}})
        peer.answer_nothing()

    door.serves(hang)
    with connect(folder) as session, pytest.raises(DeadlineError) as caught:
        session.open("m", place=place, deadline_s=0.25)
    wanted = f"the daemon at {door.path} did not answer within the deadline of 0.25 s, nor in the 0.1 s after it"
    assert str(caught.value) == wanted


@pytest.mark.parametrize("deadline_s", [-1, float("nan"), float("inf"), 2e6])
def test_a_deadline_that_is_none_is_refused_before_the_daemon_sees_it(
    deadline_s: float, door: Door, folder: Path
) -> None:
    door.serves(lambda peer: peer.listen_to_the_end([]))
    with connect(folder) as session:
        with pytest.raises(CallerError, match=r"a number of seconds from 0 to 1,000,000"):
            session.open("m", deadline_s=deadline_s)
        assert not session._channel.broken  # type: ignore[union-attr]


def test_a_second_try_has_what_is_left_of_the_deadline(
    door: Door, folder: Path, segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, now, asked = segment(), [100.0], []

    def die(peer: Peer) -> None:
        asked.append(peer.greeted()["deadline_s"])
        now[0] += 4.0

    def serve(peer: Peer) -> None:
        request = peer.greeted()
        asked.append(request["deadline_s"])
        peer.say(grant(request, fd), fd)
        peer.listen_to_the_end([])

    door.serves(die, serve)
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr("trims_client.connection.time", clock)
    with connect(folder) as session, session.open("m", deadline_s=6.0):
        assert asked == [6.0, 2.0]


def test_the_size_of_weights_is_said_with_a_unit(segment: Callable[..., int], folder: Path) -> None:
    path = folder / "image"
    path.write_bytes(os.pread(segment(), 1 << 20, 0))
    with Weights.map_file(path) as weights:
        assert repr(weights) == f"<Weights {str(path)!r} at disk: 1 tensors, {weights.nbytes / 1024:.1f} KiB>"


def test_a_refusal_of_one_place_still_lets_the_next_one_serve(
    door: Door, folder: Path, segment: Callable[..., int]
) -> None:
    fd = segment()

    def serve(peer: Peer) -> None:
        for hear, code in ((peer.greeted, "capacity"), (peer.hear, "")):
            request = hear()
            refusal = {"id": request["id"], "error": {"code": code, "message": "1.0 GiB are needed"}}
            peer.say(refusal if code else grant(request, fd), *([] if code else [fd]))
        peer.listen_to_the_end([])

    door.serves(serve)
    with connect(folder) as session, session.open("m", place=("gpu", "cpu")) as weights:
        assert weights.fell_back == "gpu: 1.0 GiB are needed"
    assert CapacityError.code == "capacity"
