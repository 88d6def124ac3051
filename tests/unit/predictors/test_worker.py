"""What the predictor's process does with what its socket says; here in a thread of the test, with a real daemon."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import SUPPORT, register
from looking import wait_until
from trims_predictors import messages, worker
from trims_predictors.arena import Receiver, Sender
from trims_predictors.tensors import from_array, to_array

from trims.control import admin
from trims.core.errors import BadMessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


class Supervisor:
    """The other side of a worker."""

    def __init__(self, runtime_dir: str) -> None:
        self.sock, self._theirs = messages.pair()
        self.outbox, self.inbox = Sender(), Receiver()
        self._thread = threading.Thread(target=worker.Worker(self._theirs, runtime_dir).serve)
        self._thread.start()

    def ask(self, message: dict[str, Any], **arrays: Any) -> dict[str, Any]:
        fds = []
        if arrays:
            described, fd = self.outbox.write([from_array(name, np.asarray(a)) for name, a in arrays.items()])
            message, fds = {**message, "inputs": described}, [] if fd is None else [fd]
        messages.send(self.sock, message, fds)
        messages.close_all(fds)
        received = messages.receive(self.sock)
        assert received is not None
        for fd in received[1]:
            self.inbox.take(fd)
        return received[0]

    def end(self) -> None:
        self.sock.close()
        self._thread.join()
        self._theirs.close()
        self.outbox.close()
        self.inbox.close()


@pytest.fixture
def supervisor(daemon: Daemon) -> Iterator[Supervisor]:
    made = Supervisor(str(daemon.config.runtime_dir))
    yield made
    made.end()


def load(call: str, **fields: Any) -> dict[str, Any]:
    given = {"options": {}, "attributes": {}, "inputs": [], "outputs": [], "threads": 1, "place": None}
    return {
        "op": "load", "model": "m", "version": "1.0.0", "call": call, "origin": SUPPORT, "deadline_s": 30.0, **given,
        **fields,
    }  # fmt: skip


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint)


def test_load_predict_and_unload(daemon: Daemon, model: None, supervisor: Supervisor) -> None:
    assert supervisor.ask({"op": "prepare", "modules": ["numpy"], "threads": 1}) == {"op": "prepared"}
    loaded = supervisor.ask(load("own_predictors:Scaler"))
    assert loaded["op"] == "loaded"
    assert loaded["inputs"] == [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    assert loaded["place"] == "cpu"
    assert loaded["stages"].keys() == {"connect_s", "open_s", "load_s"}
    answer = supervisor.ask({"op": "predict"}, x=[1.5])
    (output,) = supervisor.inbox.read(answer["outputs"])
    assert to_array(output).tolist() == [3.0]
    del output
    with admin(daemon.config.runtime_dir) as control:
        assert control.status().stats.leases == 1
        messages.send(supervisor.sock, {"op": "unload"})
        supervisor._thread.join()
        wait_until(lambda: control.status().stats.leases == 0, "the lease is given back")


def test_the_manifest_s_description_wins_over_the_predictor_s(model: None, supervisor: Supervisor) -> None:
    stated = [{"name": "x", "dtype": "FP64", "shape": [2]}]
    loaded = supervisor.ask(load("own_predictors:Scaler", inputs=stated))
    assert loaded["inputs"] == stated


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        ("own_predictors:NotAPredictor", "not_supported", "needs the methods"),
        ("own_predictors:Missing", "not_supported", "cannot be imported"),
        ("missing_module:Class", "not_supported", "cannot be imported"),
        ("own_predictors:Unloadable", "predictor", "RuntimeError: not today"),
    ],
)
def test_a_class_that_is_no_predictor_is_told(
    model: None, supervisor: Supervisor, call: str, code: str, message: str
) -> None:
    answer = supervisor.ask(load(call))
    assert (answer["op"], answer["code"]) == ("failed", code)
    assert message in answer["message"]


def test_errors_of_the_daemon_keep_their_class(supervisor: Supervisor) -> None:
    assert supervisor.ask(load("own_predictors:Echo"))["code"] == "model_not_found"


def test_an_answer_of_too_many_tensors_is_told(
    model: None, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.ask(load("own_predictors:Echo"))
    many = {f"{'x' * 200}{index}": [1.0] for index in range(100)}
    send = messages.send

    def short(sock: Any, message: dict[str, Any], fds: Any = ()) -> None:
        if message["op"] == "answer":
            raise BadMessageError("a message is too long")
        send(sock, message, fds)

    monkeypatch.setattr(
        worker.messages, "send", lambda *given: (short if given[0] is not supervisor.sock else send)(*given)
    )
    answer = supervisor.ask({"op": "predict"}, **many)
    assert (answer["code"], answer["message"]) == (
        "predictor",
        "the answer has too many tensors: a message is too long",
    )
