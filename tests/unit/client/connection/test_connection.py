"""Connection of a session: deadlines are kept and sent as they were given, and a new connection is made in turn."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from raw_door import Door, Peer, grant
from trims_client import connect
from trims_client.connection import connection
from trims_client.connection.channel import Channel
from trims_client.connection.connection import Connection, Deadline
from trims_client.mapping.mappings import MappedImages

from trims.core.errors import CallerError, CapacityError, ClosedError, DaemonAwayError, DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("place", ["cpu", ("gpu", "cpu")])
def test_a_deadline_that_passes_is_said_as_the_user_gave_it(
    place: Any, door: Door, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims_client.connection.connection.GRACE_S", 0.1)

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
    monkeypatch.setattr("trims_client.connection.connection.time", clock)
    with connect(folder) as session, session.open("m", deadline_s=6.0):
        assert asked == [6.0, 2.0]


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


@pytest.mark.parametrize("given", [0, 0.0, 1e6])
def test_a_deadline_that_may_be_given_leaves_no_more_than_that(given: float) -> None:
    deadline = Deadline(given)
    assert deadline.left_s is not None
    assert 0 <= deadline.left_s <= given
    assert deadline.timeout_s is not None
    assert deadline.timeout_s <= given + connection.GRACE_S
    assert (Deadline().left_s, Deadline().timeout_s) == (None, None)


def test_a_thread_that_connects_is_waited_for_and_its_connection_shared(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_channels: list[Channel] = []  # counted here: the door counts a connection only when it accepts it
    monkeypatch.setattr(
        connection, "Channel", lambda *given: made_channels.append(Channel(*given)) or made_channels[-1]
    )
    door.serves(lambda peer: None, lambda peer: peer.listen_to_the_end([]))
    made = Connection(door.path, "test", MappedImages())
    made.begin()
    assert made.channel is not None
    made.channel.read_to_end()
    together, found = threading.Barrier(4), []

    def ask() -> None:
        together.wait()
        found.append(made.live_channel())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    made.close()
    assert len(made_channels) == 2
    assert found == [made_channels[1]] * 4


def test_a_thread_that_waits_for_another_one_to_connect_keeps_its_deadline(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GRACE_S", 0.01)
    door.serves(lambda peer: peer.listen_to_the_end([]))
    made = Connection(door.path, "test", MappedImages())
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with made._connecting:
            holds.set()
            may_end.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    assert holds.wait(60)
    with pytest.raises(
        DeadlineError, match=rf"{door.path} did not answer within the deadline of 0\.02 s, nor in the 0"
    ):
        made.live_channel(Deadline(0.02))
    may_end.set()
    holding.join(60)
    assert made.live_channel() is made.channel
    made.close()


def test_a_closed_connection_is_not_opened_again(door: Door) -> None:
    door.serves(lambda peer: peer.listen_to_the_end([]))
    made = Connection(door.path, "test", MappedImages())
    made.begin()
    made.close()
    made.close()
    with pytest.raises(ClosedError, match="this session is closed; connect again"):
        made.live_channel()
    made.flush()
    made.settle()
    door.end()
    assert door.served == 1


def test_a_daemon_that_is_away_leaves_the_next_thread_free_to_try(folder: Path) -> None:
    made = Connection(str(folder / "attach.sock"), "test", MappedImages())
    for _ in range(2):
        with pytest.raises(DaemonAwayError, match="no daemon answers"):
            made.live_channel()
        assert not made._connecting._is_owned()  # type: ignore[attr-defined]
