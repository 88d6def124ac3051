"""An endpoint of one's own, in a process of its own, and requests to it in binary. Standard library only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

from trims.core.errors import PredictorError
from trims.process.python import run_module
from trims.wire.endpoint_file import ERROR_FILE, EndpointAddress, read_address, read_text
from trims_bench.child import end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from typing_extensions import Self

_LENGTH = "Inference-Header-Content-Length"
_START_S = 120.0
#: Seconds for its predictors to end, more than it gives running requests.
_END_S = 45.0
#: Seconds in which an endpoint has to have what is waited for.
_CALM_S = 120.0
_POLL_S = 0.02
_LAST_WORDS = 2000

#: Name -> data type, shape and bytes.
Inputs = dict[str, tuple[str, tuple[int, ...], bytes]]


def as_inputs(arrays: Mapping[str, Any]) -> Inputs:
    """Return numpy's arrays, float32 or int64, as the inputs of a request."""
    types = {"float32": "FP32", "int64": "INT64"}
    return {name: (types[array.dtype.name], array.shape, array.tobytes()) for name, array in arrays.items()}


def in_binary(inputs: Inputs, **parameters: object) -> tuple[bytes, dict[str, str]]:
    """Return the body of a request with binary tensors, and its headers."""
    described = [
        {"name": name, "datatype": dtype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, (dtype, shape, data) in inputs.items()
    ]
    header = json.dumps({"inputs": described, "parameters": {"binary_data_output": True, **parameters}}).encode()
    return b"".join((header, *(data for _, _, data in inputs.values()))), {_LENGTH: str(len(header))}


class EndpointError(Exception):
    """The endpoint refused a request, or is not in time; the message carries its words."""


class EndpointClient:
    """One connection to an endpoint, kept alive; for one thread.

    Args:
        port: Where the endpoint listens on this machine.
    """

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def infer(self, model: str, inputs: Inputs, **parameters: object) -> tuple[dict[str, Any], bytes]:
        """One request; returns the answer's JSON and the bytes of its outputs. Raises EndpointError."""
        body, headers = in_binary(inputs, **parameters)
        self._connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise EndpointError(f"{model}: {answer.status} {content[:2000].decode(errors='replace')}")
        end = int(answer.headers[_LENGTH])
        return json.loads(content[:end]), content[end:]

    def state(self) -> dict[str, Any]:
        """Return the answer of `GET /state`."""
        self._connection.request("GET", "/state")
        found: dict[str, Any] = json.loads(self._connection.getresponse().read())
        return found

    def close(self) -> None:
        """Hang up; the next request connects again."""
        self._connection.close()


class EndpointProcess:
    """`trims endpoint`, for the length of a `with` block; it ends with this process, however that ends.

    Clients of the daemon do not find it. Raises PredictorError with its words if it does not start.

    Args:
        runtime_dir: Folder of the sockets of the daemon whose models it serves.
        arguments: Flags of `trims endpoint`.
        variables: Added to its environment.

    Attributes:
        url: Address for HTTP.
        port: Where it listens on this machine.
        grpc_port: Port for gRPC; 0 without the flag `--grpc-port`.
    """

    url = ""
    port = grpc_port = 0

    def __init__(self, runtime_dir: str | Path, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(variables or {})}
        self._command = run_module(
            "trims.cli.main", "endpoint", "--runtime-dir", str(runtime_dir), "--port", "0", "--grpc-port", "none",
            "--supervised", *arguments,
        )  # fmt: skip

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trims-endpoint-"))
            self._log = os.path.join(folder, "log")
            with open(self._log, "wb") as log:
                # In a session of its own: Ctrl-C is for this program, which reports what there is and then ends it.
                self._process = subprocess.Popen(
                    [*self._command, "--address-dir", folder], stdin=subprocess.PIPE, stdout=log, stderr=log,
                    start_new_session=True, env=self._environment,
                )  # fmt: skip
            assert self._process.stdin is not None, "a pipe"
            stack.callback(self._process.stdin.close)
            stack.callback(end, self._process, _END_S)
            address = self._await_address(folder)
            self.url, self.port = address.url, int(address.url.rpartition(":")[2])
            self.grpc_port = int(address.grpc.rpartition(":")[2] or 0)
            self._client = EndpointClient(self.port)
            stack.callback(self._client.close)
            self._ending = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def pid(self) -> int:
        """Return the number of the endpoint's process."""
        return self._process.pid

    def _await_address(self, folder: str) -> EndpointAddress:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process.poll() is None:
            if found := read_address(folder):
                return found
            time.sleep(_POLL_S)
        words = read_text(os.path.join(folder, ERROR_FILE)) or self._last_words()
        what = f"did not start within {_START_S:g} s" if self._process.poll() is None else "did not start"
        raise PredictorError(f"the endpoint {what}: {words or 'it said nothing'}")

    def _last_words(self) -> str:
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return log.read().strip()[-_LAST_WORDS:]

    def infer(self, model: str, inputs: Inputs, **parameters: object) -> tuple[dict[str, Any], bytes]:
        """See `EndpointClient.infer`."""
        return self._client.infer(model, inputs, **parameters)

    def state(self) -> dict[str, Any]:
        """See `EndpointClient.state`."""
        return self._client.state()

    def await_spare(self, framework: str, model: str) -> None:
        """Wait until no predictor of the model runs, a spare is ready and no template learns. Raises EndpointError."""
        self.await_state(
            lambda state: (
                model not in state["models"] and framework not in state["learning"] and state["spares"].get(framework)
            )
        )

    def await_hot_spare(self, model: str) -> None:
        """Wait until no predictor of the model runs and a hot spare waits. Raises EndpointError."""
        self.await_state(lambda state: model not in state["models"] and state["hot"].get(model))

    def await_calm(self) -> None:
        """Wait until no template learns. Raises EndpointError."""
        self.await_state(lambda state: not state["learning"])

    def await_state(self, is_so: Callable[[dict[str, Any]], object]) -> float:
        """Wait until the state is one wanted; return the seconds. Raises EndpointError."""
        began = time.monotonic()
        while not is_so(state := self.state()):
            if time.monotonic() - began > _CALM_S:
                raise EndpointError(f"no calm after {_CALM_S:g} s: {state}; {self._last_words()}")
            time.sleep(_POLL_S)
        return time.monotonic() - began


def environment_of(mxnet: Path | None) -> list[str]:
    """Flags for the MXNet environment, if there is one."""
    return ["--environments", f"mxnet={os.fspath(mxnet)}"] if mxnet is not None else []
