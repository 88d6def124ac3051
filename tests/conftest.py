"""Fixtures of every test: leaks are counted round each test, and a daemon is a fixture away."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from exit_status import pytest_sessionfinish, pytest_sessionstart  # noqa: F401 - hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from serving import Serving
    from trims_client import Session

    from trims.daemon.main import Daemon

#: ONNX Runtime reports usage to its maker unless disabled, and keeps a database open for it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
#: Daemons of tests open no ports; the tests of the endpoint beside a daemon say so.
os.environ["TRIMS_ENDPOINT"] = "no"
#: Environments that the user of this machine has made are none of the tests'.
os.environ["TRIMS_ENVIRONMENTS_DIR"] = "/nonexistent/environments"
#: bubblewrap, where `make clients-env` could fetch it and the machine has none.
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], str(Path(__file__).parents[1] / ".venv-clients" / "bin")])
#: A shell that starts the tests in the background ignores SIGINT for them, and nohup ignores SIGHUP. Every program that
#: a test starts would inherit that: these signals would have no effect on it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
_SETTLE_S = 30.0
#: Seconds for what a test has left to end by itself, before all garbage is walked.
_YOUNG_S = 1.0
#: Threads and descriptors that libraries keep for the life of the process, once used.
_LIBRARY_THREADS = ("pytest_timeout", "ThreadPoolExecutor-", "asyncio_")


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


#: gRPC's poller makes and keeps a pair of these at a moment of its own choosing. Ours are in the attach door, whose
#: own test counts them.
_LIBRARY_DESCRIPTORS = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")


#: File by which the kernel reports changes to the mount table; a process opens it once.
_KEPT_DESCRIPTOR = "/mountinfo"


def _threads() -> set[str]:
    return {
        f"{thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        if not thread.name.startswith(_LIBRARY_THREADS)
    }


def _children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found.update((task / "children").read_text().split())
        except FileNotFoundError:
            continue
    return found


#: Prefixes of the segments that daemons of this run may make; other daemons of this machine come and go as they like.
_prefixes: set[str] = set()


def _segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.partition(".")[0] in _prefixes}


def _snapshot() -> dict[str, set[str]]:
    return {
        "descriptor": {
            f"{fd} -> {target}"
            for fd, target in _descriptors().items()
            if target not in _LIBRARY_DESCRIPTORS and not target.endswith(_KEPT_DESCRIPTOR)
        },
        "thread": _threads(),
        "child process": _children(),
        "shared-memory name": _segments(),
    }


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Machines that lack pytest-timeout run the tests without: its setting is known all the same."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds for one test, with the plugin pytest-timeout")


@pytest.fixture(scope="session")
def real_device() -> str:
    """How the CUDA device of this machine is reached; skips without one, which `TRIMS_REQUIRE=gpu` makes a failure."""
    from trims.core.errors import NotSupportedError
    from trims.memory.cuda.connect import connect

    without = "CUDA sees no device"
    try:
        if connect("driver").devices():
            return "driver"
    except NotSupportedError as error:
        without = str(error)
    if "gpu" in os.environ.get("TRIMS_REQUIRE", "").split(","):
        pytest.fail(without)  # also of a test that may skip for another reason
    pytest.skip(without)


def _grpc_keeps_sockets() -> bool:
    """Old gRPC now and then keeps the socket of a call that failed; only the oldest versions we allow are that old."""
    return tuple(map(int, importlib.metadata.version("grpcio").split(".")[:2])) < (1, 70)


@pytest.fixture(autouse=True)
def leaks(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that leaves descriptors, threads, processes or shared-memory names behind."""
    # A CUDA driver opens descriptors when it likes and keeps them; tests on a device count the device's bytes.
    before = _snapshot()
    uncounted = request.node.get_closest_marker("gpu") or _grpc_keeps_sockets()
    counted = before.keys() - ({"descriptor"} if uncounted else set())
    gc.freeze()  # what is there already is no garbage of this test's: without, most of the time would go to walking it
    yield
    gc.collect()
    begun = time.monotonic()
    while True:
        after = _snapshot()
        left = {kind: after[kind] - before[kind] for kind in counted if after[kind] - before[kind]}
        if time.monotonic() > begun + _YOUNG_S:
            if gc.get_freeze_count():
                for record in caplog.get_records("call"):
                    record.exc_info = None  # an error's frames, with what they hold
                gc.unfreeze()  # perhaps something older became garbage in this test
                gc.collect()
            left = _without_grpcs_poller(left)
        if not any(left.values()):
            return
        if time.monotonic() > begun + _SETTLE_S:
            pytest.fail(f"{request.node.nodeid} leaked: {left}")
        time.sleep(0.01)  # ends of threads and processes are seen late, never missed


