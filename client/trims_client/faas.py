"""Functions as platforms have them: `def handler(model, event)` in a file, with a model that is opened once.

The same file runs at `trims call`, which measures its cold and warm starts, and on a platform. There one line adapts
it: `lambda_handler` for those that call `(event, context)`, such as AWS Lambda, `wsgi` for those that send HTTP, such
as Knative, Cloud Run and OpenFaaS. The process needs the daemon's socket: mount its folder and name it in
`TRIMS_RUNTIME_DIR`.

Example:
    def handler(model, event):
        return {"tensors": len(model), "asked": event["text"]}

    lambda_function = trims.faas.lambda_handler(handler, "bert")
    print(lambda_function({"text": "hi"}, None))

`as_` says what the handler gets: `weights` (name -> read-only view), `torch` (a module in eval mode), `onnxruntime` (a
session), or `mxnet` (a gluon block).
"""

from __future__ import annotations

import atexit
import json
import threading
import traceback
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, PredictorError, TrimsError
from trims.core.functions import FORMS, raised
from trims_client.events import cloud_event, parse_event, response_headers
from trims_client.forks import adapt_in_children
from trims_client.session import connect

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from trims_client.session import Session
    from trims_client.weights import Weights

    Handler = Callable[[Any, Any], Any]
    #: A status, headers, and JSON or the error to report; None for an empty body.
    _Reply = tuple[str, dict[str, str], str | TrimsError | None]
    WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

#: Seconds to wait for a daemon that starts together with the function.
_WAIT_S = 30.0
_MOST_BYTES = 32 << 20
_AGAIN, _FAILED = "503 Service Unavailable", "500 Internal Server Error"


def check_form(as_: str) -> str:
    """Return `as_`, if it is one of `FORMS`. Raises CallerError."""
    if as_ not in FORMS:
        raise CallerError(f"as_ is {as_!r:.80}; a handler gets its model as {', '.join(FORMS)}")
    return as_


def model_as(weights: Weights, as_: str, threads: int | None = None) -> Any:
    """Return the model in the form that the handler gets.

    Args:
        weights: An attached model.
        as_: One of `FORMS`.
        threads: Threads of ONNX Runtime's sessions, which are made with a number; None for its own choice.

    Raises CallerError for another form, and what the function of `trims.torch`, `trims.onnxruntime` or MXNet raises.
    """
    check_form(as_)
    if as_ == "torch":
        from trims_client.frameworks import torch

        return torch.module(weights)
    if as_ == "mxnet":
        from trims_client.frameworks import mxnet

        return mxnet.block(weights)
    if as_ == "weights":
        return weights
    from trims_client.frameworks import onnxruntime

    if threads is None:
        return onnxruntime.session(weights)
    import onnxruntime as ort

    both = [ort.SessionOptions(), ort.SessionOptions()]
    for options in both:
        options.intra_op_num_threads = threads
    return onnxruntime.session(weights, session_options=both[0], packed_options=both[1])


