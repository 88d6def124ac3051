"""Events of functions: JSON, and CloudEvents over HTTP. Whatever runs a handler reads its events here.

A CloudEvent comes in binary mode (attributes in headers `ce-*`, the data as the body) or in structured mode (all of it
as a JSON object), as https://github.com/cloudevents/spec (1.0.2) has it, with the HTTP binding and the JSON format. The
handler gets one dict for both: the attributes as text, and `data`. Batches and formats beside JSON are refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import CallerError, NotOfferedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Beginning of the media types of events that are all in their body, and the one that is read.
_IN_BODY, _STRUCTURED = "application/cloudevents", re.compile(r"(?i)application/cloudevents\+json\s*(;|\Z)")
#: Media type that clients such as curl state where their user states none, and what it is taken for: what is typed
#: there is JSON.
_UNASKED, _TYPED = "application/x-www-form-urlencoded", "application/json"
_PREFIX = "ce-"
_VERSION = "1.0"
_REQUIRED = ("specversion", "id", "source", "type")
#: Names of attributes. The specification keeps `data` for the data.
_NAME = re.compile(r"(?!data\Z)[a-z0-9]{1,64}")
_JSON = re.compile(r"(?i)(application|text)/([\w.-]+\+)?json\s*(;|\Z)")
_TEXT = re.compile(r"(?i)(text/|application/([\w.-]+\+)?xml\s*(;|\Z))")
_CHARSET, _UTF_8 = re.compile(r'(?i);\s*charset\s*=\s*"?([^\s;"]*)'), ("utf-8", "utf8", "us-ascii")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def parse_event(text: bytes) -> Any:
    """Parse JSON as an event; empty text is None. Raises CallerError."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise CallerError(f"the event is no JSON: {error}") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number that JSON has; write null, or text")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


class CloudEvent(NamedTuple):
    """A CloudEvent.

    Attributes:
        attributes: Values by name, without `ce-`; `datacontenttype` if the event states one.
        kind: What its data becomes: one of `KINDS`.
        data: Content in the form of its content type.
    """

    attributes: dict[str, str]
    kind: str
    data: bytes | memoryview = b""

    def elements(self) -> list[bytes]:
        """Return the parts that make it up, as predictors of handlers take them: `CloudEvent.of` reads them."""
        return [json.dumps(self.attributes).encode(), self.kind.encode(), bytes(self.data)]

    @classmethod
    def of(cls, attributes: bytes, kind: bytes, data: bytes) -> CloudEvent:
        """Return the CloudEvent of its parts. Raises CallerError."""
        stated, name = parse_event(attributes), kind.decode("ascii", "replace")
        if not isinstance(stated, dict) or name not in KINDS:
            raise CallerError(f"the event is no CloudEvent: an object of attributes, one of {', '.join(KINDS)}, data")
        return cls(stated, name, data)

    def value(self) -> dict[str, Any]:
        """Return what a handler gets. Raises CallerError for data that is not what its content type says."""
        return {**self.attributes, "data": KINDS[self.kind](bytes(self.data))}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CallerError(f"the event's data is no text in UTF-8: {error}") from error


#: How data of each kind becomes a value.
KINDS: Mapping[str, Callable[[bytes], Any]] = {"json": parse_event, "text": _text, "bytes": bytes}