def _without_grpcs_poller(left: dict[str, set[str]]) -> dict[str, set[str]]:
    """gRPC for asyncio ends its poller, a thread with two sockets, when its last call is collected: perhaps late."""
    pollers = {thread for thread in left.get("thread", ()) if "(_poll_wrapper)" in thread}
    sockets = sorted(each for each in left.get("descriptor", ()) if " -> socket:" in each)[: 2 * len(pollers)]
    return {kind: found - pollers - set(sockets) for kind, found in left.items()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip is a failure where `TRIMS_REQUIRE` names the part that is missing: skips of a CI run are not read."""
    report = yield
    required = set(os.environ.get("TRIMS_REQUIRE", "").split(",")) - {""}
    missing = [mark for mark in required if item.get_closest_marker(mark)]
    if item.get_closest_marker("kernels") and "kernels" not in required:
        missing = []  # a framework that computes there is another part than the device
    # Of a bare machine with a device, a framework that is not installed is no fault; a refusal of trims's is.
    lacks_framework = item.get_closest_marker("kernels") and "missing framework: " in str(report.longrepr)
    if report.skipped and missing and not lacks_framework:
        report.outcome = "failed"
        report.longrepr = f"skipped, but TRIMS_REQUIRE asks for {', '.join(missing)}: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _libraries_are_warm() -> None:
    """gRPC opens descriptors of its own at first use and keeps them; have that happen before anything is counted."""
    from trims.daemon.config import build_config
    from trims.daemon.main import Daemon

    with tempfile.TemporaryDirectory(prefix="trims-w-") as made:
        settings = {"runtime_dir": f"{made}/run", "state_dir": f"{made}/state", "gpus": "none"}
        daemon = Daemon(build_config(settings, environment={}))
        daemon.start()
        daemon.stop()


@contextlib.contextmanager
def _short_folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="trims-t-"))
    yield made
    until = time.monotonic() + _SETTLE_S
    while True:
        try:
            shutil.rmtree(made)
            return
        except OSError as error:  # a detached keeper that ends writes its last file, or removes its socket, meanwhile
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > until:
                raise


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short-named folder: sockets have paths of at most 107 bytes, pytest's own folders are longer."""
    from trims.daemon.main import shm_prefix

    with _short_folder() as made:
        _prefixes.update(shm_prefix(made / state) for state in ("state", "state2"))
        yield made


@pytest.fixture(scope="module")
def module_folder() -> Iterator[Path]:
    """A short-named folder for all tests of a module; memory of daemons in it may outlive a test."""
    with _short_folder() as made:
        yield made


@pytest.fixture(scope="module")
def forked_starts() -> Iterator[None]:
    """Start Python processes of a module by forks of one that has imported the frameworks."""
    from forked_starts import forking

    with forking():
        yield


@pytest.fixture
def own_starts(forked_starts: None) -> Iterator[None]:
    """Start the processes of one test of such a module by themselves: for what depends on imports or their memory."""
    del forked_starts
    from forked_starts import not_forking

    with not_forking():
        yield


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., Daemon]]:
    """Start a daemon in this process with the settings given; ended, and its memory freed, after the test."""
    from trims.daemon.config import build_config
    from trims.daemon.main import Daemon, shm_prefix

    running: list[Daemon] = []

    def start(**settings: object) -> Daemon:
        values = {
            "runtime_dir": folder / "run",
            "state_dir": folder / "state",
            "cpu_capacity_bytes": "256MiB",
            "disk_capacity_bytes": "1GiB",
            "gpus": "none",
            "environments_dir": folder / "environments",
            "trust": "verified",  # what is served in place never comes to memory for its first reader
            "verify": True,
            **settings,
        }
        daemon = Daemon(build_config(values, environment={}))
        _prefixes.add(shm_prefix(daemon.config.state_dir))
        daemon.start()
        running.append(daemon)
        return daemon

    yield start
    for daemon in reversed(running):
        if not daemon.ended:
            daemon.ask_to_end(purge=True)
            daemon.stop()


