"""A real process for large JSON: what it answers, and what becomes of it and of its memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from trims_predictors.endpoint.json import process as json_process
from trims_predictors.endpoint.json.child import COUNT, READ, WRITE
from trims_predictors.endpoint.json.process import JsonProcess, TooMuchWorkError

from trims.core.errors import CallerError, CapacityError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

REQUEST = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [3], "data": [1, 2, 3]}]}
TEXT = json.dumps(REQUEST).encode()


def run(work: Callable[[JsonProcess], Awaitable[None]]) -> None:
    async def whole() -> None:
        process = JsonProcess()
        try:
            await work(process)
        finally:
            await process.close()

    asyncio.run(whole())


def runs(pid: int | None) -> bool:
    return pid is not None and os.path.exists(f"/proc/{pid}/cwd") and bool(os.listdir(f"/proc/{pid}/task"))


def test_jobs_are_done_by_one_process_that_ends_when_it_is_closed() -> None:
    async def work(process: JsonProcess) -> None:
        assert process.pid is None
        done = await process.do(READ, {}, [memoryview(TEXT)], 60.0)
        first = process.pid
        assert (done.head["sizes"], bytes(done.data)) == ([3], b"\1\2\3")
        written = await process.do(WRITE, {"tensors": [["x", "INT8", [3], 3]]}, [done.data], 60.0)
        assert (bytes(written.data), process.pid) == (b"[1,2,3]", first)
        assert runs(first)
        await process.close()
        assert not runs(first)

    run(work)


def test_what_is_wrong_is_refused_and_the_process_goes_on() -> None:
    async def work(process: JsonProcess) -> None:
        with pytest.raises(CallerError, match="needs 'inputs'"):
            await process.do(READ, {}, [b"{}"], 60.0)
        first = process.pid
        with pytest.raises(CallerError, match="its shape says 9"):
            await process.do(COUNT, {"tensors": [["x", "BYTES", [9], 5]]}, [b"\1\0\0\0a"], 60.0)
        assert process.pid == first is not None

    run(work)


def test_a_process_that_dies_fails_its_job_and_is_replaced() -> None:
    async def work(process: JsonProcess) -> None:
        await process.do(READ, {}, [TEXT], 60.0)
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        job = asyncio.ensure_future(process.do(READ, {}, [TEXT], 60.0))
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(CapacityError, match="has ended; send binary tensors"):
            await job
        assert (await process.do(READ, {}, [TEXT], 60.0)).head["sizes"] == [3]
        assert process.pid != first

    run(work)


@pytest.mark.parametrize("cancelled", [False, True], ids=["too late", "not wanted any more"])
def test_a_process_that_does_not_answer_is_ended(cancelled: bool) -> None:
    async def work(process: JsonProcess) -> None:
        await process.do(READ, {}, [TEXT], 60.0)
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        job = asyncio.ensure_future(process.do(READ, {}, [TEXT], 60.0 if cancelled else 0.1))
        await asyncio.sleep(0)
        if cancelled:
            job.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else TooMuchWorkError):
            await job
        assert process.pid is None
        await process.close()
        assert not runs(first)

    run(work)


def test_a_job_that_needs_more_memory_than_its_size_allows_is_given_up() -> None:
    hostile = b'{"inputs":[' + b"{}," * 3_000_000 + b"{}]}"

    async def work(process: JsonProcess) -> None:
        await process.do(READ, {}, [TEXT], 60.0)
        assert process.pid is not None
        soft, _ = resource.prlimit(process.pid, resource.RLIMIT_DATA)
        assert 256 << 20 < soft < 1 << 30
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (150 << 20, 150 << 20))
        with pytest.raises(TooMuchWorkError):
            await process.do(READ, {}, [hostile], 60.0)
        assert process.pid is None

    run(work)


def test_a_process_that_had_much_to_do_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_process, "_KEPT_BYTES", 10)
    monkeypatch.setattr(json_process, "_FEW_BYTES", 10)  # and its memory is filled by a thread

    async def work(process: JsonProcess) -> None:
        done = await process.do(READ, {}, [TEXT], 60.0)
        assert (done.head["sizes"], process.pid) == ([3], None)

    run(work)


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(11, "no processes left")

    async def work(process: JsonProcess) -> None:
        monkeypatch.setattr(subprocess, "Popen", fail)
        with pytest.raises(CapacityError, match="no processes left"):
            await process.do(READ, {}, [TEXT], 60.0)

    run(work)


def descriptors_of(pid: int) -> list[str]:
    """Return the targets of a process's descriptors; one that is closed meanwhile is left out."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def test_the_process_has_no_descriptor_of_ours_and_no_thread() -> None:
    async def work(process: JsonProcess) -> None:
        with open(os.devnull) as file:
            os.set_inheritable(file.fileno(), True)
            await process.do(WRITE, {"tensors": [["x", "FP64", [1], 8]]}, [np.zeros(1).tobytes()], 60.0)
        wait_until(lambda: len(descriptors_of(process.pid)) == 5, "it keeps more than two and those of all processes")
        assert sum(each.startswith("socket:") for each in descriptors_of(process.pid)) == 2
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1

    run(work)


_PARENT = """
import asyncio, os, signal, sys
from trims_predictors.endpoint.json.process import JsonProcess
from trims_predictors.endpoint.json.child import READ
async def main():
    process = JsonProcess()
    await process.do(READ, {}, [sys.argv[1].encode()], 60.0)
    os.kill(process.pid, signal.SIGSTOP)
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_the_process_ends_with_the_endpoint_even_if_that_is_killed() -> None:
    told: Any = subprocess.run([sys.executable, "-c", _PARENT, TEXT.decode()], capture_output=True, text=True)
    assert told.returncode == -signal.SIGKILL, told.stderr
    pid = int(told.stdout)
    while runs(pid):
        asyncio.run(asyncio.sleep(0.01))
