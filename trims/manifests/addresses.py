"""Addresses of artifacts: `file:`, `http(s):`, `s3:`, `gs:`, `az:`, `hf:`, `pkg:`, `build:`, and those of plug-ins.

`file:`, `pkg://` and `build://` name what lies on this machine, and stand for a manifest's `path`, `package` and
`builder`. The others are fetched. Not covered: looking at one (`Source`).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit, urlunsplit

from trims.core.errors import CallerError
from trims.manifests.fields import CALL, check_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Schemes that are fetched by trims itself.
FETCHED = ("http", "https", "s3", "gs", "az", "abfs", "abfss", "hf")
LOCAL = ("file", "pkg", "build")
#: Schemes of object stores, whose keys stand as they are: without escapes, and `?` and `#` are letters as others.
_OBJECTS = ("s3", "gs", "az", "abfs", "abfss")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_MOST_LETTERS = 2048
#: Names of what a query must keep for itself: `X-Amz-Signature`, `sig`, `token`.
_SECRET = re.compile(r"(?i)(\A|[-_.])(sig|signature|token|key|apikey|secret|credential|password|auth)\Z")
#: Parameters of the three clouds' signatures, in lower case: those without which there is no signature of the kind,
#: and all of the kind. They say who may read an object until when; what names the object (`versionId`) is none of them.
_SIGNATURES = tuple(
    (frozenset(needed.split()), frozenset(f"{needed} {others}".split()))
    for needed, others in (
        ("x-amz-algorithm x-amz-credential x-amz-date x-amz-signature",
         "x-amz-expires x-amz-signedheaders x-amz-security-token"),
        ("awsaccesskeyid signature expires", "x-amz-security-token"),
        ("x-goog-algorithm x-goog-credential x-goog-date x-goog-signature", "x-goog-expires x-goog-signedheaders"),
        ("googleaccessid signature expires", ""),
        ("sv sr sig", "se st sp si spr sip skoid sktid skt ske sks skv saoid suoid scid sdd"),
        ("sv ss srt sig", "se st sp spr sip"),
    )
)  # fmt: skip


def scheme_of(text: str) -> str:
    """Return the scheme of an address in lower case; empty for a path. One letter is no scheme: `C:` is of a path."""
    found = _SCHEME.match(text)
    return found[1].lower() if found is not None and len(found[1]) > 1 else ""


def normal(text: str) -> str:
    """Return an address with its scheme in lower case."""
    scheme = scheme_of(text)
    return scheme + text[len(scheme) :]


def path_of(address: str) -> str:
    """Return the path of an address as it stands there; of an object store, the `/` and the key."""
    if scheme_of(address) in _OBJECTS:
        _, slash, key = address.partition("://")[2].partition("/")
        return slash + key
    return urlsplit(address).path


def query_of(address: str) -> str:
    """Return what stands behind the `?` of an address; empty for that of an object store, which has none."""
    return "" if scheme_of(address) in _OBJECTS else urlsplit(address).query


def is_address(text: str) -> bool:
    """Return whether a text that a user typed is an address and not a path."""
    scheme = scheme_of(text)
    return bool(scheme) and (scheme in (*FETCHED, *LOCAL) or text[len(scheme) :].startswith("://"))


def check_address(text: str) -> str:
    """Return an address that is fetched, as `normal`. Raises CallerError for one that is none."""
    text, scheme = normal(text), scheme_of(text)
    if not scheme or scheme in LOCAL:
        raise CallerError(
            f"{text!r:.200} is no address that is fetched; write one such as hf://org/name or s3://bucket/key"
        )
    blank = text != text.strip() if scheme in _OBJECTS else " " in text
    if len(text) > _MOST_LETTERS or not text.isprintable() or blank:
        raise CallerError(f"{text!r:.200} is no address: it has blanks or unprintable letters, or is longer than 2048")
    try:
        parts = urlsplit(text)
        if scheme in ("http", "https"):
            parts.port  # noqa: B018 - a number that is none is found here
    except ValueError as error:
        raise CallerError(f"{text!r:.200} is no address: {error}") from error
    if parts.fragment and scheme in ("http", "https"):
        raise CallerError(
            f"{without_secret(text)!r:.200}: no server is sent what stands behind a #; write %23, or leave it out"
        )
    if not parts.netloc and scheme in FETCHED:
        raise CallerError(f"{text!r:.200} names no host or bucket; write {scheme}://...")
    if parts.password is not None or (parts.username is not None and scheme in ("http", "https")):
        raise CallerError(
            f"{scheme}://{parts.hostname}: credentials do not belong in an address, which is shown and kept"
        )
    return text


def local_artifact(text: str) -> Mapping[str, Any] | None:
    """Return the fields of a manifest's artifact for an address on this machine; None for one that is fetched.

    Raises CallerError for one that is malformed.
    """
    text, scheme = normal(text), scheme_of(text)
    try:
        if scheme == "file":
            return {"path": _path(text)}
        if scheme == "pkg":
            return {"package": _package(text)}
        return {"builder": _builder(text)} if scheme == "build" else None
    except ValueError as error:
        raise CallerError(f"{text!r:.200} is no address: {error}") from error


def _path(text: str) -> str:
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query:
        raise CallerError(f"{text!r:.200} is no file of this machine; write file:///folder/file")
    path = unquote(parts.path)
    if "\0" in path:
        raise CallerError(f"{text!r:.200} is no file of this machine: its path has a zero byte")
    return path


def _package(text: str) -> dict[str, str]:
    parts = urlsplit(text)
    path = unquote(parts.path).removeprefix("/")
    if not _MODULE.match(parts.netloc) or not path or parts.query:
        raise CallerError(f"{text!r:.200} names no file of a package; write pkg://package/path/in/it")
    return {"name": parts.netloc, "path": check_inside(path)}


def _builder(text: str) -> dict[str, Any]:
    call, _, query = text.removeprefix("build://").partition("?")
    if not re.match(CALL, call):
        raise CallerError(f"{text!r:.200} names no function; write build://package.module:function?argument=value")
    return {"call": call, "args": {name: _value(value) for name, value in parse_qsl(query, keep_blank_values=True)}}


def _value(text: str) -> Any:
    """Read an argument as JSON where it is some, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def beside(address: str, name: str) -> str:
    """Return the address of a file beside the one that an address names."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https"):
        return urljoin(urlunsplit((*parts[:3], "", "")), quote(name))
    return f"{address.rpartition('/')[0]}/{name}"


def host_of(address: str) -> str:
    """Return the host that an operator names with an address, for the policy of hosts; empty for a bucket."""
    parts = urlsplit(address)
    return (parts.hostname or "") if parts.scheme in ("http", "https") else ""


def name_for(address: str) -> str:
    """Return a model's name made from an address. Raises CallerError if there is none in it."""
    path = unquote(path_of(address)).rstrip("/")
    last = path.rpartition("/")[2].partition("@")[0] if scheme_of(address) == "hf" else path.rpartition("/")[2]
    stem = re.sub(r"(\.safetensors|\.bin|\.index|\.json|\.onnx|\.pth?|\.ckpt|\.np[yz]|-symbol)+\Z", "", last)
    made = re.sub(r"[^a-z0-9._-]", "-", stem.lower())[:128].strip("._-")
    if not made and scheme_of(address) == "hf":
        raise CallerError(
            f"{address} names no model: write hf://org/{urlsplit(address).netloc or 'name'}, with the organisation "
            "that the hub's page of the model shows"
        )
    if not made:
        raise CallerError(f"no name can be made from {address}; give one (--name)")
    return made


