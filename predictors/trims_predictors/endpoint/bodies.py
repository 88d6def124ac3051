"""Bodies of HTTP requests: read up to a limit, and unpacked up to the same limit."""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims.core.units import format_bytes
from trims_predictors.endpoint.json.text import SMALL_BYTES, load_json
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

#: Content-Encoding -> what zlib needs to know.
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

#: The coding that changes nothing.
_PLAIN = "identity"
#: Codings that a client may name.
_MOST_CODINGS = 32
_WEIGHT = re.compile(r"0(\.[0-9]{0,9})?|1(\.0{0,9})?")

#: Packed bytes that are read at once: what follows a member among them is copied.
_SLICE_BYTES = 1 << 20
#: Members of one gzip body, at most.
_MOST_MEMBERS = 1024


class TooLargeBodyError(Exception):
    """A body is larger than the endpoint takes. Not of trims's tree: it never crosses a door."""


async def read_body(request: Request, most_bytes: int) -> memoryview:
    """The body of a request, unpacked. Raises TooLargeBodyError, CallerError for a broken or unknown encoding.

    Unpacking runs in a thread: few bytes may stand for many.
    """
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > most_bytes:
        raise _too_large(most_bytes)
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > most_bytes:
            raise _too_large(most_bytes)
        parts.append(part)
    if total > COPIED_AT_ONCE_BYTES:
        body = await asyncio.to_thread(b"".join, parts)
    else:
        body = b"".join(parts)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        body = await asyncio.to_thread(_unpack, body, encoding, most_bytes)
    return memoryview(body)


async def read_object(request: Request, most_bytes: int) -> dict[str, Any]:
    """The body of a request as a JSON object; nothing is an empty one. Raises as `read_body`, and CallerError.

    It has no more than SMALL_BYTES, whatever the limit.
    """
    body = bytes(await read_body(request, min(most_bytes, SMALL_BYTES)))
    message = load_json(body) if body.strip() else {}
    if not isinstance(message, dict):
        raise CallerError(f"the request must be an object, not {message!r:.80}")
    return message


def _unpack(body: bytes, encoding: str, most_bytes: int) -> bytes:
    if encoding not in _WINDOWS:
        raise CallerError(f"the Content-Encoding {encoding!r:.40} is not known; {', '.join(_WINDOWS)} are")
    view, at, parts, left = memoryview(body), 0, [], most_bytes
    for _ in range(_MOST_MEMBERS):  # gzip may come in several, one after the other
        unpacker = zlib.decompressobj(_WINDOWS[encoding])
        while at < len(view) and not unpacker.eof:
            try:
                parts.append(unpacker.decompress(view[at : at + _SLICE_BYTES], left + 1))
            except zlib.error as error:
                raise CallerError(f"the body is not {encoding}: {error}") from error
            at += min(_SLICE_BYTES, len(view) - at)
            left -= len(parts[-1])
            if left < 0:
                raise _too_large(most_bytes)
        if not unpacker.eof:
            raise CallerError(f"the {encoding} body ends in the middle")
        at -= len(unpacker.unused_data)
        if at == len(view):
            return b"".join(parts)
        if encoding != "gzip":
            raise CallerError(f"{len(view) - at} bytes follow the {encoding} body")
    raise CallerError(f"the gzip body has more than {_MOST_MEMBERS} members; pack it as one")


def _too_large(most_bytes: int) -> TooLargeBodyError:
    raised_by = "" if most_bytes == SMALL_BYTES else " (--max-body)"
    return TooLargeBodyError(
        f"the body is larger than {format_bytes(most_bytes)}, the most this endpoint takes{raised_by}"
    )


def accepted_coding(request: Request) -> str | None:
    """The Content-Encoding that a client likes best (RFC 9110, 12.5.3); None for the body as it is.

    Raises CallerError if none that the endpoint has is accepted. A client that prefers a packing which the endpoint
    lacks gets the body as it is.
    """
    accepted = ",".join(request.headers.getlist("accept-encoding"))
    weights = _weights(accepted)
    others = weights.pop("*", None)
    plain = weights.get(_PLAIN, others)  # None: not named, and taken if nothing else can be had
    ours = max((each for each in weights if each in _WINDOWS), key=weights.__getitem__, default=_PLAIN)
    if ours != _PLAIN and weights[ours] > 0:
        liked = max(weights, key=weights.__getitem__)  # the first of those that weigh the same
        if ours == liked or (plain is not None and weights[ours] > plain):
            return ours
    if plain is None or plain > 0:
        return None
    for name in _WINDOWS:
        if weights.get(name, others or 0.0) > 0:
            return name
    raise CallerError(
        f"the header Accept-Encoding, {accepted!r:.80}, takes no coding of {', '.join(_WINDOWS)} and {_PLAIN}; "
        "accept one of them"
    )


def _weights(accepted: str) -> dict[str, float]:
    """The weight of each coding that a client names, 1 if it names none."""
    members = accepted.split(",", maxsplit=_MOST_CODINGS)
    if len(members) > _MOST_CODINGS:
        raise CallerError(f"the header Accept-Encoding names more than {_MOST_CODINGS} codings")
    found: dict[str, float] = {}
    for member in members:
        name, _, rest = member.partition(";")
        name, weight = name.strip().lower().removeprefix("x-"), rest.partition("=")
        if name:
            stated = weight[2].strip() if weight[0].strip().lower() == "q" else "1"
            if not _WEIGHT.fullmatch(stated):
                raise CallerError(f"the header Accept-Encoding has the weight {stated!r:.40}; weights are 0 to 1")
            found[name] = float(stated)
    return found


def pack(parts: Iterable[memoryview], coding: str) -> bytes:
    """The body of these parts in a Content-Encoding."""
    body = b"".join(parts)
    return gzip.compress(body, 1) if coding == "gzip" else zlib.compress(body, 1)