@pytest.fixture(scope="module")
def module_daemon(module_folder: Path) -> Iterator[Serving]:
    """A daemon in a process of its own for all tests of a module, which look at it through its doors."""
    from serving import serving_in

    with serving_in(module_folder, TRIMS_CPU_CAPACITY_BYTES="256MiB", TRIMS_GPUS="none") as made:
        made.start()
        yield made


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    """A daemon with small tiers that checks its books after every event."""
    return serve()


@pytest.fixture
def own_files() -> Iterator[None]:
    """Files that only their owner may write to, as places in files need, whatever the mask of the shell is."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def cuda(folder: Path) -> Iterator[str]:
    """A fake device; what to call its driver."""
    from on_device import TOTAL_BYTES, UUID
    from trims_client.mapping.device import leave_devices

    from trims.memory.cuda.api import Device
    from trims.testing.fake_cuda import make_devices

    devices = folder / "cuda"
    devices.mkdir()
    yield make_devices(devices, [Device(UUID, "Fake", TOTAL_BYTES)])
    leave_devices()


@pytest.fixture
def serve_gpu(serve: Callable[..., Daemon], cuda: str) -> Callable[..., Daemon]:
    """Return a function that starts a daemon with a GPU tier on that device."""

    def start(**settings: object) -> Daemon:
        values = {"gpus": "auto", "cuda": cuda, "gpu_share": 1.0, "gpu_reserve_bytes": "48MiB", **settings}
        return serve(**values)

    return start


@pytest.fixture
def start_process(folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a daemon in a process of its own and wait until it answers; it kills itself at the moment named, if any."""
    from trims_client import connect

    from trims.core.errors import LostPeerError

    running: list[subprocess.Popen[bytes]] = []
    script = Path(__file__).parent / "support" / "dying_daemon.py"

    def start(moment: str = "", *settings: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), moment, str(folder / "run"), str(folder / "state"), *settings]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        running.append(process)
        until = time.monotonic() + 120
        while True:
            try:
                connect(folder / "run").close()
            except LostPeerError:
                assert process.poll() is None, "the daemon did not come up"
                assert time.monotonic() < until
                time.sleep(0.01)
            else:
                return process

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def session(daemon: Daemon) -> Iterator[Session]:
    """A client of that daemon."""
    from trims_client import connect

    with connect(daemon.config.runtime_dir) as made:
        yield made


def _checkpoints(folder: Path) -> Callable[..., Path]:
    import numpy as np
    from safetensors.numpy import save_file

    def write(name: str, tensors: dict[str, object] | None = None, nbytes: int = 4096) -> Path:
        path = folder / f"{name}.safetensors"
        seed = int.from_bytes(name.encode(), "big") % (1 << 32)
        made = tensors or {
            "weight": np.random.default_rng(seed).random(nbytes // 8, dtype=np.float64),
            "step": np.array(seed % 251, dtype=np.uint8),
        }
        save_file(made, path)
        return path

    return write


@pytest.fixture
def checkpoint(folder: Path) -> Callable[..., Path]:
    """Write a safetensors file: `checkpoint("a")`, or with tensors or a size in bytes."""
    return _checkpoints(folder)


@pytest.fixture(scope="module")
def module_checkpoint(module_folder: Path) -> Callable[..., Path]:
    """Write a safetensors file for all tests of a module."""
    return _checkpoints(module_folder)
