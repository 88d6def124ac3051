"""A bound of ours that is met names itself: what it is, its value, and the flag or setting that raises it.

One row for each bound and each way to meet it, in real predictors and converters.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from fleets import drive, register
from in_namespaces import namespaces
from nursing import until
from starlette.requests import Request
from trims_client import connect
from trims_predictors.endpoint.bodies import TooLargeBodyError, read_body
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.sandbox.sandbox import NAMESPACES, Isolation

from trims.core.errors import (
    BusyError,
    CapacityError,
    ConversionError,
    DeadlineError,
    PredictorError,
    TooLargeError,
    TrimsError,
)
from trims.formats.base import Limits
from trims.formats.conversion.child_process import LimitedChild

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fleets import Driver

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
_MEMORY = 256 << 20
_OF_PREDICTOR = "it may take 256.0 MiB of memory of its own: raise --predictor-memory"
_OF_KERNEL = "it was ended by SIGKILL (by the kernel for lack of memory, or by another process"


def refusal(daemon: Daemon, checkpoint: Callable[..., Path], options: dict[str, str], **settings: Any) -> TrimsError:
    """Return the error of a request for a predictor that does what the options say."""
    fields = settings.pop("predictor", {})
    register(daemon, checkpoint, predictor={"call": "eaters:Eater", "options": options, **fields})

    async def work(driver: Driver) -> TrimsError:
        with pytest.raises(TrimsError) as caught:
            await driver.ask(x=[1.0])
        return caught.value

    found: TrimsError = drive(daemon, work, **settings)
    return found


@pytest.mark.parametrize("when", ["load", "predict"])
@pytest.mark.parametrize(
    ("way", "cause"),
    [
        ("python", "MemoryError (eaters.py"),
        ("numpy", "Unable to allocate 4.00 GiB"),
        ("hidden", "QuietlyBrokenError: no (eaters.py"),
        ("threads", "can't start new thread (eaters.py"),
        ("cxx", "ended by SIGABRT for lack of memory: "),
        ("exit_", "exited with status 1 for lack of memory: "),
    ],
)
def test_memory_of_a_predictor_that_is_used_up_is_named(
    daemon: Daemon, checkpoint: Callable[..., Path], way: str, cause: str, when: str
) -> None:
    error = refusal(daemon, checkpoint, {when: way}, most_predictor_bytes=_MEMORY)
    assert type(error) is PredictorError
    assert cause in str(error)
    assert str(error).endswith(_OF_PREDICTOR)


def test_memory_of_a_predictor_that_pytorch_asks_for_is_named(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    pytest.importorskip("torch")
    error = refusal(daemon, checkpoint, {"predict": "torch"}, most_predictor_bytes=1 << 30)
    assert "DefaultCPUAllocator: can't allocate memory" in str(error)
    assert str(error).endswith("it may take 1.0 GiB of memory of its own: raise --predictor-memory")


@pytest.mark.parametrize("when", ["load", "predict"])
def test_a_predictor_that_the_kernel_may_have_killed_is_told_so(
    daemon: Daemon, checkpoint: Callable[..., Path], when: str
) -> None:
    error = refusal(daemon, checkpoint, {when: "kernel"}, most_predictor_bytes=_MEMORY)
    assert _OF_KERNEL in str(error)


def test_a_file_of_the_system_that_is_not_of_memory_names_no_bound(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Troubled"})

    async def work(driver: Driver) -> None:
        for do in (b"raise_", b"leave"):
            with pytest.raises(PredictorError) as caught:
                await driver.ask(do=[do])
            assert "memory" not in str(caught.value)

    drive(daemon, work, most_predictor_bytes=_MEMORY)


@namespaces
def test_room_for_files_of_a_namespace_that_is_used_up_is_named(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    isolation = Isolation(NAMESPACES, scratch_bytes=64 << 20)
    error = refusal(daemon, checkpoint, {"predict": "files"}, isolation=isolation)
    assert "No space left on device (eaters.py" in str(error)
    assert "; files of all predictors beside it may take 64.0 MiB together" in str(error)
    assert "--predictor-memory" in str(error)


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({"load": "sleep"}, {"load_deadline_s": 2.0}, "more than 2 s to load and was ended; raise --load-deadline-s"),
        (
            {"predict": "sleep"},
            {"run_deadline_s": 1.0},
            "more than 1 s to predict and was ended; raise --run-deadline-s",
        ),
        (
            {"predict": "sleep"},
            {"predictor": {"deadline_s": 1.5}},
            "more than 1.5 s to predict and was ended; state a longer `deadline_s` in the `predictor` of its manifest",
        ),
    ],
    ids=["load", "run", "run by the manifest"],
)
def test_time_that_is_used_up_is_named(
    daemon: Daemon, checkpoint: Callable[..., Path], options: dict[str, str], settings: dict[str, Any], words: str
) -> None:
    error = refusal(daemon, checkpoint, options, **settings)
    assert type(error) is DeadlineError
    assert words in str(error)


def test_a_queue_that_is_full_and_the_time_in_it_are_named(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "eaters:Eater", "options": {"predict": "sleep"}})

    async def work(driver: Driver) -> None:
        running = asyncio.ensure_future(driver.ask(x=[1.0]))
        line = (await driver.deployment()).key
        await until(lambda: driver.pool.state(line)["busy"])
        waiting = asyncio.ensure_future(driver.ask(wait_s=0.5, x=[1.0]))
        await until(lambda: driver.pool.state(line)["queued"])
        with pytest.raises(BusyError, match=r"1 requests for 'm' wait already, the most that may \(--queue\)"):
            await driver.ask(wait_s=0.5, x=[1.0])
        with pytest.raises(DeadlineError, match=r"free within 0.5 s; ask with a longer `deadline`, or .* --predictors"):
            await waiting
        running.cancel()

    drive(daemon, work, queue=1, predictors=1)


@pytest.mark.parametrize(
    ("most_bytes", "words"),
    [
        (1 << 20, "larger than 1.0 MiB, the most this endpoint takes (--max-body)"),
        (SMALL_BYTES, "the most this endpoint takes"),
    ],
)
def test_a_body_that_is_too_large_is_told_what_raises_the_most(most_bytes: int, words: str) -> None:
    request = Request({"type": "http", "headers": [(b"content-length", str(most_bytes + 1).encode())]})
    with pytest.raises(TooLargeBodyError) as caught:
        asyncio.run(read_body(request, most_bytes))
    assert words in str(caught.value)
    assert ("--max-body" in str(caught.value)) == (most_bytes != SMALL_BYTES)


def test_the_capacity_of_a_tier_is_named(serve: Callable[..., Daemon], checkpoint: Callable[..., Path]) -> None:
    daemon = serve(cpu_capacity_bytes="1MiB")
    paths = [
        checkpoint("small", nbytes=800_000),
        checkpoint("other", nbytes=800_000),
        checkpoint("large", nbytes=4 << 20),
    ]
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(paths[0], place="cpu"), pytest.raises(CapacityError) as full:
            session.open_file(paths[1], place="cpu")
        with pytest.raises(TooLargeError) as whole:
            session.open_file(paths[2], place="cpu")
    for caught in (full, whole):
        assert "1.0 MiB" in str(caught.value)
        assert "raise the setting cpu_capacity_bytes" in str(caught.value)


# -- converters ------------------------------------------------------------------------------------------------------

BUILDERS = """
import ctypes, os, signal, time

