"""Messages to the predictor's process and its acts; here in a thread of the test, with a real daemon."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import SUPPORT, register
from looking import wait_until
from trims_predictors.children.launcher import Environment, Launcher
from trims_predictors.ipc.shared_buffers import Receiver, Sender
from trims_predictors.tensors import from_array, to_array
from trims_predictors.worker import worker

from trims.control import admin
from trims.core.errors import BadMessageError
from trims.process import messages

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


PREPARE = {"op": "prepare", "modules": ["numpy"], "import": False, "threads": 1, "pages": []}


class Talk:
    """With a worker, over the other end of its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.instructions, self.inbox = Sender(), Receiver()
        self.asked = 0

    def ask(self, message: dict[str, Any], **arrays: Any) -> dict[str, Any]:
        fds = []
        self.asked += 1
        message = {**message, "request": str(self.asked)}
        if arrays:
            described, fd = self.instructions.write([from_array(name, np.asarray(a)) for name, a in arrays.items()])
            message, fds = {**message, "inputs": described}, [] if fd is None else [fd]
        messages.send(self.sock, message, fds)
        messages.close_all(fds)
        received = messages.receive(self.sock)
        assert received is not None
        for fd in received[1]:
            self.inbox.take(fd)
        assert received[0].pop("request") == message["request"]
        return received[0]

    def close(self) -> None:
        self.sock.close()
        self.instructions.close()
        self.inbox.close()


class Supervisor(Talk):
    """The other side of a worker in a thread."""

    def __init__(self, runtime_dir: str) -> None:
        ours, self._theirs = messages.pair()
        super().__init__(ours)
        self._thread = threading.Thread(target=worker.Worker(self._theirs, runtime_dir).serve)
        self._thread.start()

    def end(self) -> None:
        self.close()
        self._thread.join()
        self._theirs.close()


@pytest.fixture
def supervisor(daemon: Daemon) -> Iterator[Supervisor]:
    made = Supervisor(str(daemon.config.runtime_dir))
    yield made
    made.end()


def load(call: str, **fields: Any) -> dict[str, Any]:
    given = {
        "options": {}, "attributes": {}, "inputs": [], "outputs": [], "preprocess": [], "postprocess": [], "threads": 1,
        "batch": 0, "place": None, "how": "class", "origin": SUPPORT, "deadline_s": 30.0,
        "variables": {},
    }  # fmt: skip
    return {"op": "load", "model": "m", "version": "1.0.0", "call": call, **given, **fields}


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint)


def test_what_a_spawned_worker_started_ends_though_its_lifeline_ends_last(daemon: Daemon, model: None) -> None:
    """The kernel closes the descriptors of an endpoint that was killed one after the other."""

    async def work() -> int:
        launcher = Launcher(str(daemon.config.runtime_dir))
        child = launcher.start("trims_predictors.worker.worker", Environment("numpy")).child
        talk = Talk(child.socket)
        talk.ask(load("own_predictors:Troubled"))
        (done,) = talk.inbox.read(talk.ask({"op": "predict"}, do=np.array([b"fork"], object))["outputs"])
        forked = os.pidfd_open(int(to_array(done)[0]))
        talk.close()
        assert child.exit_status() == -signal.SIGKILL
        assert not child.lifeline.closed
        child.close()
        launcher.close()
        return forked

    child = asyncio.run(work())
    poll = select.poll()
    poll.register(child, select.POLLIN)
    assert poll.poll(60_000), "what it has started is alive"
    os.close(child)


