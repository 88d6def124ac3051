"""Parts of an answer between a worker and its supervisor."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.worker.parts import Parts

from trims.core.errors import PredictorError
from trims.process import messages

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = messages.pair()
    with ours, theirs:
        yield ours, theirs


#: Numbers of threads that the supervisor has asked for.
shared: list[int] = []


def parts(sock: socket.socket, *, wanted: bool = True) -> Parts:
    return Parts(sock, "7", os.getpid(), shared.append, wanted=wanted)


def test_a_part_is_sent_with_the_number_of_its_request(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert parts(ours)({"x": np.array([1, 2], np.int64)})
    received = messages.receive(theirs)
    assert received is not None
    message: Any = received[0]
    assert (message["op"], message["request"]) == ("part", "7")
    (tensor,) = message["outputs"]
    assert (tensor["name"], tensor["dtype"], tensor["shape"]) == ("x", "INT64", [2])
    assert np.frombuffer(base64.b64decode(tensor["data"]), np.int64).tolist() == [1, 2]


def test_a_part_that_is_not_wanted_is_not_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    unwanted = parts(ours, wanted=False)
    assert unwanted({"x": np.array([1])})
    assert unwanted(None)
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        messages.receive(theirs)


@pytest.mark.parametrize(
    ("message", "goes_on", "ended"),
    [
        ({"op": "stop", "request": "7"}, False, False),
        ({"op": "stop", "request": "6"}, True, False),
        ({"op": "unload"}, False, True),
    ],
)
def test_the_supervisor_ends_a_run_by_its_number(
    pair: tuple[socket.socket, socket.socket], message: Any, goes_on: bool, ended: bool
) -> None:
    ours, theirs = pair
    made = parts(ours)
    messages.send(theirs, message)
    assert made(None) == goes_on
    assert made(None) == goes_on
    assert made.ended == ended


def test_the_supervisor_divides_the_processors_while_a_run_goes_on(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    shared.clear()
    made = parts(ours)
    for request, threads in (("7", 1), ("6", 3), ("7", 2)):
        messages.send(theirs, {"op": "share", "request": request, "threads": threads})
    assert made(None)
    assert shared == [1, 2]


def test_a_supervisor_that_is_gone_ends_the_run(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    made = parts(ours)
    assert not made(None)
    assert made.ended


def test_a_part_that_is_too_large_is_the_predictors_error(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(PredictorError, match="too large"):
        parts(pair[0])({"x": np.zeros(1 << 17)})
