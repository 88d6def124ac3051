"""How far a warm request travels through our code, in all processes: calls, and files that they are in.

    python tools/request_path.py

A daemon and an endpoint are started as commands, each of which records its calls (`recorded_calls`); so does the
predictor, whose model does nothing else. Looked at are an open of a model with its close, within the half second in
which the daemon trusts its last look at the files, and behind it, and one `POST /v2/models/m/infer` of a model whose
last request is some seconds ago. Work in the background that falls into the
same moment counts as well, so the shortest of several tries is taken, once it was seen twice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import recorded_calls
import trims_client
from safetensors.numpy import save_file

from trims.control import admin
from trims.core.errors import DaemonAwayError
from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recorded_calls import Call

    from trims.control import Admin

_TOOLS = Path(__file__).parent
#: Tries at most, until the shortest was seen twice: work in the background may fall into some of them.
_TRIES = 8
_WAIT_S = 60.0
#: Seconds between two requests, after which a description would be old if it were asked for by time.
_PAUSE_S = 1.2
#: The client has its answer before the last call of a server is recorded.
_AFTER_NS = 20_000_000
_MANIFEST = """\
name: m
version: 1.0.0
artifact: {path: m.safetensors}
predictor: {call: "doubling:Doubling"}
inputs: [{name: x, dtype: FP64, shape: [-1]}]
"""
_PREDICTOR = """\
import sys
sys.path.append({tools!r})
import recorded_calls

class Doubling:
    def load(self, weights, context):
        recorded_calls.record({calls!r}, "predictor")

    def predict(self, inputs):
        return dict(y=inputs["x"] * 2)

    def unload(self):
        pass
"""
_BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [2], "data": [1.0, 2.0]}]})


class Paths(NamedTuple):
    """Calls of a warm open with its close, of one for which the files are looked at again, and of a warm request."""

    open: list[Call]
    look: list[Call]
    infer: list[Call]


def paths() -> Paths:
    """Start a daemon and an endpoint, look at a warm open and a warm request, and end both."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        calls, run = f"{folder}/calls", f"{folder}/run"
        save_file({"factor": np.zeros(8)}, f"{folder}/m.safetensors")
        Path(folder, "m.yaml").write_text(_MANIFEST)
        Path(folder, "doubling.py").write_text(_PREDICTOR.format(tools=str(_TOOLS), calls=calls))
        environment = {**os.environ, "TRIMS_RUNTIME_DIR": run, "TRIMS_STATE_DIR": f"{folder}/state"}
        stack.enter_context(_command(environment, calls, "daemon", "serve", "--gpus", "none", "--endpoint", "no"))
        daemon = stack.enter_context(admin(run))
        _until(lambda: _answers(daemon))
        daemon.add(f"{folder}/m.yaml")
        daemon.load("m")
        opened, looked = _open_paths(run, calls)
        arguments = ("--port", "0", "--grpc-port", "none", "--isolation", "process")
        stack.enter_context(_command(environment, calls, "endpoint", "endpoint", *arguments))
        _until(lambda: read_address(run))
        return Paths(opened, looked, _infer_path(run, calls))


def _open_paths(run: str, calls: str) -> tuple[list[Call], list[Call]]:
    with trims_client.connect(run) as session:

        def open_and_close() -> None:
            session.open("m").close()

        open_and_close()
        end = recorded_calls.record(calls, "client")
        try:
            opened = _shortest(open_and_close, calls, before=open_and_close)
            return opened, _shortest(open_and_close, calls, through="store/resolve/lookups.py")
        finally:
            end()


def _infer_path(run: str, calls: str) -> list[Call]:
    address = read_address(run)
    assert address is not None
    connection = http.client.HTTPConnection(address.url.partition("://")[2], timeout=_WAIT_S)

    def ask() -> None:
        connection.request("POST", "/v2/models/m/infer", _BODY)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body

    for _ in range(3):
        ask()
    with contextlib.closing(connection):
        return _shortest(ask, calls)


def _shortest(
    work: Callable[[], None], calls: str, *, before: Callable[[], None] | None = None, through: str = ""
) -> list[Call]:
    """Return the calls of the shortest try.

    Args:
        before: Done shortly before each try.
        through: End of the name of a file that a try must pass to count.
    """
    found: list[list[Call]] = []
    for _ in range(_TRIES):
        if [len(each) for each in found].count(min(map(len, found), default=0)) >= 2:
            break
        time.sleep(_PAUSE_S)
        if before is not None:
            before()
            time.sleep(4 * _AFTER_NS / 1e9)
        began_ns = time.monotonic_ns()
        work()
        ended_ns = time.monotonic_ns() + _AFTER_NS
        time.sleep(2 * _AFTER_NS / 1e9)
        taken = recorded_calls.read(calls, began_ns, ended_ns)
        if any(call.file.endswith(through) for call in taken):
            found.append(taken)
    assert found, f"no try passed {through or 'our code'}"
    return min(found, key=len)


@contextlib.contextmanager
def _command(environment: dict[str, str], calls: str, part: str, *arguments: str) -> Iterator[None]:
    line = [sys.executable, str(_TOOLS / "recorded_calls.py"), calls, part, *arguments]
    with Path(calls + part).open("wb") as log, subprocess.Popen(line, env=environment, stdout=log, stderr=log) as child:
        try:
            yield
        except BaseException:
            sys.stderr.write(Path(calls + part).read_text())
            raise
        finally:
            child.terminate()
            try:
                child.wait(_WAIT_S)
            finally:
                child.kill()


def _answers(daemon: Admin) -> bool:
    try:
        return daemon.status().health.status == "serving"
    except DaemonAwayError:
        return False


def _until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + _WAIT_S
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError("no daemon, or no endpoint, came up")
        time.sleep(0.05)


def files(calls: list[Call]) -> set[str]:
    """Return the files that calls are in."""
    return {call.file for call in calls}


def main() -> None:
    """Print both paths, and the numbers of each."""
    for name, calls in zip(Paths._fields, paths(), strict=True):
        print("\n".join(f"{call.part:10}{call.file}:{call.function}" for call in calls))
        parts = Counter(call.part for call in calls)
        print(f"{name}: {len(calls)} calls in {len(files(calls))} files; {dict(parts)}\n")


if __name__ == "__main__":
    main()