def test_load_predict_and_unload(daemon: Daemon, model: None, supervisor: Supervisor) -> None:
    assert supervisor.ask(PREPARE) == {"op": "prepared"}
    loaded = supervisor.ask(load("own_predictors:Scaler"))
    assert loaded["op"] == "loaded"
    assert loaded["inputs"] == [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    assert loaded["place"] == "cpu"
    assert loaded["stages"].keys() == {"connect_s", "open_s", "import_s", "load_s"}
    answer = supervisor.ask({"op": "predict"}, x=[1.5])
    (output,) = supervisor.inbox.read(answer["outputs"])
    assert to_array(output).tolist() == [3.0]
    del output
    with admin(daemon.config.runtime_dir) as control:
        assert control.status().stats.leases == 1
        messages.send(supervisor.sock, {"op": "unload"})
        supervisor._thread.join()
        wait_until(lambda: control.status().stats.leases == 0, "the lease is given back")


def test_what_a_run_was_given_is_told_when_it_changes_if_it_can_be_rehearsed(
    model: None, supervisor: Supervisor
) -> None:
    supervisor.ask(load("own_predictors:Rehearsed"))
    given = [{"name": "x", "dtype": "FP64", "shape": [2]}]
    assert supervisor.ask({"op": "rehearse", "given": given}) == {"op": "rehearsed"}
    assert supervisor.ask({"op": "predict"}, x=[1.0, 2.0])["given"] == given
    assert "given" not in supervisor.ask({"op": "predict"}, x=[3.0, 4.0])
    assert supervisor.ask({"op": "predict"}, x=[1.0])["given"] == [{"name": "x", "dtype": "FP64", "shape": [1]}]
    wrong = supervisor.ask({"op": "rehearse", "given": [{"name": "x", "dtype": "FP64", "shape": "no"}]})
    assert (wrong["op"], wrong["code"]) == ("failed", "bad_manifest")


def test_pages_that_are_written_are_told_with_the_first_answer_if_they_are_recorded(
    model: None, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SimpleNamespace(end=lambda: [7, 2])  # this process has other threads, which write as well
    monkeypatch.setattr(worker, "Record", SimpleNamespace(begin=lambda: record))
    supervisor.ask(PREPARE)
    supervisor.ask(load("own_predictors:Scaler", record=True))
    assert supervisor.ask({"op": "predict"}, x=[1.0])["pages"] == [7, 2]
    assert "pages" not in supervisor.ask({"op": "predict"}, x=[1.0])


def test_pages_that_are_written_are_not_told_unasked(model: None, supervisor: Supervisor) -> None:
    supervisor.ask(PREPARE)
    supervisor.ask(load("own_predictors:Scaler"))
    assert "pages" not in supervisor.ask({"op": "predict"}, x=[1.0])


def test_the_memory_of_a_rehearsed_answer_is_that_of_the_first_one(model: None, supervisor: Supervisor) -> None:
    supervisor.ask(load("own_predictors:Rehearsed"))
    for length in (200_000, 2):
        supervisor.ask({"op": "rehearse", "given": [{"name": "x", "dtype": "FP64", "shape": [length]}]})
    for value in (1.5, 2.5):
        answer = supervisor.ask({"op": "predict"}, x=[value])
        outputs = {each.name: to_array(each).tolist() for each in supervisor.inbox.read(answer["outputs"])}
        assert outputs["y"] == [2 * value]
        assert supervisor.inbox._nbytes > 200_000 * 8, "the arena of the larger rehearsal"


def test_what_a_predictor_without_rehearsals_was_given_is_not_told(model: None, supervisor: Supervisor) -> None:
    supervisor.ask(load("own_predictors:Scaler"))
    assert "given" not in supervisor.ask({"op": "predict"}, x=[1.0])
    assert supervisor.ask({"op": "rehearse", "given": []}) == {"op": "rehearsed"}


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


ADD_ONE = "def step(context, data):\n    return {**data, 'x': data['x'] + 1}\n"


def source(text: str) -> dict[str, Any]:
    return {"kind": "source", "fields": {"source": text, "function": "step", "options": {}}}


def test_steps_run_around_the_predictor_and_are_timed(model: None, supervisor: Supervisor) -> None:
    rename = (
        "def step(context, data):\n    return {'z': data['y'] * 10, 'given': context.given['x'], 'more': data['y']}\n"
    )
    outputs = [{"name": name, "dtype": "FP64", "shape": [-1]} for name in ("z", "given")]
    loaded = supervisor.ask(
        load("own_predictors:Scaler", preprocess=[source(ADD_ONE)], postprocess=[source(rename)], outputs=outputs)
    )
    assert loaded["inputs"] == [], "what the predictor takes is not what a request brings"
    assert not [name for name in loaded["imported"] if name.startswith("trims_step_")]
    answer = supervisor.ask({"op": "predict"}, x=[1.5])
    found = {each.name: to_array(each).tolist() for each in supervisor.inbox.read(answer["outputs"])}
    assert found == {"z": [50.0], "given": [2.5]}, "outputs that the manifest does not state are left out"
    assert list(answer["stages"]) == ["input_s", "preprocess_s", "predict_s", "postprocess_s", "output_s"]


@pytest.mark.parametrize(("steps", "told"), [([], 1), ([source(ADD_ONE)], 0)])
def test_a_predictor_is_not_told_tensors_that_steps_change(
    model: None, supervisor: Supervisor, steps: list[Any], told: int
) -> None:
    stated = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    supervisor.ask(load("own_predictors:Told", inputs=stated, preprocess=steps))
    (found,) = supervisor.inbox.read(supervisor.ask({"op": "predict"}, x=[1.0])["outputs"])
    assert to_array(found).tolist() == [told]


def test_a_function_answers_with_the_weights_and_its_options(model: None, supervisor: Supervisor) -> None:
    supervisor.ask(load("own_functions:scale", how="function", options={"bias": 0.5}))
    (found,) = supervisor.inbox.read(supervisor.ask({"op": "predict"}, x=[1.5])["outputs"])
    assert to_array(found).tolist() == [3.5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("complex", "what the predictor returned is no answer: the tensor 'y' has numpy's type complex128"),
        ("objects", "the tensor 'y' has an element of the type object"),
        ("masked", "the tensor 'y' is a masked array"),
        ("surrogate", r"a tensor has the name '\ud800'"),
        ("number", "a tensor has a name of the type int"),
        ("list", "the tensor 'y' is no array but of the type list; give a numpy array"),
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_an_answer_that_cannot_be_sent_is_the_predictor_s_fault(
    model: None, supervisor: Supervisor, name: str, message: str, steps: int
) -> None:
    cast = {"kind": "cast", "fields": {"input": "x", "outputs": ["x"], "keep": False, "dtype": "FP32"}}
    supervisor.ask(load("own_predictors:Unsendable", postprocess=[cast] * steps))
    answer = supervisor.ask({"op": "predict"}, x=[1.0], do=np.array([name.encode()], object))
    assert (answer["op"], answer["code"]) == ("failed", "predictor")
    assert message.removeprefix("what the predictor returned is no answer: ") in answer["message"]
    assert ("the predictor returned" if not steps else "is no answer") in answer["message"]


@pytest.mark.parametrize(("name", "what"), [("None", "nothing"), ("[]", "a value of the type list")])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_predictor_that_returns_no_dict_is_told_what_it_returned(
    model: None, supervisor: Supervisor, name: str, what: str, steps: int
) -> None:
    cast = {"kind": "cast", "fields": {"input": "x", "outputs": ["x"], "keep": False, "dtype": "FP32"}}
    supervisor.ask(load("own_predictors:Unsendable", postprocess=[cast] * steps))
    answer = supervisor.ask({"op": "predict"}, x=[1.0], do=np.array([name.encode()], object))
    assert (answer["op"], answer["code"]) == ("failed", "predictor")
    assert answer["message"] == f"`predict` returned {what}; it must return a dict of output name -> array"


def test_an_output_that_steps_do_not_leave_is_told_with_those_they_do(model: None, supervisor: Supervisor) -> None:
    outputs = [{"name": "nope", "dtype": "FP64", "shape": [-1]}]
    keep = source("def step(context, data):\n    return data\n")
    supervisor.ask(load("own_predictors:Scaler", postprocess=[keep], outputs=outputs))
    answer = supervisor.ask({"op": "predict"}, x=[1.5])
    assert answer["code"] == "predictor"
    assert "lacks the output 'nope', which the manifest states; after `postprocess` there are y" in answer["message"]
