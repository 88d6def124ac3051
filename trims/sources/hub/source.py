"""The scheme `hf`: models of the Hugging Face hub, `hf://org/name[@revision][/path]`.

A revision is resolved once, and its commit stays in the address. What the hub's cache on this machine has is served
from there; what it lacks is fetched into it, for all clients of the hub. Without a network, and for a commit that the
cache has, the hub is not asked.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from trims.core.errors import (
    ArtifactNotFoundError,
    CallerError,
    NotSupportedError,
    SourceUnavailableError,
)
from trims.sources.http.ranged import RangedFiles
from trims.sources.hub import choice as hub_choice
from trims.sources.hub.api import HubApi
from trims.sources.hub.cache import HubCache
from trims.sources.hub.environment import HubEnvironment
from trims.sources.hub.files import is_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.sources.base import RemoteFile
    from trims.sources.http.client import Http, Location
    from trims.sources.hub.cache import CachedRepository, CachedSnapshot
    from trims.sources.hub.choice import Selection
    from trims.sources.hub.files import HubFile
    from trims.sources.settings import SourceSettings

__all__ = ["HubAddress", "HubSnapshot", "HubSource"]

DEFAULT_REVISION = "main"
_SCHEME = "hf://"
#: Kinds of repositories, in the plural as the hub writes them.
_KINDS = ("models", "datasets", "spaces", "kernels", "buckets")
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\Z")
_MOST_NAME_LETTERS = 96
#: Revisions with a slash that need not be written as %2F.
_WITH_SLASH = re.compile(r"refs/(?:convert/[\w.-]+|pr/\d+)(?=/|\Z)")
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class HubAddress:
    """Address of a model, or of a part of one.

    Attributes:
        name: `org/name`.
        revision: Branch, tag or commit.
        path: File or folder in it; empty for the model itself.
    """

    name: str
    revision: str = DEFAULT_REVISION
    path: str = ""

    @classmethod
    def parse(cls, address: str) -> HubAddress:
        """Read an address. Raises CallerError for one that is none, NotSupportedError for what is no model."""
        body = address.removeprefix(_SCHEME)
        if body == address or not body.isprintable():
            raise CallerError(f"{address!r:.200} is no address of the hub; write hf://org/name[@revision][/path]")
        kind, _, rest = body.partition("/")
        if kind in _KINDS and kind != "models":
            raise NotSupportedError(
                f"{address!r:.200} names one of the hub's {kind}; trims keeps models: hf://org/name"
            )
        if f"{kind}s" in _KINDS:
            raise CallerError(f"{address!r:.200}: the hub writes kinds of repositories in the plural: hf://{kind}s/...")
        org, _, more = (rest if kind == "models" else body).strip("/").partition("/")
        found = re.match(r"([^/@:]*)(?:([@:])(.*)|/(.*))?\Z", more, re.DOTALL)
        if found is None or not _is_name(f"{org}/{found[1]}"):
            raise CallerError(
                f"{address!r:.200} names no model: those of the hub are org/name, of letters, digits and - _ . between"
            )
        revision, path = _split_revision(found[3]) if found[2] else (DEFAULT_REVISION, found[4] or "")
        _check_revision(address, revision)
        if any(part in ("", ".", "..") for part in path.split("/")) and path:
            raise CallerError(f"{address!r:.200}: the path {path!r:.200} is none below a repository")
        return cls(f"{org}/{found[1]}", revision, path)

    def at(self, commit: str) -> str:
        """Return the address with a commit written out."""
        return f"{_SCHEME}{self.name}@{commit}{f'/{self.path}' if self.path else ''}"

    def __str__(self) -> str:
        return self.at(quote(self.revision, safe="-._~"))


class HubSource:
    """Models of the hub."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def open(self, address: str) -> HubSnapshot:
        """See `Source.open`. One or two requests; none if the cache has the commit, or the network may not be used."""
        parsed = HubAddress.parse(address)
        environment = HubEnvironment.read(self._settings.environment)
        cache = HubCache(environment.cache, links=environment.links)
        return _Look(parsed, environment, cache.repository(parsed.name), self._settings.http).open()


class HubSnapshot(RangedFiles):
    """A model of the hub at one commit, with the files that it needs.

    Attributes:
        commit: Full name.
        cached: The `destination`: its snapshot in the hub's cache.
    """

    def __init__(
        self,
        look: _Look,
        commit: str,
        files: Sequence[RemoteFile],
        destination: CachedSnapshot,
        notes: Sequence[str],
    ) -> None:
        pinned = look.address.at(commit)
        super().__init__(look.http, pinned, files, self._locate, destination=destination, notes=notes)
        self.commit, self.cached = commit, destination
        self._look = look

    def close(self) -> None:
        """See `Opened.close`."""
        super().close()
        self._look.quick.close()

    def _locate(self, file: RemoteFile) -> Location:
        return self._look.api().locate(self.commit, posixpath.join(self.cached.base, file.name))


