"""Starts of Python processes by a fork of one that has imported the frameworks, in place of seconds of imports each.

Inside `forking()` this process, and every daemon, endpoint and command that it starts with `python -m`, asks its own
fork server for what `subprocess` would start with `python -c` or `python -m`. Arguments, variables, folder and
descriptors are those of a real start. The new process is its starter's child: its first parent ends, and the starter
adopts it. A command with flags other than `-I`, such as `python -s -c`, is started as ever.
Not for tests of starts, of memory limits, of what is imported, or of what `ps` shows.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMPORTED = (
    "trims.daemon.main", "trims.control", "trims_client", "trims_predictors.endpoint.main",
    "trims_predictors.worker.worker", "trims_bench.evaluation.session", "trims_bench.evaluation.report.text",
    "asyncio", "numpy", "ml_dtypes", "safetensors.numpy", "onnxruntime", "sqlalchemy", "torch", "transformers",
    "transformers.pipelines", "transformers.models.bert.modeling_bert",
)  # fmt: skip
_PR_SET_CHILD_SUBREAPER, _MOST_BYTES, _HIGH_FD, _ADOPTION_S = 36, 1 << 20, 500, 30.0
_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _adopt(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


class _Server:
    """The fork server of one process, as that process sees it."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._lock = threading.Lock()

    def start(self, popen: Any, args: Any, *rest: Any) -> None:
        """Stand in for `Popen._execute_child`."""
        _, preexec, close_fds, pass_fds, cwd, env = rest[:6]
        shell, pipes, session = rest[8], rest[9:15], rest[20]
        command = [os.fspath(each) for each in args] if isinstance(args, (list, tuple)) else []
        isolated = command[1:2] == ["-I"]
        how = command[1 + isolated : 2 + isolated]
        if shell or preexec or not close_fds or command[:1] != [sys.executable] or how not in (["-c"], ["-m"]):
            _execute(popen, args, *rest)
            return
        given = os.environ if env is None else env
        targets = {number: fd if fd != -1 else number for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))}
        targets.update({fd: fd for fd in pass_fds})
        message = {
            "starter": os.getpid(), "command": command[1 + isolated :], "isolated": isolated,
            "cwd": os.fspath(cwd or os.getcwd()), "session": session, "fds": list(targets),
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in given.items()},
        }  # fmt: skip
        with self._lock:
            _adopt(True)
            try:
                socket.send_fds(self._door, [json.dumps(message).encode()], list(targets.values()))
                popen.pid = int(self._door.recv(100))
            finally:
                _adopt(False)
        popen._child_created = True
        popen._close_pipe_fds(*pipes)

    def use(self) -> None:
        """Have it start what this process starts."""
        subprocess.Popen._execute_child = functools.partialmethod(lambda popen, *given: self.start(popen, *given))  # type: ignore[attr-defined]


def _serve(door: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until the starter ends. Return the request in the new process, and nothing in this one."""
    while True:
        data, fds, _, _ = socket.recv_fds(door, _MOST_BYTES, 200)
        if not data:
            return None
        if (first := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            request: dict[str, Any] = json.loads(data)
            _await_adoption(request["starter"])
            door.send(str(os.getpid()).encode())
            _place(dict(zip(request["fds"], fds, strict=True)))
            return request
        os.waitpid(first, 0)
        for fd in fds:
            os.close(fd)


def _await_adoption(starter: int) -> None:
    until = time.monotonic() + _ADOPTION_S
    while os.getppid() != starter:
        if time.monotonic() > until:
            os._exit(70)
        time.sleep(0.0005)


def _place(targets: dict[int, int]) -> None:
    """Give descriptors the numbers that the starter named, and close all others."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD) for number, fd in targets.items()}
    os.closerange(3, _HIGH_FD)
    for number, fd in high.items():
        os.dup2(fd, number)
    os.closerange(_HIGH_FD, max(high.values()) + 1)


def _serve_and_run(door: socket.socket) -> None:
    """Fork until the starter ends, and run in each fork what was asked for; none comes back from here."""
    status: Any = 0
    try:
        if (request := _serve(door)) is not None:
            _run(request)
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException as error:
        traceback.print_exc()
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status == -signal.SIGINT:  # an interpreter ends by the signal, too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)  # the frameworks' objects are not torn down: that takes half a second


def _run(request: dict[str, Any]) -> None:
    """Run what a request asks for, in the process that was forked for it."""
    if request["session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    how, what, *arguments = request["command"]
    if how == "-m":
        _use_own()
    # Blocked until here: the interpreter's own work after a fork would swallow a KeyboardInterrupt.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own = [] if request["isolated"] else ["" if how == "-c" else request["cwd"], *given]
    sys.path[:] = [*own, *sys.path[1:]]
    if how == "-m":
        sys.argv[:] = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = ["-c", *arguments]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)


def _use_own() -> None:
    """Give this process a fork server of its own, a copy of it as it is now."""
    ours, starters = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        starters.close()
        null = os.open(os.devnull, os.O_RDWR)
        _place({0: null, 1: null, 2: 2, ours.fileno(): ours.fileno()})
        _serve_and_run(ours)
    ours.close()
    _Server(starters).use()


@functools.cache
def _server() -> _Server:
    """The fork server of this process: started once, and ended with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.set_inheritable(True)
    # Threads at imports would not be in the forks, and one artifact makes one image in all of them.
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | quiet
    os.posix_spawn(sys.executable, [sys.executable, __file__, str(theirs.fileno())], env)
    theirs.close()
    return _Server(ours)


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Start Python processes by forks for a block."""
    _server().use()
    try:
        yield
    finally:
        subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]


@contextlib.contextmanager
def not_forking() -> Iterator[None]:
    """Start processes as ever for a block inside one that starts them by forks."""
    subprocess.Popen._execute_child = _execute  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _server().use()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    for each in _IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(each)
    gc.collect()
    gc.freeze()
    _serve_and_run(socket.socket(fileno=int(sys.argv[1])))
