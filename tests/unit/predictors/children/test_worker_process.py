"""A predictor's process that behaves badly costs itself alone. The process here is a fake that does one bad thing."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.children.worker_process import PredictorProcess
from trims_predictors.tensors import from_array, to_array

from trims.core.errors import CallerError, CapacityError, DaemonAwayError, DeadlineError, PredictorError
from trims.process import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_FAKE = """
import os, socket, sys, time
from trims.process import messages
from trims_predictors.ipc.shared_buffers import Receiver, Sender
sock = socket.socket(fileno=int(sys.argv[1]))
inbox, instructions = Receiver(), Sender()
asked, plainly = {}, messages.send
def send(sock, message, fds=()):
    plainly(sock, {**asked, **message}, fds)
messages.send = send
def hear():
    received = messages.receive(sock)
    if received is None: sys.exit(0)
    for fd in received[1]: inbox.take(fd)
    asked["request"] = received[0].get("request")
    return received[0]
"""


def with_process(code: str, work: Callable[[PredictorProcess], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        ours, theirs = messages.pair()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            pid = os.posix_spawn(
                sys.executable, [sys.executable, "-c", _FAKE + code, str(theirs.fileno())], os.environ, setpgroup=0
            )

        async def status() -> str:
            return f"status {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"

        process = PredictorProcess(ours, pid, os.pidfd_open(pid), "spawned", status)
        try:
            return await asyncio.wait_for(work(process), 60)
        finally:
            process.kill("the test is over")
            await process.ended

    return asyncio.run(run())


_ECHO = """
while (message := hear())["op"] != "unload":
    described, fd = instructions.write(inbox.read(message["inputs"]))
    messages.send(sock, {"op": "answer", "outputs": described, "stages": {}}, [] if fd is None else [fd])
"""


def test_tensors_go_there_and_come_back_as_bytes_of_our_own() -> None:
    async def work(process: PredictorProcess) -> None:
        for size in (3, 1 << 20, 5):
            given = from_array("x", np.arange(size))
            answer = await process.ask({"op": "predict"}, deadline_s=30, tensors=[given])
            (found,) = answer["outputs"]
            assert isinstance(found.data, bytes)
            assert np.array_equal(to_array(found), np.arange(size))
        assert await process.end() == "status 0"

    with_process(_ECHO, work)


# fault (templates): a predictor ends right after its answer -> its answer
def test_an_answer_that_came_before_the_end_of_its_process_is_read() -> None:
    async def work(process: PredictorProcess) -> None:
        heard = process._peer._heard

        def hear_and_die(message: Any, fds: list[int]) -> None:
            heard(message, fds)
            process._died()  # seen before the request's task goes on

        process._peer._heard = hear_and_die
        given = from_array("x", np.arange(3))
        answer = await process.ask({"op": "predict"}, deadline_s=30, tensors=[given])
        assert np.array_equal(to_array(answer["outputs"][0]), np.arange(3))

    with_process(_ECHO, work)


# fault (templates): no descriptor to map an answer -> `capacity`; that predictor ends
def test_an_answer_for_which_no_descriptor_is_left_is_a_lack_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(process: PredictorProcess) -> None:
        def lack(fd: int) -> None:
            os.close(fd)
            raise CapacityError("no descriptor left")

        monkeypatch.setattr(process._inbox, "take", lack)
        with pytest.raises(CapacityError, match="no descriptor left"):
            await process.ask({"op": "predict"}, deadline_s=30, tensors=[from_array("x", np.arange(3))])
        assert "no descriptor left for its answer" in await process.ended

    with_process(_ECHO, work)


_IN_PARTS = """
hear()
for _ in range(PARTS):
    time.sleep(0.2)
    messages.send(sock, {"op": "part", "outputs": []})
