"""The mover's program: what it answers on its socket, and when it ends."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from keepers import UUID

from trims.core.errors import CapacityError, DeviceLostError, InternalError, NotSupportedError
from trims.process import messages
from trims.process.child import Child, Ties
from trims.process.python import run_module
from trims.testing.fake_cuda import contexts_refused, lose_device
from trims.wire.answers import raise_if_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.wire.frames import Message


@pytest.fixture
def start(kind: str) -> Iterator[Callable[..., Child]]:
    """Starts movers; they have ended after the test."""
    made: list[Child] = []

    def started(uuid: str = UUID) -> Child:
        ties = Ties()
        command = run_module("trims.keeper.mover_main", *ties.arguments, "--device", uuid, "--cuda", kind)
        made.append(Child(command, ties, stderr=subprocess.DEVNULL))
        made[-1].socket.settimeout(30)
        return made[-1]

    yield started
    for child in made:
        child.close()


def ask(child: Child, message: Message) -> Message:
    messages.send(child.socket, message)
    received = messages.receive(child.socket)
    assert received is not None
    return raise_if_error(received[0])


def test_a_mover_ends_when_its_keeper_closes_the_socket(start: Callable[..., Child]) -> None:
    child = start()
    assert ask(child, {"op": "begin"}) == {}
    assert child.end(30) == 0


def test_an_order_to_stop_between_moves_is_nothing(start: Callable[..., Child]) -> None:
    child = start()
    messages.send(child.socket, {"op": "stop"})
    assert ask(child, {"op": "begin"}) == {}


def test_what_is_wrong_with_device_or_context_is_the_answer_and_the_mover_goes_on(
    start: Callable[..., Child], folder: Path
) -> None:
    with pytest.raises(NotSupportedError, match="GPU-none is not visible"):
        ask(start("GPU-none"), {"op": "begin"})
    child = start()
    with contexts_refused(folder, UUID), pytest.raises(CapacityError, match="no context just now"):
        ask(child, {"op": "begin"})
    with pytest.raises(InternalError):
        ask(child, {"op": "digest"})
    assert ask(child, {"op": "begin"}) == {}


def test_a_lost_device_is_the_answer_and_ends_the_mover(start: Callable[..., Child], folder: Path) -> None:
    child = start()
    lose_device(folder, UUID)
    with pytest.raises(DeviceLostError):
        ask(child, {"op": "begin"})
    assert child.wait(30) == 1
