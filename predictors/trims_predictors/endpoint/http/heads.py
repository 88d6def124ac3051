"""Heads of HTTP requests that RFC 9112 does not allow and the parser takes, and those that are too large."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes of a head, and of what follows a body or stands between its chunks.
MOST_HEAD_BYTES = 64 << 10
#: Fields of a head. Each look for a field goes through all of them.
MOST_FIELDS = 256
_TOO_LARGE = b"431 Request Header Fields Too Large"
#: Status and reason for what is larger.
TOO_LARGE = (_TOO_LARGE, f"the head of the request is larger than {MOST_HEAD_BYTES >> 10} KiB")
_BAD = b"400 Bad Request"
#: Ports that a target or a host need not name.
_PORTS = {b"http": b"80", b"https": b"443"}


class RefusedHeadError(Exception):
    """The head of an HTTP request is refused. No TrimsError: it never leaves this package.

    Attributes:
        status: Code and phrase of the answer.
    """

    def __init__(self, status: bytes, why: str) -> None:
        super().__init__(why)
        self.status = status


def check_head(url: bytes, fields: Sequence[tuple[bytes, bytes]], version: str, field_bytes: int) -> bytes | None:
    """Check a head. Returns the host that its target names if no field does; else None. Raises RefusedHeadError.

    Args:
        fields: Names in small letters, and values.
        field_bytes: Bytes of all fields as they are usually written.
    """
    if len(url) + field_bytes > MOST_HEAD_BYTES:
        raise RefusedHeadError(*TOO_LARGE)
    if len(fields) > MOST_FIELDS:
        why = f"the head of the request has {len(fields)} fields; {MOST_FIELDS} are the most"
        raise RefusedHeadError(_TOO_LARGE, why)
    _check_codings([value for name, value in fields if name == b"transfer-encoding"], version)
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1:
        raise RefusedHeadError(_BAD, f"the request has {len(hosts)} headers Host; send one")
    scheme, found, rest = url.partition(b"://")
    target = rest.partition(b"/")[0].partition(b"?")[0] if found and not url.startswith(b"/") else None
    if not hosts:
        return target
    if target is not None and _named(target, scheme) != _named(hosts[0], scheme):
        raise RefusedHeadError(
            _BAD, f"the request's target names the host {target!r:.80} and its header Host {hosts[0]!r:.80}; name one"
        )
    return None


def _check_codings(stated: Sequence[bytes], version: str) -> None:
    """Refuse codings of the body's transfer other than `chunked` (RFC 9112, 6.1)."""
    if not stated:
        return
    if version == "1.0":
        raise RefusedHeadError(_BAD, "the request is HTTP/1.0, which has no Transfer-Encoding; send Content-Length")
    coding = b",".join(stated).strip().lower()
    if coding != b"chunked":
        raise RefusedHeadError(
            b"501 Not Implemented", f"the Transfer-Encoding {coding!r:.80} is not supported; send chunked alone"
        )


def _named(host: bytes, scheme: bytes) -> bytes:
    """The host and its port, as they are compared."""
    host = host.strip().lower()
    return host.removesuffix(b":" + _PORTS.get(scheme.lower(), b""))