def is_structured(headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a request brings a CloudEvent in structured mode, by its headers with names in lower case."""
    return any(name == "content-type" and _STRUCTURED.match(value) for name, value in headers)


def cloud_event(headers: Iterable[tuple[str, str]], body: bytes | memoryview) -> CloudEvent | None:
    """Return the CloudEvent that a request brings; None for a request that is no CloudEvent.

    Args:
        headers: Request's headers, with names in lower case.
        body: Request's body. In binary mode nothing but its length is looked at.

    Raises:
        CallerError: A required attribute is missing or empty, or one is there twice, has a name that none may have or a
            value that none has; or the body is no event in structured mode.
        NotOfferedError: The event is a batch, of another format than JSON, or of another version; or its data is text
            that is not in UTF-8.
    """
    headers = list(headers)
    if is_structured(headers):  # headers `ce-*` may repeat what the body says
        return structured_event(body)
    content_type, attributes = "", dict[str, str]()
    for name, value in headers:
        if name == "content-type":
            content_type = value.strip()
        elif name.startswith(_PREFIX):
            _add(attributes, name.removeprefix(_PREFIX), _decoded(value.strip()))
    if content_type.lower().startswith(_IN_BODY):
        raise NotOfferedError(
            f"CloudEvents of the type {content_type!r:.80} are not taken; send one at a time, in binary mode or as "
            "application/cloudevents+json"
        )
    if not attributes:
        return None
    _check_required(attributes, f"header {_PREFIX}")
    if content_type.lower() == _UNASKED:
        return CloudEvent(attributes, _kind(_TYPED), body)
    if content_type:
        attributes["datacontenttype"] = content_type
    return CloudEvent(attributes, _kind_of_bytes(content_type, body), body)


def structured_event(body: bytes | memoryview) -> CloudEvent:
    """Return the CloudEvent that is the whole body, as JSON. Raises as `cloud_event`."""
    stated = parse_event(bytes(body))
    if not isinstance(stated, dict):
        raise CallerError(
            "the event is no CloudEvent: in structured mode it is a JSON object with the attributes "
            f"{', '.join(_REQUIRED)}; one whose body is its data alone is sent in binary mode, with headers {_PREFIX}*"
        )
    data, packed = stated.pop("data", None), stated.pop("data_base64", None)
    attributes = {name: _attribute(name, value) for name, value in stated.items() if value is not None}
    _check_required(attributes, "attribute ")
    content_type = attributes.get("datacontenttype", "")
    if packed is None:
        kind = _kind(content_type or _TYPED)  # as the JSON format has it
        return CloudEvent(attributes, kind, _stated_data(data, kind))
    if data is not None:
        raise CallerError("the CloudEvent has data and data_base64; send one of them")
    unpacked = _unpacked(packed)
    return CloudEvent(attributes, _kind_of_bytes(content_type, unpacked), unpacked)


def _attribute(name: str, value: object) -> str:
    """Return the value of an attribute as text, as binary mode has it."""
    if not _NAME.fullmatch(name):
        raise CallerError(f"the CloudEvent has {name!r:.80}, which names no attribute: lower-case letters and digits")
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise CallerError(f"the CloudEvent's attribute {name} is {value!r:.80}; send text, a whole number or a boolean")
    return str(value)


def _stated_data(data: object, kind: str) -> bytes:
    """Return the `data` of an event as its content type has it."""
    if data is None:
        return b""
    if kind == "json":
        return json.dumps(data).encode()
    try:
        if isinstance(data, str):
            return data.encode()
    except UnicodeEncodeError as error:
        raise CallerError(f"the CloudEvent's data is no text in UTF-8: {error}") from error
    raise CallerError("the CloudEvent's datacontenttype is not JSON and its data no text; send text, or data_base64")


def _unpacked(packed: object) -> bytes:
    import base64

    try:
        if isinstance(packed, str):
            return base64.b64decode(packed, validate=True)
    except ValueError as error:
        raise CallerError(f"the CloudEvent's data_base64 is no base64: {error}") from error
    raise CallerError(f"the CloudEvent's data_base64 is {packed!r:.80}; send text in base64")


def _check_required(attributes: Mapping[str, str], what: str) -> None:
    for name in _REQUIRED:
        if not attributes.get(name, "").strip():
            raise CallerError(f"the CloudEvent has no {what}{name}; required are {', '.join(_REQUIRED)}")
    if attributes["specversion"] != _VERSION:
        given = attributes["specversion"]
        raise NotOfferedError(f"the CloudEvent has the {what}specversion {given!r:.40}; send {_VERSION}")


def _add(attributes: dict[str, str], name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise CallerError(f"the header {_PREFIX}{name:.80} names no attribute of a CloudEvent: letters and digits, 64")
    if name in attributes:
        raise CallerError(f"the CloudEvent has the header {_PREFIX}{name} twice; send one")
    attributes[name] = value


def _decoded(value: str) -> str:
    """Return the value of a header as the binding writes it: perhaps in quotes, with bytes of UTF-8 by `%`."""
    from urllib.parse import unquote  # a function's cold start pays for each import

    quoted = _QUOTED.fullmatch(value)
    return unquote(re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else value)


def _kind_of_bytes(content_type: str, data: bytes | memoryview) -> str:
    """Return what data becomes that came as bytes; no type is stated for an empty `content_type`.

    Raises NotOfferedError for text in another charset than UTF-8.
    """
    if not content_type:
        return "bytes" if len(data) else "json"  # which has None for no data
    kind = _kind(content_type)
    if kind == "text" and (stated := _CHARSET.search(content_type)) and stated[1].lower() not in _UTF_8:
        raise NotOfferedError(f"the CloudEvent's data has the charset {stated[1]!r:.40}; send text in UTF-8")
    return kind


def _kind(content_type: str) -> str:
    if _JSON.match(content_type):
        return "json"
    return "text" if _TEXT.match(content_type) else "bytes"


def response_headers(attributes: Mapping[str, str], function: str) -> dict[str, str]:
    """Return the headers of the CloudEvent, in binary mode, that answers one with these attributes."""
    import datetime as dt
    import uuid
    from urllib.parse import quote

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
