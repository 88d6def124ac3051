"""Functions: registered models whose predictor is a handler, called with an event and answering with JSON."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from trims_client.events import CloudEvent, parse_event

from trims.core.errors import CallerError, NotSupportedError
from trims_predictors.endpoint.json.text import SMALL_BYTES
from trims_predictors.endpoint.requests.infer_request import InferRequest, make_request
from trims_predictors.frameworks import ANSWER, AS, EVENT, HANDLER
from trims_predictors.tensors import Tensor, join_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trims.control import Model
    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.endpoint.observe.tracing import RequestSpan
    from trims_predictors.endpoint.service import Service

#: Headers of a request -> the parameter of an inference request that says the same.
OPTIONS = {"trims-deadline": "deadline", "trims-keep-alive": "keep_alive", "trims-priority": "priority"}
_PLACE = "trims-place"
#: All headers of that kind. No other is taken, and none at other routes.
HEADERS = (*OPTIONS, _PLACE)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def check_function(deployment: Deployment) -> None:
    """Raise CallerError for a model that is no function."""
    if deployment.how != HANDLER:
        raise _no_function(deployment.model)


def _no_function(name: str) -> CallerError:
    return CallerError(
        f"{name!r} is a model, and no function; ask it by POST /v2/models/{name}/infer, or register a function of it: "
        f"`trims add FILE.py --model {name}`"
    )


def event_request(event: memoryview | CloudEvent, headers: Iterable[tuple[str, str]]) -> InferRequest:
    """Return the request for a function's predictor.

    Args:
        event: A CloudEvent; or JSON, or nothing for `null`.
        headers: Request's headers, with names in lower case: they may have `OPTIONS`.

    Raises CallerError for an event that is no JSON, if that is small; the predictor looks at a large one. And for an
    option that has a value which is none of its own.
    """
    text = event.data if isinstance(event, CloudEvent) else event
    if len(text) <= SMALL_BYTES and not (isinstance(event, CloudEvent) and event.kind != "json"):
        parse_event(bytes(text))
    elements = event.elements() if isinstance(event, CloudEvent) else [bytes(event)]
    tensor = Tensor(EVENT, "BYTES", (len(elements),), join_bytes(elements), checked=True)
    return make_request([tensor], None, _options(headers), [{}], (), http=True)


def _options(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for header, value in headers:
        name = "place" if header == _PLACE else OPTIONS.get(header)
        if name is None:
            continue
        if name in found:
            raise CallerError(f"the request has the header {header} twice; send one")
        if name != "place" and not _NUMBER.fullmatch(value):
            raise CallerError(f"the header {header} is {value!r:.80}; it must be a number")
        found[name] = value if name == "place" else float(value) if "." in value else int(value)
    return found


class Functions:
    """Functions of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def listed(self) -> list[dict[str, str]]:
        """Return all functions; for a tenant those that it may open."""
        return [found for model in await self._service.models() if (found := _described(model))]

    async def call(self, name: str, asked: InferRequest, span: RequestSpan | None) -> tuple[memoryview, Answer]:
        """Return the JSON that a handler answers with, and the answer that it is in.

        Raises CallerError for a model that is no function, and what `Service.answer` raises.
        """
        await self._check(name)
        _, answer = await self._service.answer(name, "", asked, span)
        (output,) = (each for each in answer.outputs if each.name == ANSWER)
        return memoryview(output.data)[_LENGTH:], answer

    async def _check(self, name: str) -> None:
        """Raise CallerError for a model that is no function, also for one that nothing runs."""
        try:
            check_function(await self._service.deployment_now(name))
        except NotSupportedError as error:
            if all(each["name"] != name for each in await self.listed()):
                raise _no_function(name) from error
            raise


#: Bytes of the length before the one element of the output.
_LENGTH = len(join_bytes([b""]))


def _described(model: Model) -> dict[str, str]:
    """Return what is listed of a function; nothing of a model that is none."""
    predictor = model.manifest.get("predictor") or {}
    handler = predictor.get("handler")
    if not handler:
        return {}
    options = predictor.get("options") or {}
    return {
        "name": model.name,
        "model": str(model.manifest["artifact"].get("model") or model.name),
        "as": str(options.get(AS, "weights")),
        "handler": os.path.basename(str(handler)),
        "description": model.description,
    }
