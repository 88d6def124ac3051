"""One bucket of an object store, as all clouds have it: addresses, signatures, looks, listings.

What differs from cloud to cloud is in `s3`, `gcs` and `azure`. Signatures, listings and uploads are the library's;
bytes are read by our own client from signed addresses. This module and those that stand on it run in the process that
moves bytes: the library starts threads of its own where it is first used.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

import obstore

from trims.core.errors import ArtifactChangedError, ArtifactError, CallerError, ConfigError, NotSupportedError
from trims.sources.base import RemoteFile
from trims.sources.buckets.store_errors import tree_errors
from trims.sources.http.client import Location, check_status

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping, Sequence

    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    from trims.sources.http.client import Answer, Http
    from trims.sources.settings import SourceSettings

#: Seconds for which a signed address is good.
SIGNED_FOR_S = 3600.0
#: Objects below one prefix.
MOST_OBJECTS = 1000
_LOOKS_AT_ONCE = 8
#: Seconds for a connection to come about, and for a whole request: a part of an upload may take that long.
_CONNECT_S = 10.0
_REQUEST_S = 300.0
_RETRY_S = 60.0
_MOST_CERTIFICATES_BYTES = 16 << 20
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{1,221}\Z")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\Z")
_YES = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """An address of an object store, taken apart.

    Attributes:
        scheme: `s3`, `gs`, `az`, `abfs` or `abfss`.
        bucket: Name of the bucket, or of Azure's container.
        key: Name of the object, or of the prefix without its last `/`; empty for the whole bucket.
        account: Azure's account, where the address names it.
        folder: Whether the address says by a `/` at its end that it means a prefix.
    """

    scheme: str
    bucket: str
    key: str
    account: str = ""
    folder: bool = False

    @classmethod
    def parse(cls, address: str) -> ObjectAddress:
        """Take an address apart; its key stands as it is, without escapes. Raises CallerError."""
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        container, at, host = bucket.partition("@")
        if at and scheme in ("abfs", "abfss"):
            bucket, account = container, host.partition(".")[0]
            if not _ACCOUNT.match(account):
                raise CallerError(f"an address {scheme}://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY names no account")
        else:
            account = ""
        if not _BUCKET.match(bucket):
            raise CallerError(  # which does not show the address: what stands before an @ may be a password
                f"an address {scheme}://BUCKET/KEY has no valid name of a bucket: letters, digits, dots, dashes and "
                "underscores; credentials are no part of an address"
            )
        folder = not key or key.endswith("/")
        key = key.removesuffix("/")
        if key and (any(part in ("", ".", "..") for part in key.split("/")) or not key.isprintable()):
            raise CallerError(f"{address!r}: a part of the key is empty, `.` or `..`, or has characters of control")
        return cls(scheme, bucket, key, account, folder)


class Bucket(ABC):
    """One bucket. Safe to use from several threads; methods block.

    Attributes:
        store: The library's half; its methods belong into `errors`.
        http: Reads from signed addresses.
        checksum: Checksum that this cloud states of its own for whole objects; empty for none.
        looked_in: Places where credentials are looked for, for errors.
        region: Region for which requests are signed; empty if the cloud's requests name none.
    """

    name: str
    store: S3Store | GCSStore | AzureStore
    http: Http
    checksum: ClassVar[str] = ""
    looked_in: ClassVar[str]
    region: str = ""
    #: Seconds for which a signed address is good.
    signed_for_s: float = SIGNED_FOR_S
    #: Scheme of the bucket's addresses.
    scheme: ClassVar[str]

    def location(self, key: str) -> Location:
        """Return where an object can be read now. Raises as `Opened.fill`."""
        with self.errors(key):
            return self.signed("GET", key)

    def look(self, key: str) -> RemoteFile | None:
        """Return what is stored under a key now; None if nothing is, or there is no such bucket."""
        name = self.address(key)
        with self.errors(key):
            place = self.for_look(key)
            answer = self.http.request("HEAD", place.url, secret=place.headers, follow=False)
            if answer.status == 404:
                return None
            if answer.status >= 300:
                self._explain(answer, key)
            if self.is_folder(answer.headers):
                return None
            if reason := self.unreadable(answer.headers):
                raise ArtifactError(f"{name} cannot be read: {reason}")
            length = answer.headers.get("Content-Length", "")
            if not length.isdigit():
                raise ArtifactError(f"{name}: the store does not say how long it is")
            found = self.checksums(answer.headers)
            return RemoteFile(key.rpartition("/")[2], int(length), answer.headers.get("ETag", ""), found)

    def look_below(self, prefix: str) -> list[RemoteFile]:
        """Look at all objects below a prefix; their names begin there. Raises as `Opened.fill`."""
        keys = self._list(prefix)
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as threads:
            try:
                found = list(threads.map(self.look, keys))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        below = len(prefix) + 1 if prefix else 0
        files = []
        for (key, nbytes), file in zip(keys.items(), found, strict=True):
            if file is None and nbytes:
                raise ArtifactChangedError(f"{self.address(key)} went away while {self.address(prefix)} was looked at")
            if file is not None:  # an empty object of which nothing is found stands for a folder: its name ends with /
                files.append(RemoteFile(key[below:], file.nbytes, file.version, file.checksums))
        return sorted(files, key=lambda file: file.name)

    def remove(self, key: str) -> None:
        """Remove an object, if it is there. Raises as `Opened.fill`."""
        with self.errors(key):
            place = self.signed("DELETE", key)
            answer = self.http.request("DELETE", place.url, secret=place.headers, follow=False)
            if answer.status != HTTPStatus.NOT_FOUND:
                check_status(answer, self.address(key))

    def give_up_parts(self, key: str) -> int:
        """Have the store remove the parts of an object whose upload was killed. Return how many uploads there were.

        Raises NotSupportedError for a store that has no way, and as `Opened.fill`.
        """
        raise NotSupportedError(
            f"{self.address(key)}: parts of a push that was killed cannot be removed here; give the bucket "
            f"{self.name} a rule that removes incomplete uploads"
        )

    def address(self, key: str) -> str:
        """Return the address of an object."""
        return f"{self.scheme}://{self.name}/{key}"

    def errors(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Have a block raise errors of the tree."""
        return tree_errors(self.address(key), self.name, self.looked_in, self.region)

    @abstractmethod
    def signed(self, method: str, key: str) -> Location:
        """Return where an object can be asked for by `GET`, `HEAD` or `DELETE`, signed if the bucket is not public."""

    @abstractmethod
    def checksums(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the digests of a whole object that the answer to a look states."""

    def is_folder(self, headers: Mapping[str, str]) -> bool:
        """Return whether a look found a folder: some stores keep folders as objects without bytes."""
        del headers
        return False

    def unreadable(self, headers: Mapping[str, str]) -> str:
        """Return why the object that a look found cannot be read now; empty if it can."""
        del headers
        return ""

    def for_look(self, key: str) -> Location:
        """Return where a look at an object goes."""
        return self.signed("HEAD", key)

    def by_library(self, method: str, key: str) -> str:
        """Return a signed address that the library makes."""
        return obstore.sign(self.store, method, key, timedelta(seconds=self.signed_for_s))  # type: ignore[call-overload,no-any-return]

    def _list(self, prefix: str) -> dict[str, int]:
        """Return keys and sizes of the objects below a prefix. Raises ArtifactError above the bound."""
        with self.errors(prefix):
            batches = obstore.list(self.store, prefix=prefix or None, chunk_size=MOST_OBJECTS)
            metas = itertools.islice(itertools.chain.from_iterable(batches), MOST_OBJECTS + 2)
            found = {meta["path"]: meta["size"] for meta in metas if meta["path"] != prefix}
        if len(found) > MOST_OBJECTS:
            raise ArtifactError(
                f"{self.address(prefix)} has more than {MOST_OBJECTS} objects: name a prefix of the model's own"
            )
        return found

    def _explain(self, answer: Answer, key: str) -> None:
        """Raise the error for a look that was refused. An answer to HEAD has no text: that to a listing says why."""
        if answer.status in (400, 401, 403):
            next(iter(obstore.list(self.store, prefix=key, chunk_size=1)), None)
        if 300 <= answer.status < 400:
            raise ArtifactError(f"{self.address(key)}: the store answers {answer.status}, and leads elsewhere")
        check_status(answer, self.address(key))


def hexadecimal(text: str, nbytes: int) -> str | None:
    """Return the digits of a checksum that a header has in base64; None if it is none of that length.

    The checksums of parts have a `-` and the number of parts behind them: they are no checksum of the object.
    """
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found.hex() if len(found) == nbytes else None


def chosen(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return those variables that are set, as the library wants them: in lower case."""
    return {name.lower(): environment[name] for name in names if environment.get(name)}


def is_yes(environment: Mapping[str, str], name: str) -> bool:
    """Return whether a variable says yes."""
    return environment.get(name, "").lower() in _YES


def endpoint_of(environment: Mapping[str, str], *names: str) -> str:
    """Return the endpoint that the first of some variables names; empty for none. Raises ConfigError."""
    name = next((name for name in names if environment.get(name)), "")
    endpoint = environment.get(name, "").rstrip("/")
    if endpoint and not (endpoint.startswith(("http://", "https://")) and host_of(endpoint)):
        raise ConfigError(f"{name} is no address of a server: it begins with https:// or http://, and names a host")
    return endpoint


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint that an operator named; empty for none."""
    return urlsplit(endpoint).hostname or ""


def client_options(endpoint: str, settings: SourceSettings) -> ClientConfig:
    """Return the library's settings for connections to an endpoint. Raises ConfigError.

    Authorities of `SSL_CERT_FILE` are trusted besides the machine's: our own client reads that variable, the library
    does not.
    """
    found: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "user_agent": "trims",
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, settings.patience_s)),
        "timeout": timedelta(seconds=_REQUEST_S),
    }
    if path := settings.environment.get("SSL_CERT_FILE"):
        try:
            with open(path, "rb") as file:
                found["root_certificate"] = file.read(_MOST_CERTIFICATES_BYTES)
        except OSError as error:
            raise ConfigError(f"SSL_CERT_FILE names {path}, which cannot be read: {error.strerror}") from error
    return found


def retries(settings: SourceSettings) -> RetryConfig:
    """Return the library's settings for asking again; transfers have retries of their own above."""
    return {"max_retries": 3, "retry_timeout": timedelta(seconds=min(_RETRY_S, settings.patience_s))}
