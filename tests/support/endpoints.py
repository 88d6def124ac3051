"""An endpoint in a process of its own, and what depends on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from fleets import SUPPORT
from trims_predictors.tensors import join_bytes

if TYPE_CHECKING:
    from pathlib import Path

_TELLS_PORT = re.compile(r"://127\.0\.0\.1:(\d+)/v2")
_TELLS_GRPC_PORT = re.compile(r"gRPC at 127\.0\.0\.1:(\d+)")


class Endpoint:
    """`trims endpoint` for a daemon; its predictors find the classes of the tests."""

    def __init__(self, runtime_dir: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "trims.cli.main", "endpoint", "--port", "0", "--grpc-port", "0"]
        paths = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [*command, "--runtime-dir", str(runtime_dir), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.said: list[str] = []
        self.grpc_port = 0
        self.port = self._await_port()
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _await_port(self) -> int:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if found := _TELLS_GRPC_PORT.search(line):
                self.grpc_port = int(found[1])
            if found := _TELLS_PORT.search(line):
                return int(found[1])
        self.process.wait()
        self.process.stderr.close()
        raise AssertionError(f"the endpoint did not come up: {''.join(self.said)}")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def ask(self, method: str, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
        """One request in JSON: status and answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def metrics(self) -> dict[str, float]:
        """The page of metrics: series as it is written -> value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def infer(self, model: str, x: list[float], token: str = "", **parameters: object) -> tuple[int, Any]:
        """One row of numbers."""
        inputs = [{"name": "x", "datatype": "FP64", "shape": [len(x)], "data": x}]
        return self.ask("POST", f"/v2/models/{model}/infer", {"inputs": inputs, "parameters": parameters}, token)

    def infer_bytes(self, model: str, name: str, *elements: bytes) -> tuple[int, Any]:
        """Texts or images, one a row, after the JSON as binary data; the answer is JSON."""
        data = join_bytes(elements)
        described = {"datatype": "BYTES", "shape": [len(elements)], "parameters": {"binary_data_size": len(data)}}
        body = {"inputs": [{"name": name, **described}], "parameters": {"binary_data_output": False}}
        header = json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}/v2/models/{model}/infer"
        headers = {"Inference-Header-Content-Length": str(len(header))}
        try:
            with urllib.request.urlopen(urllib.request.Request(url, header + data, headers), timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def descendants(self) -> set[int]:
        """Templates, predictors and what they have started."""
        return descendants(self.process.pid)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return status


def descendants(pid: int) -> set[int]:
    """Return all processes below one."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            for child in map(int, file.read().split()):
                try:
                    found |= {child, *descendants(child)}
                except FileNotFoundError:
                    continue
    return found


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, also if it was not waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
