"""CloudEvents over HTTP in binary mode: attributes in headers `ce-*`, and the data as the body.

As https://github.com/cloudevents/spec (1.0.2) has it, with the HTTP binding. Structured mode and batches are refused.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from trims.core.errors import CallerError, NotOfferedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Media type of an event that is all in its body, and beginning of that of several.
_STRUCTURED = "application/cloudevents"
#: Media type that clients such as curl state where their user states none.
_UNASKED = "application/x-www-form-urlencoded"
_PREFIX = "ce-"
_VERSION = "1.0"
_REQUIRED = ("specversion", "id", "source", "type")
_NAME = re.compile(r"[a-z0-9]{1,64}")
_JSON = re.compile(r"(?i)(application|text)/([\w.-]+\+)?json\s*(;|\Z)")
_TEXT = re.compile(r"(?i)(text/|application/([\w.-]+\+)?xml\s*(;|\Z))")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


class CloudEvent(NamedTuple):
    """A CloudEvent without its data.

    Attributes:
        attributes: By name, without `ce-`; `datacontenttype` if the request has one.
        kind: What its data becomes: `json` (any value), `text`, or `bytes`.
    """

    attributes: dict[str, str]
    kind: str


def cloud_event(headers: Iterable[tuple[str, str]]) -> CloudEvent | None:
    """Return the CloudEvent that a request brings; None for a request that is no CloudEvent.

    Args:
        headers: Of the request, with names in lower case.

    Raises:
        CallerError: A required attribute is missing or empty, or one is there twice or has a name that none may have.
        NotOfferedError: It is in structured mode, or a batch, or of another version.
    """
    content_type, attributes = "", dict[str, str]()
    for name, value in headers:
        if name == "content-type":
            content_type = "" if value.lower() == _UNASKED else value
        elif name.startswith(_PREFIX):
            _add(attributes, name.removeprefix(_PREFIX), _decoded(value))
    if content_type.lower().startswith(_STRUCTURED):
        raise NotOfferedError(
            f"CloudEvents of the type {content_type!r:.80} are not taken; send one in binary mode: its attributes in "
            "headers ce-id, ce-source, ce-type and ce-specversion, its data as the body"
        )
    if not attributes:
        return None
    for name in _REQUIRED:
        if not attributes.get(name):
            raise CallerError(
                f"the CloudEvent has no header {_PREFIX}{name}; required are ce-{', ce-'.join(_REQUIRED)}"
            )
    if attributes["specversion"] != _VERSION:
        raise NotOfferedError(f"the CloudEvent has ce-specversion {attributes['specversion']!r:.40}; send {_VERSION}")
    if content_type:
        attributes["datacontenttype"] = content_type
    return CloudEvent(attributes, _kind(content_type))


def _add(attributes: dict[str, str], name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise CallerError(f"the header {_PREFIX}{name:.80} names no attribute of a CloudEvent: letters and digits, 64")
    if name in attributes:
        raise CallerError(f"the CloudEvent has the header {_PREFIX}{name} twice; send one")
    attributes[name] = value


def _decoded(value: str) -> str:
    """Return the value of a header as the binding writes it: perhaps in quotes, with bytes of UTF-8 by `%`."""
    quoted = _QUOTED.fullmatch(value)
    return unquote(re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value)


def _kind(content_type: str) -> str:
    if not content_type or _JSON.match(content_type):
        return "json"
    return "text" if _TEXT.match(content_type) else "bytes"


def response_headers(attributes: Mapping[str, str], function: str) -> dict[str, str]:
    """Return the headers of the CloudEvent that answers one with these attributes."""
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")
    return {
        "ce-specversion": _VERSION,
        "ce-id": str(uuid.uuid4()),
        "ce-source": f"/functions/{quote(function)}",
        "ce-type": f"{quote(attributes['type'], safe=_SAFE)}.response",
        "ce-time": now.replace("+00:00", "Z"),
    }


#: Characters that stand as they are in a header of a CloudEvent: what is printed of ASCII, but blank, quote and `%`.
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