class _Look:
    """One look at an address.

    Args:
        environment: Endpoint, token, and whether the network may be used.
        http: What its own clients for the hub are made like.
    """

    def __init__(
        self, address: HubAddress, environment: HubEnvironment, repository: CachedRepository, http: Http
    ) -> None:
        host = urlsplit(environment.endpoint).hostname or ""  # which the operator named with the endpoint
        self.address = address
        self.http, self.quick = http.naming(host), http.naming(host, stall_s=environment.timeout_s)
        self._environment, self._repository = environment, repository

    def open(self) -> HubSnapshot:
        """Return the snapshot. Raises as `Source.open`."""
        try:
            return self._open()
        except BaseException:
            self.http.close()
            self.quick.close()
            raise

    def api(self) -> HubApi:
        """Return the hub's API, with the token of this moment. Raises SourceUnavailableError if it may not be used."""
        if self._environment.offline:
            raise SourceUnavailableError(f"{self.address}: HF_HUB_OFFLINE is set, and the hub is not asked")
        return HubApi(self.quick, self._environment, self.address.name)

    def _open(self) -> HubSnapshot:
        revision = self.address.revision
        if self._environment.offline:
            note = "" if is_commit(revision) else f"HF_HUB_OFFLINE is set: {revision} is as the cache last saw it"
            return self._from_cache(note, "HF_HUB_OFFLINE is set: unset it, and they are fetched")
        if is_commit(revision) and (known := self._if_complete(revision)) is not None:
            return known
        try:
            return self._from_hub()
        except SourceUnavailableError as error:
            note = f"the hub was not reached ({error}): {revision} is as the cache last saw it"
            try:
                return self._from_cache(note, "")
            except ArtifactNotFoundError as missing:
                again = SourceUnavailableError(f"{error}; and {missing}")
                again.retry_after_s = error.retry_after_s
                raise again from error

    def _from_hub(self) -> HubSnapshot:
        api = self.api()
        revision = self.address.revision
        commit = revision if is_commit(revision) else api.commit(revision)
        listing = self._repository.listing(commit)  # which never changes
        if listing is None:
            listing = api.listing(commit)
        snapshot = self._repository.snapshot(commit, listing=listing)

        def read(name: str) -> bytes:
            known = snapshot.find(listing[name].remote(name))
            return known.read_bytes() if known is not None else api.read(commit, name, listing[name])

        selection = self._select(listing, read)
        return self._snapshot(
            commit, selection, {name: listing[name].remote(name) for name in selection.files}, listing
        )

    def _if_complete(self, commit: str) -> HubSnapshot | None:
        """Return the snapshot of a commit if the cache proves that it has all of it."""
        if self._repository.listing(commit) is None and self.address.path not in self._repository.found(commit):
            return None  # a client that keeps no listings may have fetched a part
        try:
            return self._from_cache("", "")
        except ArtifactNotFoundError:
            return None

    def _from_cache(self, note: str, remedy: str) -> HubSnapshot:
        """Return the snapshot that the cache has. Raises ArtifactNotFoundError, which names what it lacks."""
        commit = self._repository.commit(self.address.revision)
        if commit is None:
            raise self._lacking(["all of it"], remedy)
        listing = self._repository.listing(commit)
        files = (
            {name: file.remote(name) for name, file in listing.items()}
            if listing is not None
            else self._repository.found(commit)
        )
        snapshot = self._repository.snapshot(commit)

        def read(name: str) -> bytes:
            known = snapshot.find(files[name])
            if known is None:
                raise self._lacking([name], remedy)
            return known.read_bytes()

        try:
            selection = self._select(files, read)
        except (NotSupportedError, ArtifactNotFoundError) as error:
            if listing is None and str(self._environment.cache) not in str(error):  # the repository may have more
                raise self._lacking([f"files of which no listing is kept ({error})"], remedy) from error
            raise
        missing = [name for name in selection.files if snapshot.find(files[name]) is None]
        if missing:
            raise self._lacking(missing, remedy)
        return self._snapshot(commit, selection, files, listing, note)

    def _lacking(self, missing: Sequence[str], remedy: str) -> ArtifactNotFoundError:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return ArtifactNotFoundError(
            f"the hub's cache {self._environment.cache} lacks of {self.address}: {', '.join(missing[:_SHOWN])}{more}"
            f"{f'; {remedy}' if remedy else ''}"
        )

    def _select(self, files: Mapping[str, object], read: Callable[[str], bytes]) -> Selection:
        try:
            return hub_choice.complete(hub_choice.wanted(files, self.address.path), read)
        except (NotSupportedError, ArtifactNotFoundError) as error:
            if str(self.address) in str(error):
                raise
            raise type(error)(f"{self.address}: {error}") from error

    def _snapshot(
        self,
        commit: str,
        selection: Selection,
        files: Mapping[str, RemoteFile],
        listing: Mapping[str, HubFile] | None,
        note: str = "",
    ) -> HubSnapshot:
        """Return an opened snapshot, whose files are named below the address: by their last part if it is a file's."""
        path = self.address.path
        base = posixpath.dirname(path) if path in selection.files else path
        destination = self._repository.snapshot(commit, revision=self.address.revision, base=base, listing=listing)
        below = [_below(files[name], base) for name in selection.files]
        notes = [note] if note else []
        if listing is None:
            notes.append(f"the cache has no listing of {commit}: files that no other one names may be missing")
        return HubSnapshot(self, commit, below, destination, notes)


def _below(file: RemoteFile, base: str) -> RemoteFile:
    return replace(file, name=file.name[len(base) + 1 :]) if base else file


def _split_revision(text: str) -> tuple[str, str]:
    """Split what follows the name into revision and path."""
    special = _WITH_SLASH.match(text)
    revision = special[0] if special is not None else text.partition("/")[0]
    return unquote(revision), text[len(revision) + 1 :]


def _check_revision(address: str, revision: str) -> None:
    """Raise CallerError for a revision that git would refuse, or that leaves the folder of revisions."""
    parts = revision.split("/")
    if not revision.isprintable() or any(part.strip() != part or part in ("", ".", "..") for part in parts):
        raise CallerError(f"{address!r:.200}: {revision!r:.100} is no branch, tag or commit")


def _is_name(name: str) -> bool:
    org, _, model = name.partition("/")
    return (
        bool(_PART.match(org) and _PART.match(model))
        and len(name) <= _MOST_NAME_LETTERS
        and "--" not in name
        and ".." not in name
        and not model.endswith(".git")
    )
