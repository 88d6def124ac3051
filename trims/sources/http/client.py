"""A client for HTTP that reads ranges straight into memory: one copy, from the kernel to where the bytes stay.

The ceiling of a transfer is copies and not Python: `readinto` of the standard library moves twice as many bytes as the
native clients that hand out buffers of their own. Redirects are followed here, each under the policy of hosts; secret
headers go to the origin they are for and no further. Not covered: which parts, how many at once, and retries
(`transfer`).
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from trims.core.errors import (
    AddressRefusedError,
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.manifests.addresses import path_of
from trims.sources.http import proxies
from trims.sources.http.connecting import connection_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trims.sources.base import Part, RemoteFile
    from trims.sources.http.hosts import HostPolicy

#: Seconds without a byte after which a server counts as stalled.
STALL_S = 30.0
#: Bytes of an answer that is kept in memory, such as a listing.
MOST_ANSWER_BYTES = 16 << 20
_MOST_REDIRECTS = 10
_MOST_IDLE = 16
_SKIP_BYTES = 1 << 20
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)\Z")
#: Letters of an address that are sent as they are; all others are escaped.
_UNESCAPED = "/?#[]@!$&'()*+,;=%:~"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of a file can be read now.

    Attributes:
        url: May hold a signature: a secret, never logged.
        headers: Secret headers for the origin of `url`, such as a token.
        good_for_s: Seconds for which it is good; None without end.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    good_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was read to its end.

    Attributes:
        url: Where it came from, after redirects; a secret.
        headers: Names are looked up whatever their case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str = field(repr=False)


class Http:
    """Connections to servers. Safe to use from several threads.

    Args:
        policy: Hosts that may be connected to.
        stall_s: Seconds without a byte after which a server counts as stalled.
        tls: Context of connections with TLS; by default the machine's authorities.
    """

    def __init__(self, policy: HostPolicy, *, stall_s: float = STALL_S, tls: ssl.SSLContext | None = None) -> None:
        self._policy = policy
        self._stall_s = stall_s
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._used: set[http.client.HTTPConnection] = set()
        self._closed = False

    def naming(self, *hosts: str, stall_s: float | None = None) -> Http:
        """Return a client with connections of its own that may also reach these hosts, which an operator named.

        Args:
            hosts: Names, or none.
            stall_s: Replaces this client's own, if given.
        """
        return Http(self._policy.naming(*hosts), stall_s=self._stall_s if stall_s is None else stall_s, tls=self._tls)

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secret: Mapping[str, str] | None = None,
        follow: bool = True,
        most_bytes: int = MOST_ANSWER_BYTES,
    ) -> Answer:
        """Return the answer to a request, whatever its status.

        Args:
            method: `GET`, `HEAD` or `DELETE`.
            url: `http:` or `https:`.
            headers: Sent to each server on the way.
            secret: Sent to the origin of `url` only.
            follow: Follow redirects.
            most_bytes: Longest body to read: what comes beyond is left; with the default it is refused.

        Raises SourceUnavailableError, AddressRefusedError, ArtifactError for an answer that is no HTTP or too long.
        """
        with self._exchange(method, url, headers or {}, secret or {}, follow=follow) as (response, where):
            body = response.read(most_bytes + (most_bytes == MOST_ANSWER_BYTES))
            if len(body) > MOST_ANSWER_BYTES:
                raise ArtifactError(f"{shown(url)} answers with more than {MOST_ANSWER_BYTES >> 20} MiB")
            return Answer(response.status, cast("Mapping[str, str]", response.headers), body, where)

    def fill(self, location: Location, file: RemoteFile, parts: Sequence[Part], name: str) -> Iterator[None]:
        """Fill adjoining parts of a file from one answer; yield after each. Raises as `Opened.fill`."""
        begin, end = parts[0][0], parts[-1][0] + len(parts[-1][1])
        headers = {"Range": f"bytes={begin}-{end - 1}", **_condition(file.version)}
        with self._exchange("GET", location.url, headers, location.headers) as (response, _):
            _check_range(response, file, begin, end, name)
            for _, room in parts:
                _read_all(response, room, name)
                yield

    def close(self) -> None:
        """Close all connections; those in use break off. Idempotent."""
        with self._lock:
            self._closed = True
            idle = [each for some in self._idle.values() for each in some]
            self._idle.clear()
            used = list(self._used)
        for each in idle:
            each.close()
        for each in used:
            if each.sock is not None:
                with contextlib.suppress(OSError):
                    each.sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], secret: Mapping[str, str], *, follow: bool = True
    ) -> Iterator[tuple[http.client.HTTPResponse, str]]:
        """Send a request, and follow redirects. Give the last response, not yet read, and where it came from."""
        where, origin = url, _origin(urlsplit(url))
        for _ in range(_MOST_REDIRECTS):
            target = _checked(where)
            sent = {"Accept-Encoding": "identity", "User-Agent": "trims", **headers}
            if _origin(target) == origin:
                sent.update(secret)
            with self._answered(method, target, sent) as response:
                if not follow or response.status not in _REDIRECTS:
                    yield response, where
                    return
                response.read(_SKIP_BYTES)
                to = response.headers.get("Location")
            if not to:
                raise ArtifactError(f"{shown(where)} redirects to nowhere")
            onward = _onward(where, to)
            if target.scheme == "https" and urlsplit(onward).scheme != "https":
                raise AddressRefusedError(f"{shown(where)} redirects from https to {shown(onward)}; name that itself")
            where = onward
        raise ArtifactError(f"{shown(url)} redirects more than {_MOST_REDIRECTS} times, at last to {shown(where)}")

    @contextlib.contextmanager
    def _answered(
        self, method: str, target: SplitResult, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """Send one request on a connection; it is kept for the next one if the response was read to its end."""
        connection, fresh = self._take(target)
        try:
            try:
                response = self._send(connection, method, target, headers)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if fresh:
                    raise
                self._drop(connection)  # an idle connection that the server has closed meanwhile
                connection = self._connect(target)
                response = self._send(connection, method, target, headers)
            yield response
            if response.isclosed() and not response.will_close:
                self._give_back(connection, target)
                return
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TrimsError):
                raise
            raise _explained(error, target.hostname or "", self._stall_s) from error
        finally:
            self._drop(connection)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, target: SplitResult, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        path = quote(target.path, safe=_UNESCAPED) or "/"
        query = f"?{quote(target.query, safe=_UNESCAPED)}" if target.query else ""
        for_proxy: Mapping[str, str] | None = getattr(connection, "proxy_headers", None)
        full = path if for_proxy is None else f"{target.scheme}://{target.netloc}{path}"
        try:
            connection.request(method, full + query, headers={**headers, **(for_proxy or {})})
        except (UnicodeError, http.client.InvalidURL) as error:
            raise ArtifactError(f"{shown(target.geturl())} is no address of a server: {error}") from error
        return connection.getresponse()

    def _take(self, target: SplitResult) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            idle = self._idle.get(_origin(target))
            if idle and not self._closed:
                self._used.add(idle[-1])
                return idle.pop(), False
        return self._connect(target), True

    def _connect(self, target: SplitResult) -> http.client.HTTPConnection:
        made = connection_to(target, self._policy, self._stall_s, self._tls)
        with self._lock:
            if self._closed:
                raise SourceUnavailableError("the transfer was stopped")
            self._used.add(made)
        return made

    def _give_back(self, connection: http.client.HTTPConnection, target: SplitResult) -> None:
        with self._lock:
            idle = self._idle.setdefault(_origin(target), [])
            if not self._closed and len(idle) < _MOST_IDLE:
                self._used.discard(connection)
                idle.append(connection)

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection not in self._used:
                return
            self._used.discard(connection)
        connection.close()


def _explained(error: Exception, host: str, stall_s: float) -> TrimsError:
    """Return the error of the tree for one of a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ArtifactError(
            f"the certificate of {host} is not to be trusted: {error.verify_message}; SSL_CERT_FILE names a file of "
            "other authorities"
        )
    if isinstance(error, TimeoutError):
        return SourceUnavailableError(f"{host} sent nothing for {stall_s:g} s")
    if isinstance(error, http.client.IncompleteRead):
        return SourceUnavailableError(f"{host} broke off in the middle of an answer")
    if isinstance(error, http.client.HTTPException):
        return SourceUnavailableError(f"{host} did not answer in HTTP: {error!r}")
    if str(error).startswith(f"Tunnel connection failed: {proxies.ASKS}"):
        return proxies.refusal(host)
    return SourceUnavailableError(f"{host} cannot be reached: {error}")


