"""One request from the command line: through an endpoint if there is one, else by a predictor of its own."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    BusyError,
    CallerError,
    DeadlineError,
    ModelNotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    PredictorError,
    TrimsError,
)
from trims.manifests.serving import TensorType
from trims.trace.spans import deepest, traceparent, tracestate
from trims_predictors.endpoint.json.requests import HEADER_LENGTH, answer_parameters, parse_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims_predictors.tensors import Tensor

    #: Makes the tensors of the request, once the model's inputs are known.
    MakeInputs = Callable[[Sequence[TensorType]], list[Tensor]]

#: Status -> error. Others are the predictor's.
_ERRORS: Mapping[int, type[TrimsError]] = {
    400: CallerError, 401: PermissionDeniedError, 403: PermissionDeniedError, 404: ModelNotFoundError,
    413: CallerError, 501: NotSupportedError, 503: BusyError, 504: DeadlineError,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a request.

    Attributes:
        parameters: Cold or warm, and the seconds of each stage; see docs/inference.md.
    """

    model: str
    version: str
    parameters: Mapping[str, Any]
    outputs: Sequence[Tensor]


class Away(Exception):  # noqa: N818 - no error by itself: the caller may go on without an endpoint
    """No endpoint listens there. Not of trims's tree: it never crosses a door."""