def python(folder):
    bytearray(4 << 30)

def quiet(folder):
    raise MemoryError

def hidden(folder):
    try:
        bytearray(4 << 30)
    except MemoryError:
        raise ValueError("no") from None

def cxx(folder):
    allocate = ctypes.CDLL("libstdc++.so.6")._Znwm
    allocate.argtypes, allocate.restype = [ctypes.c_size_t], ctypes.c_void_p
    allocate(4 << 30)

def kernel(folder):
    os.kill(os.getpid(), signal.SIGKILL)

def sleep(folder):
    time.sleep(600)
"""


def build(folder: Path, way: str, limits: Limits) -> TrimsError:
    """Return the error of a builder in a child with these limits."""
    (folder / "building.py").write_text(BUILDERS)
    child = LimitedChild("building:way", python=None, limits=limits, extra_paths=[folder])
    try:
        with pytest.raises(TrimsError) as caught:
            child.request({"do": "build", "call": f"building:{way}", "out_dir": str(folder), "args": {}})
    finally:
        child.close()
    return caught.value


@pytest.mark.parametrize("way", ["python", "quiet", "hidden", "cxx"])
def test_memory_of_a_converter_that_is_used_up_is_named(tmp_path: Path, way: str) -> None:
    error = build(tmp_path, way, Limits(memory_bytes=512 << 20, time_s=60.0))
    assert type(error) is ConversionError
    assert "exceeded its memory limit of 512.0 MiB (raise the setting converter_memory_bytes): " in str(error)


def test_a_converter_that_the_kernel_may_have_killed_is_told_so(tmp_path: Path) -> None:
    error = build(tmp_path, "kernel", Limits(memory_bytes=512 << 20, time_s=60.0))
    assert "was ended by SIGKILL (by the kernel for lack of memory, or by another process" in str(error)


def test_time_of_a_converter_that_is_used_up_is_named(tmp_path: Path) -> None:
    error = build(tmp_path, "sleep", Limits(time_s=1.0))
    assert "not done within the time limit of 1 s (raise the setting converter_time_s)" in str(error)


def test_limits_that_no_setting_raises_name_none(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=512 << 20, time_s=60.0, memory_setting="", time_setting="")
    assert "memory limit of 512.0 MiB: " in str(build(tmp_path, "python", limits))