def address_identity(address: str) -> str:
    """Return what an address stands for: all of it, but for the parameters of the three clouds' signatures.

    Two addresses of one identity name the same object, signed at another time or for another reader. Addresses of two
    identities never stand for each other, however alike what lies there looks from afar.
    """
    if scheme_of(address) not in ("http", "https"):
        return address
    path, mark, query = address.partition("?")
    parts = query.split("&")
    names = {_name_of(part) for part in parts}
    signed = frozenset().union(*(every for needed, every in _SIGNATURES if needed <= names))
    left = "&".join(part for part in parts if _name_of(part) not in signed)
    return f"{path}{mark}{left}" if left or not signed else path


def _name_of(parameter: str) -> str:
    return unquote(parameter.partition("=")[0]).lower()


def has_secret(address: str) -> bool:
    """Return whether an address of a server has a signature or key in its query."""
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and any(map(_SECRET.search, dict(parse_qsl(parts.query))))


def without_secret(address: str) -> str:
    """Return an address for people: without a cloud's signature, and with `...` in the place of secret values."""
    if not has_secret(address):
        return address
    path, mark, query = address_identity(address).partition("?")
    parts = [f"{name}=..." if _SECRET.search(unquote(name)) else f"{name}{sign}{value}"
             for name, sign, value in (part.partition("=") for part in query.split("&") if part)]  # fmt: skip
    return f"{path}{mark}{'&'.join(parts)}"
