"""One function in one fresh process: measuring must not share an interpreter with who drives it.

    python -m trims_bench.child trims_bench.scenarios.client:opens '{"runtime_dir": "..."}'

calls the function with the object's members and prints what it returns as one JSON line. A generator function goes on
beside what is measured: what it yields first is printed at once. Each line of input, a JSON object, is sent into it,
and what it yields then is printed; at the end of its input it is sent None, for the last time. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from trims.process.python import run_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

_ERROR_TAIL = 3000
_MARK = "result "
_END_S = 30.0
#: Signals that wait, behind a 0; empty outside of all blocks.
_held: list[int] = []


class ChildError(Exception):
    """A measuring process failed; the message carries its last words."""


def environment() -> dict[str, str]:
    """Return the environment of all sides: bytecode is used, nothing is fetched or reported over the network."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def call(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Run a module's function in a fresh process.

    Args:
        function: Function of a module that the process can import.
        python: Interpreter; this one by default.
        env: All environment variables; `environment()` by default.

    Raises:
        ChildError: The function raised, or the process died.
    """
    name = f"{function.__module__}:{function.__name__}"
    done = subprocess.run(
        run_module("trims_bench.child", name, json.dumps(given), python=python or ""),
        capture_output=True,
        text=True,
        check=False,
        env=environment() if env is None else env,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    raise ChildError(f"{name} ended with status {done.returncode}: {done.stderr.strip()[-_ERROR_TAIL:]}")


def end_by_signals() -> None:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C would: daemons and folders of its blocks do not stay."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Have those signals wait for the end of the block: no block ends a process that is just being started."""
    _held.append(0)
    try:
        yield
    finally:
        number = max(_held)
        _held.clear()
    if number:
        raise SystemExit(128 + number)


def _leave(number: int, _frame: object) -> None:
    if not _held:
        raise SystemExit(128 + number)
    _held.append(number)


def end(process: subprocess.Popen[Any], grace_s: float) -> None:
    """Ask a process that leads a session to end, and kill what is left of its group after some seconds."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Started:
    """A generator function in a process of its own: see `started`."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name

    def result(self) -> Any:
        """Return the value that the function yields next, once it is there. Raises ChildError if the process ends."""
        assert self._process.stdout is not None, "a pipe"
        said = []
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return json.loads(line.removeprefix(_MARK))
            said.append(line)
        raise ChildError(f"{self._name} ended without a result: {''.join(said).strip()[-_ERROR_TAIL:]}")

    def ask(self, given: Mapping[str, Any]) -> None:
        """Send it an object; `result` gives what it yields then."""
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """Have the function come to its end; return the value that it yields then."""
        assert self._process.stdin is not None, "a pipe"
        self._process.stdin.close()
        return self.result()


@contextmanager
def started(
    function: Callable[..., Iterator[Any]],
    given: Mapping[str, Any],
    *,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """Begin a module's generator function in a fresh process, which is gone after the block.

    Args:
        function: Function of a module that the process can import. It yields twice; before the second time it waits for
            nothing.
        python: Interpreter; this one by default.
        env: All environment variables; `environment()` by default.
    """
    name = f"{function.__module__}:{function.__name__}"
    process = subprocess.Popen(
        run_module("trims_bench.child", name, json.dumps(given), python=python or ""),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment() if env is None else env,
    )
    try:
        yield Started(process, name)
    except BaseException:
        process.kill()
        raise
    finally:
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """Run the function that the command line names, and write its results to standard output."""
    module, _, function = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(sys.argv[2]))
    if not isinstance(result, GeneratorType):
        _tell(result)
        return
    _tell(next(result))
    for line in sys.stdin:
        _tell(result.send(json.loads(line)))
    _tell(next(result))


def _tell(result: Any) -> None:
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