time.sleep(WAIT)
messages.send(sock, {"op": "answer", "outputs": [], "stages": {}})
"""


def test_a_deadline_counts_from_the_last_part_of_an_answer() -> None:
    async def work(process: PredictorProcess) -> None:
        parts: list[Any] = []
        await process.ask({"op": "predict"}, deadline_s=1.0, tensors=[], on_part=parts.append)
        assert len(parts) == 8

    with_process(_IN_PARTS.replace("PARTS", "8").replace("WAIT", "0"), work)


def test_a_stream_that_stands_still_for_its_deadline_is_ended() -> None:
    async def work(process: PredictorProcess) -> None:
        parts: list[Any] = []
        with pytest.raises(DeadlineError, match=r"took more than 1 s to predict and was ended"):
            await process.ask({"op": "predict"}, deadline_s=1.0, tensors=[], on_part=parts.append)
        assert len(parts) == 2

    with_process(_IN_PARTS.replace("PARTS", "2").replace("WAIT", "60"), work)


_SAY = "hear(); messages.send(sock, {}); time.sleep(60)"


# fault (code): it answers on the supervisor's socket -> `predictor`; this one ends
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("hear(); sys.exit(7)", "the predictor's process ended: status 7"),
        ("hear(); os.kill(os.getpid(), 6)", "ended: status -6"),
        ("hear(); sock.close(); time.sleep(60)", "ended: it closed its socket"),
        ("hear(); sock.send(b'nonsense'); time.sleep(60)", "ended: a message is not JSON"),
        (
            "hear(); messages.send(sock, {'op': 'answer', 'outputs': [{'name': 1}], 'stages': {}}); time.sleep(60)",
            "answered nonsense",
        ),
        ("hear(); messages.send(sock, {'op': 'answer'}, [0]); time.sleep(60)", "that is no arena"),
        ("hear(); messages.send(sock, {}); time.sleep(60)", "a message of the form"),
        (
            "hear(); plainly(sock, {'op': 'answer', 'outputs': [], 'stages': {}}); time.sleep(60)",
            "answered what was not asked",
        ),
        (
            "hear(); asked['request'] = '1'; messages.send(sock, {'op': 'answer', 'outputs': [], 'stages': {}})",
            "answered what was not asked",
        ),
        ("hear(); messages.send(sock, {'op': 'answer', 'outputs': 5, 'stages': {}}); time.sleep(60)", "of the form"),
        (
            "hear(); messages.send(sock, {'op': 'answer', 'outputs': [5], 'stages': {}}); time.sleep(60)",
            "not described",
        ),
        (
            "hear(); messages.send(sock, {'op': 'answer', 'outputs': [], 'stages': {'a': 'b'}}); time.sleep(60)",
            "seconds",
        ),
    ],
)
def test_a_process_that_ends_or_answers_nonsense_is_told_as_the_predictor_s_fault(code: str, message: str) -> None:
    async def work(process: PredictorProcess) -> None:
        with pytest.raises(PredictorError, match=message):
            await process.ask({"op": "predict"}, deadline_s=30, tensors=[])
        await process.ended
        assert process.dying

    with_process(code, work)


def test_an_answer_whose_bytes_do_not_fit_its_shape_is_refused() -> None:
    code = """
message = hear()
described, fd = instructions.write(inbox.read(message["inputs"]))
described[0]["shape"] = [99]
messages.send(sock, {"op": "answer", "outputs": described, "stages": {}}, [fd])
hear()
"""

    async def work(process: PredictorProcess) -> None:
        with pytest.raises(PredictorError, match=r"answered nonsense.*brings 8 bytes"):
            await process.ask({"op": "predict"}, deadline_s=30, tensors=[from_array("x", np.arange(1))])

    with_process(code, work)


def test_a_process_that_takes_too_long_is_killed() -> None:
    async def work(process: PredictorProcess) -> None:
        with pytest.raises(DeadlineError, match=r"took more than 0.1 s to predict"):
            await process.ask({"op": "predict"}, deadline_s=0.1)
        assert await process.ended == "it took more than 0.1 s to predict"

    with_process("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", work)


def test_what_a_process_refuses_is_raised_and_it_lives_on() -> None:
    async def work(process: PredictorProcess) -> None:
        for _ in range(2):
            with pytest.raises(CallerError, match="no"):
                await process.ask({"op": "predict"}, deadline_s=30)
        assert not process.dying

    with_process(
        "while True: hear(); messages.send(sock, {'op': 'failed', 'code': 'bad_request', 'message': 'no'})", work
    )


def test_a_process_that_speaks_without_being_asked_is_ended() -> None:
    async def work(process: PredictorProcess) -> None:
        assert await process.ended == "it spoke without being asked"

    with_process("messages.send(sock, {'op': 'answer'}); time.sleep(600)", work)


def test_a_cancelled_request_ends_the_process_because_it_may_run_for_ever() -> None:
    async def work(process: PredictorProcess) -> None:
        asking = asyncio.ensure_future(process.ask({"op": "predict"}, deadline_s=None))
        await asyncio.sleep(0.01)
        asking.cancel()
        assert await process.ended == "its request was cancelled"

    with_process("time.sleep(600)", work)


def test_what_a_process_started_in_its_group_ends_with_it() -> None:
    async def work(process: PredictorProcess) -> None:
        answer = await process.ask({"op": "predict"}, deadline_s=30)
        child = os.pidfd_open(answer["child"])
        process.kill("by hand")
        await process.ended
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(child, lambda: ended.done() or ended.set_result(None))
        await ended
        loop.remove_reader(child)
        os.close(child)

    answer = "{'op': 'answer', 'outputs': [], 'stages': {}, 'child': subprocess.Popen(['sleep', '600']).pid}"
    with_process(f"import subprocess; hear(); messages.send(sock, {answer}); time.sleep(600)", work)


def test_an_error_that_a_process_passes_on_is_no_end_of_the_process() -> None:
    async def work(process: PredictorProcess) -> None:
        with pytest.raises(DaemonAwayError, match="no daemon"):
            await process.ask({"op": "load"}, deadline_s=30)
        assert not process.dying

    refusal = "{'op': 'failed', 'code': 'daemon_away', 'message': 'no daemon'}"
    with_process(f"while True: hear(); messages.send(sock, {refusal})", work)


def test_an_error_with_half_a_character_can_be_sent_on() -> None:
    async def work(process: PredictorProcess) -> None:
        with pytest.raises(PredictorError, match=r"^half: \?$"):
            await process.ask({"op": "load"}, deadline_s=30)

    refusal = r"{'op': 'failed', 'code': 'predictor', 'message': 'half: \ud800'}"
    with_process(f"while True: hear(); messages.send(sock, {refusal})", work)