class HttpEndpoint:
    """An endpoint, as a client of one request sees it.

    Args:
        url: Such as `http://127.0.0.1:8000`.
        token: Bearer token; None for none.
        certificate: File with the certificate to trust, for TLS; None for those that the system trusts.
    """

    def __init__(self, url: str, token: str | None, certificate: str | None, deadline_s: float) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise CallerError(f"the endpoint {url!r:.200} is no URL such as http://127.0.0.1:8000")
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._deadline_s = deadline_s
        tls = ssl.create_default_context(cafile=certificate) if url.startswith("https:") else None
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        self._opener = urllib.request.build_opener(
            *handlers, *([] if tls is None else [urllib.request.HTTPSHandler(context=tls)])
        )

    def run(self, model: str, make: MakeInputs, deadline_s: float | None, place: str | None = None) -> Ran:
        """Send one request. Raises Away if nothing listens, else the error that the endpoint reports."""
        path = f"/v2/models/{urllib.parse.quote(model, safe='')}"
        body, length = request_body(make(self._types(path)), deadline_s, place)
        answer, header_length = self._ask(f"{path}/infer", body, {HEADER_LENGTH: str(length)})
        message, outputs = parse_answer(memoryview(answer), header_length)
        return Ran(str(message["model_name"]), str(message["model_version"]), message["parameters"], outputs)

    def repository(self, model: str, verb: str) -> None:
        """Have a model loaded or unloaded (`verb`) there. Raises as `run`."""
        self._ask(f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/{verb}", b"{}")

    def inputs_of(self, model: str) -> list[TensorType]:
        """Return a model's inputs. Raises as `run`."""
        return self._types(f"/v2/models/{urllib.parse.quote(model, safe='')}")

    def _types(self, path: str) -> list[TensorType]:
        """The model's inputs."""
        text = self._ask(path)[0]
        try:
            stated = json.loads(text)["inputs"]
            return [TensorType(each["name"], each["datatype"], tuple(each["shape"])) for each in stated]
        except (ValueError, KeyError, TypeError) as error:
            raise PredictorError(
                f"what listens at {self._url} is no endpoint of trims; name another one (--endpoint URL), or none"
            ) from error

    def events(self, path: str, order: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events that answer an order, each as it comes. Raises as `run`."""
        body = json.dumps(order).encode()
        with self._opened(path, body, {"Content-Type": "application/json"}) as answer:
            for line in answer:
                if (found := event_of(line)) is not None:
                    yield found

    def _ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, str | None]:
        with self._opened(path, body, headers) as answer:
            return answer.read(), answer.headers.get(HEADER_LENGTH)

    @contextlib.contextmanager
    def _opened(self, path: str, body: bytes | None, headers: Mapping[str, str] | None) -> Iterator[Any]:
        request = urllib.request.Request(  # noqa: S310 - its scheme was checked
            f"{self._url}{path}", body, {**self._headers, **(headers or {}), **_trace_headers()}
        )
        try:
            with self._opener.open(request, timeout=self._deadline_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                raise _error_of(error.code, error.read()) from error
        except TimeoutError as error:
            raise DeadlineError(f"the endpoint at {self._url} did not answer within {self._deadline_s:g} s") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                raise PermissionDeniedError(
                    f"the endpoint at {self._url} is not trusted: {error.reason}; name its certificate (--certificate)"
                ) from error
            if isinstance(error.reason, (BrokenPipeError, ConnectionResetError)) and body is not None:
                raise CallerError(
                    f"the endpoint at {self._url} hung up while {len(body):,} bytes were sent; if that is more than "
                    "its --max-body, send less or start it with more"
                ) from error
            if isinstance(error.reason, TimeoutError):
                raise DeadlineError(f"{self._url} could not be reached within {self._deadline_s:g} s") from error
            raise Away(f"no endpoint answers at {self._url}: {error.reason}") from error
        except (http.client.HTTPException, OSError) as error:
            raise PredictorError(f"the endpoint at {self._url} broke off: {error}") from error


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the JSON of a line of server-sent events, or None. Raises PredictorError for an event that is an error."""
    if not line.startswith(b"data:"):
        return None
    data = line.removeprefix(b"data:").strip()
    if data in (b"", b"[DONE]"):
        return None
    found: dict[str, Any] = json.loads(data)
    if "error" in found:
        error = found["error"]
        raise PredictorError(str(error.get("message", error) if isinstance(error, dict) else error))
    return found


def _trace_headers() -> dict[str, str]:
    """Return the headers by which the endpoint records the request as a part of this process's trace."""
    context = traceparent()
    return {} if context is None else {"traceparent": context, "tracestate": tracestate(deepest())}


def request_body(tensors: Sequence[Tensor], deadline_s: float | None, place: str | None = None) -> tuple[bytes, int]:
    """Return a request with binary tensors, and the length of its JSON."""
    inputs = [
        {
            "name": each.name, "datatype": each.dtype, "shape": list(each.shape),
            "parameters": {"binary_data_size": each.nbytes},
        }
        for each in tensors
    ]  # fmt: skip
    stated = {"deadline": deadline_s, "place": place}
    parameters = {"binary_data_output": True, **{name: each for name, each in stated.items() if each is not None}}
    header = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return b"".join((header, *(each.data for each in tensors))), len(header)


def _error_of(status: int, body: bytes) -> TrimsError:
    try:
        error = json.loads(body)["error"]
        message = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        message = f"the endpoint answered with status {status}"
    if status == 401:
        message += "; name the file that holds it (--token-file)"
    return _ERRORS.get(status, PredictorError)(message)


def run_alone(
    runtime_dir: str,
    picker: InterpreterSelection,
    model: str,
    make: MakeInputs,
    *,
    deadline_s: float | None,
    place: str | None = None,
) -> Ran:
    """Answer one request by a predictor that ends with it. Raises what `WorkerPool.infer` raises."""
    return asyncio.run(_run_alone(runtime_dir, picker, model, make, deadline_s=deadline_s, place=place))


async def _run_alone(
    runtime_dir: str,
    picker: InterpreterSelection,
    model: str,
    make: MakeInputs,
    *,
    deadline_s: float | None,
    place: str | None,
) -> Ran:
    from trims.control import aadmin
    from trims_predictors.deployment.deployment import Settings
    from trims_predictors.deployment.deployments import Deployments, keeping
    from trims_predictors.deployment.places import first_that_serves, parse_places
    from trims_predictors.pool.pool import WorkerPool

    places = () if place is None else parse_places(place)
    async with aadmin(runtime_dir) as daemon:
        pool = WorkerPool(Settings(runtime_dir, predictors=1, spares=0, plain_output=True))
        pool.keep = keeping(daemon)
        try:
            deployment = await Deployments(daemon, picker, pool.retire).of(model)
            tensors = make(pool.signatures.described(deployment)[0])
            _, answer = await first_that_serves(
                deployment, places, lambda here: pool.infer(here, tensors, queue_deadline_s=deadline_s)
            )
            return Ran(deployment.model, deployment.version, answer_parameters(answer), answer.outputs)
        finally:
            await pool.close()
