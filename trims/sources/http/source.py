"""The schemes `http` and `https`: one file of a server that says its length."""

from __future__ import annotations

import base64
import binascii
import netrc
import os
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from trims.core.errors import ArtifactError, CallerError, ConfigError, SourceRefusedError
from trims.manifests.addresses import without_secret
from trims.sources.base import RemoteFile
from trims.sources.http.client import Location, check_status, origin_of, shown
from trims.sources.http.ranged import RangedFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.sources.base import Opened
    from trims.sources.http.client import Answer
    from trims.sources.settings import SourceSettings


# Credentials for servers of `https:` addresses: headers from a file of the operator's, else a user from a netrc file.
#
# They are read for each transfer, so that a token which is renewed counts at once. They stay in the process that moves
# bytes, go over TLS only, and to the host that they are for: no log, manifest or error shows one.

#: Places where credentials are looked for, for errors.
LOOKED_IN = (
    "the file of the setting `fetch_headers` (lines HOST NAME: VALUE, such as models.example.com Authorization: Bearer "
    "TOKEN), and the file that NETRC names, else ~/.netrc; they go over https only"
)
_LINE = re.compile(r"(\S+)[ \t]+([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(\S.*)\Z")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HostCredentials:
    """Credentials by host.

    Attributes:
        headers: File of headers; empty for none.
        environment: Says where the netrc file is.
    """

    headers: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, address: str) -> dict[str, str]:
        """Return the secret headers for the server of an address; none over plain HTTP. Raises ConfigError."""
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme != "https":
            return {}
        names = host, f"{host}:{parts.port or 443}"
        found = {header: value for named, header, value in self._lines() if named.lower() in names}
        return found or self._of_netrc(host)

    def _lines(self) -> list[tuple[str, str, str]]:
        """Return host, name and value of each header in the operator's file."""
        if not self.headers:
            return []
        try:
            with open(self.headers, "rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise ConfigError(f"{self.headers} (`fetch_headers`) is not its owner's alone: chmod 600 it")
                text = file.read(_MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigError(f"{self.headers} (`fetch_headers`) cannot be read: {why}") from None
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                parts = _LINE.match(line.strip())
                if parts is None or not line.isprintable():
                    raise ConfigError(f"line {number} of {self.headers} (`fetch_headers`) is not HOST NAME: VALUE")
                found.append((parts[1], parts[2], parts[3]))
        return found

    def _of_netrc(self, host: str) -> dict[str, str]:
        named = self.environment.get("NETRC", "")
        home = self.environment.get("HOME", "")
        path = Path(named) if named else Path(home, ".netrc")
        if not named and (not home or not path.is_file()):
            return {}
        try:
            entry = netrc.netrc(path).authenticators(host)
        except netrc.NetrcParseError as error:  # whose text may hold a part of a password
            raise ConfigError(f"line {error.lineno} of {path} (netrc) cannot be understood") from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigError(f"{path} (netrc) cannot be read: {why}") from None
        if entry is None:
            return {}
        user = f"{entry[0]}:{entry[2] or ''}"
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


#: Seconds for which the end of redirects is asked directly; it may be a signed address, and is asked for again then.
_REDIRECTED_FOR_S = 300.0
_FIRST_BYTE = {"Range": "bytes=0-0"}
_LENGTH = re.compile(r"[0-9]{1,18}\Z")
_TOTAL = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,18})\Z")
#: Headers that state a checksum in base64, and its name here. Those of the standard have several in one.
_STATED = {
    "x-amz-checksum-crc64nvme": "crc64nvme", "x-amz-checksum-crc32c": "crc32c", "x-amz-checksum-sha256": "sha256",
}  # fmt: skip
_LISTED = ("Repr-Digest", "Digest", "x-goog-hash")
_ONE = re.compile(r"([A-Za-z0-9-]+)=:?([A-Za-z0-9+/_-]+={0,2}):?")
_NAMES = {"sha-256": "sha256", "crc32c": "crc32c", "crc64nvme": "crc64nvme"}


class HttpSource:
    """Files of servers."""

    def __init__(self, settings: SourceSettings) -> None:
        self._http = settings.http
        self._credentials = HostCredentials(settings.headers, settings.environment)

    def open(self, address: str) -> Opened:
        """See `Source.open`. One byte is asked for: a signed address allows no HEAD."""
        parts, name_shown = urlsplit(address), without_secret(address)
        name = unquote(parts.path).rpartition("/")[2]
        if parts.username or parts.password:
            raise CallerError(f"{shown(address)}: credentials do not belong in an address, which is shown and kept")
        if not parts.hostname or not name:
            raise CallerError(f"{name_shown} names no file of a server")

        def look() -> tuple[Answer, Mapping[str, str]]:
            secret = self._credentials.of(address)
            return self._http.request("GET", address, headers=_FIRST_BYTE, secret=secret, most_bytes=1), secret

        answer, secret = look()
        try:
            file = described(answer, name, name_shown)
        except SourceRefusedError as error:
            raise SourceRefusedError(f"{error}; credentials were looked for in {LOOKED_IN}") from None
        redirected = answer.url != address

        def locate(_: RemoteFile) -> Location:
            if not redirected:
                return Location(address, secret)
            again, sent = look()
            check_status(again, name_shown)
            at_home = origin_of(again.url) == origin_of(address)
            return Location(again.url, sent if at_home else {}, good_for_s=_REDIRECTED_FOR_S)

        return RangedFiles(self._http, name_shown, (file,), locate)


def described(answer: Answer, name: str, shown_name: str) -> RemoteFile:
    """Return the file that an answer to a request for its first byte describes.

    Raises the error of its status, and ArtifactError for a file without a length, or without bytes.
    """
    total = _TOTAL.match(answer.headers.get("Content-Range", ""))
    if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and total is not None and int(total[1]) == 0:
        raise ArtifactError(f"{shown_name} is empty")
    check_status(answer, shown_name)
    in_ranges = answer.status == HTTPStatus.PARTIAL_CONTENT
    said = "" if in_ranges else answer.headers.get("Content-Length", "")  # of a part, its length says nothing
    length = said if total is None else total[1]
    if not _LENGTH.match(length):
        raise ArtifactError(f"{shown_name}: the server does not say how long it is")
    if int(length) == 0:
        raise ArtifactError(f"{shown_name} is empty")
    version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return RemoteFile(name, int(length), version, stated_checksums(answer.headers), in_ranges)


def stated_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums of a whole file that an answer's headers state, in hex."""
    found = {}
    whole = headers.get("x-amz-checksum-type", "FULL_OBJECT") == "FULL_OBJECT"
    for header, kind in _STATED.items():
        stated = headers.get(header, "")
        if whole and stated and "-" not in stated:
            found[kind] = _hex(stated)
    for header in _LISTED:
        for kind, digest in _ONE.findall(headers.get(header, "")):
            if kind.lower() in _NAMES:
                found[_NAMES[kind.lower()]] = _hex(digest)
    return {kind: digest for kind, digest in found.items() if digest}


def _hex(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).hex()
    except (ValueError, binascii.Error):
        return ""  # what is no checksum is none