def answer_text(answer: Any) -> str:
    """Return a handler's result as JSON. Raises PredictorError that says what JSON cannot hold."""
    try:
        return json.dumps(answer, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise PredictorError(
            f"the handler returned what JSON cannot hold: {error}; return text, numbers, lists and dicts (of an array "
            "`array.tolist()`)"
        ) from error


class Function:
    """A handler and its model, which is opened at the first event and stays open. Safe to use from several threads.

    A forked child opens the model for itself.

    Args:
        handler: Called as `handler(model, event)`.
        model: Name of a registered model; or the path of a checkpoint, as a `pathlib.Path`.
        as_: One of `FORMS`.
        place: Passed to `Session.open`.
        deadline_s: Passed to `Session.open`.
        runtime_dir: Folder of the daemon's sockets, as in `trims.connect`.
    """

    def __init__(
        self,
        handler: Handler,
        model: str | os.PathLike[str],
        *,
        as_: str = "weights",
        place: str | None = "auto",
        deadline_s: float | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._handler = handler
        self._name = model
        self._as = check_form(as_)
        self._place = place
        self._deadline_s = deadline_s
        self._runtime_dir = runtime_dir
        self._lock = threading.Lock()
        #: Session, weights and the handler's model, once it is open.
        self._opened: tuple[Session, Weights, Any] | None = None
        self._inherited: Any = None
        adapt_in_children(self)

    def open(self) -> None:
        """Open the model, if it is not open. Raises what `trims.connect` and `Session.open` raise, or `model_as`."""
        self._model()

    def __call__(self, event: Any) -> Any:
        """Answer one event."""
        return self._handler(self._model(), event)

    def _model(self) -> Any:
        opened = self._opened
        if opened is None:
            with self._lock:
                opened = self._opened = self._opened or self._open()
        return opened[2]

    def _open(self) -> tuple[Session, Weights, Any]:
        session = connect(self._runtime_dir, agent="function", wait_s=_WAIT_S)
        weights: Weights | None = None
        try:
            if isinstance(self._name, str):
                weights = session.open(self._name, place=self._place, deadline_s=self._deadline_s)
            else:
                weights = session.open_file(self._name, place=self._place, deadline_s=self._deadline_s)
            model = model_as(weights, self._as)
        except BaseException:
            if weights is not None:
                weights.close()
            session.close()
            raise
        atexit.register(self.close)
        return session, weights, model

    def close(self) -> None:
        """Let go of the model; the next event opens it again. Idempotent."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            atexit.unregister(self.close)
            session, weights, _ = opened
            weights.close()
            session.close()

    def after_fork(self) -> None:
        """Forget the parent's session in a forked child. Mappings stay, because the handler may keep views."""
        self._lock = threading.Lock()
        self._inherited, self._opened = self._opened, None


def lambda_handler(handler: Handler, model: str | os.PathLike[str], **settings: Any) -> Callable[[Any, Any], Any]:
    """Return the handler as a function of `(event, context)`. Open the model at once: platforms count that as start-up.

    Args:
        handler: Called as `handler(model, event)`; the context of the platform is not passed on.
        model: Passed to `Function`.
        **settings: Passed to `Function`.
    """
    function = Function(handler, model, **settings)
    function.open()

    def answer(event: Any, context: Any = None) -> Any:  # noqa: ARG001 - the platform's signature
        return function(event)

    return answer


def wsgi(handler: Handler, model: str | os.PathLike[str], **settings: Any) -> WsgiApplication:
    """Return the handler as a WSGI application: POST with JSON, or nothing, as the event; the answer is JSON.

    A CloudEvent, in binary or structured mode, is a dict of its attributes and `data`, as at `POST /functions/NAME`. It
    is answered by one in binary mode, or by 204 if the handler returns None.

    The model is opened at the first request, in the process that answers it, so servers may fork before. An error is
    `{"error": message}`: 400 if the event is no JSON or the handler raises CallerError, 503 if the request may succeed
    later, else 500. Of an exception of the handler, `raised` beside the message has type, message, file, line and
    function; its traceback goes to the server's log, and only there.

    Args:
        handler: Called as `handler(model, event)`.
        model: Passed to `Function`.
        **settings: Passed to `Function`.
    """
    function, name = Function(handler, model, **settings), getattr(handler, "__name__", "handler")

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, headers, told = _reply(function, name, environ)
        if told is None:
            start_response(status, [*headers.items()])
            return []
        body = (told if isinstance(told, str) else json.dumps(_failure(told))).encode()
        described = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Allow": "POST"}
        start_response(status, [*described.items(), *headers.items()])
        return [body]

    return application


def _reply(function: Function, name: str, environ: Mapping[str, Any]) -> _Reply:
    if environ["REQUEST_METHOD"] != "POST":
        return "405 Method Not Allowed", {}, CallerError("send the event as JSON, by POST")
    try:
        function.open()
    except TrimsError as error:  # also one of the caller's: that is this program, and not the request
        return (_AGAIN if error.retryable else _FAILED), {}, error
    try:
        return _answered(function, name, environ)
    except CallerError as error:
        return "400 Bad Request", {}, error
    except TrimsError as error:
        return (_AGAIN if error.retryable else _FAILED), {}, error
    except Exception as error:  # noqa: BLE001 - a handler may raise anything; the server goes on
        environ["wsgi.errors"].write("".join(traceback.format_exception(error)))
        found = raised(error)
        return _FAILED, {}, PredictorError(f"the handler raised {found}", raised=found)


def _answered(function: Function, name: str, environ: Mapping[str, Any]) -> _Reply:
    """Return the answer to a request. Raises what the handler raises, and CallerError for what is no event."""
    body = _body(environ)
    event = cloud_event(_headers(environ), body)
    if event is None:
        return "200 OK", {}, answer_text(function(parse_event(body)))
    answer = function(event.value())
    if answer is None:  # no event answers this one
        return "204 No Content", {}, None
    return "200 OK", response_headers(event.attributes, name), answer_text(answer)


def _headers(environ: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "content-type", environ.get("CONTENT_TYPE") or ""
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name.removeprefix("HTTP_").replace("_", "-").lower(), value


def _failure(error: TrimsError) -> dict[str, Any]:
    """Return what a client learns of an error, and of the exception of a handler that it comes from."""
    facts = {"raised": error.raised.facts()} if isinstance(error, PredictorError) and error.raised else {}
    return {"error": str(error), **facts}


def _body(environ: Mapping[str, Any]) -> bytes:
    """Return the body of a request. Raises CallerError for one that is too large, or of no stated length."""
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = -1
    if not 0 <= length <= _MOST_BYTES:
        raise CallerError(f"the event has {environ['CONTENT_LENGTH']!r:.40} bytes; {_MOST_BYTES} are the most")
    return bytes(environ["wsgi.input"].read(length))