def check_status(answer: Answer | http.client.HTTPResponse, name: str) -> None:
    """Raise the error that a status stands for; nothing for a success.

    Args:
        name: What was asked for, without secrets.
    """
    status = answer.status
    if 200 <= status < 300:
        return
    if status == proxies.ASKS:
        raise proxies.refusal(name)
    if status in (401, 403):
        raise SourceRefusedError(
            f"{name}: the server answers {status}: the credentials are missing, wrong, or not allowed to read it"
        )
    if status in (404, 410):
        raise ArtifactNotFoundError(f"{name} is not there: the server answers {status}")
    if status in (412, 416):
        raise ArtifactChangedError(f"{name} is another one than when it was looked at: the server answers {status}")
    if status in _BUSY:
        error = SourceUnavailableError(f"{name}: the server answers {status}")
        error.retry_after_s = _seconds(answer.headers.get("Retry-After"))
        raise error
    raise ArtifactError(f"{name}: the server answers {status}, which is no file")


def _seconds(text: str | None) -> float:
    """Return the seconds that a busy server asks for; 0 if it leaves that to us, or names a date."""
    try:
        return max(0.0, float(text)) if text else 0.0
    except ValueError:
        return 0.0


def shown(url: str) -> str:
    """Return an address for people: without user, query and fragment, which may be secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{path_of(url)}"


def _onward(where: str, to: str) -> str:
    """Return the address that a redirect leads to. Servers write some of them in UTF-8, which is escaped here."""
    try:
        return urljoin(where, quote(to.encode("latin-1"), safe=_UNESCAPED))
    except ValueError as error:
        raise ArtifactError(f"{shown(where)} redirects to {to!r:.200}, which is no address: {error}") from error


def _checked(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        target.port  # noqa: B018 - a number that is none is found here
    except ValueError as error:
        raise ArtifactError(f"{url!r:.100} is no address of a server: {error}") from error
    if target.scheme not in ("http", "https") or not target.hostname:
        raise AddressRefusedError(f"{shown(url)} is no address of a server: only http and https are followed")
    return target


def origin_of(url: str) -> tuple[str, str]:
    """Return the scheme and the server of an address."""
    return _origin(urlsplit(url))


def _origin(target: SplitResult) -> tuple[str, str]:
    return target.scheme, target.netloc.rpartition("@")[2].lower()


def _condition(version: str) -> dict[str, str]:
    """Return the header that has the server refuse another version. A weak ETag never matches `If-Match`."""
    if version.startswith('"'):
        return {"If-Match": version}
    return {"If-Unmodified-Since": version} if version.endswith(" GMT") else {}


def _check_range(response: http.client.HTTPResponse, file: RemoteFile, begin: int, end: int, name: str) -> None:
    """Check that an answer is the range that was asked for; skip what comes before it in an answer of the whole."""
    check_status(response, name)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise ArtifactError(f"{name}: the server sends it as {encoding}, though identity was asked for")
    etag = response.headers.get("ETag", "")
    if etag and file.version[:1] in ('"', "W") and etag.removeprefix("W/") != file.version.removeprefix("W/"):
        raise ArtifactChangedError(f"{name} is another one than when it was looked at: {etag}, not {file.version}")
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        found = _RANGE.match(response.headers.get("Content-Range", ""))
        if found is None or (int(found[1]), int(found[2])) != (begin, end - 1):
            said = response.headers.get("Content-Range", "no range")
            raise ArtifactError(f"{name}: bytes {begin} to {end - 1} were asked for, the server sends {said!r}")
        if found[3] != "*" and int(found[3]) != file.nbytes:
            raise ArtifactChangedError(f"{name} has {found[3]} bytes now, and had {file.nbytes}")
        length = end - begin
    else:
        length = file.nbytes
    if response.length is not None and response.length != length:
        raise ArtifactChangedError(f"{name}: {length} bytes were expected, the server sends {response.length}")
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        _skip(response, begin, name)


def _skip(response: http.client.HTTPResponse, nbytes: int, name: str) -> None:
    scratch = memoryview(bytearray(min(nbytes, _SKIP_BYTES)))
    while nbytes > 0:
        take = min(nbytes, len(scratch))
        _read_all(response, scratch[:take], name)
        nbytes -= take


def _read_all(response: http.client.HTTPResponse, room: memoryview, name: str) -> None:
    done = 0
    while done < len(room):
        with room[done:] as rest:
            got = response.readinto(rest)
        if not got:
            raise SourceUnavailableError(f"{name}: the server broke off in the middle of it")
        done += got
