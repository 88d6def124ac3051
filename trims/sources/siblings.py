"""Files beside the one that an address names: the shards of an index, and what a manifest states digests of."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trims.core.errors import ArtifactError
from trims.manifests.addresses import beside
from trims.manifests.fields import check_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trims.sources.base import Destination, Opened, Part, RemoteFile

_INDEX = ".index.json"
_MOST_INDEX_BYTES = 64 << 20
#: Files that one index may name.
_MOST_FILES = 1000
#: Schemes whose addresses are paths: a file beside another one has an address that is made from its.
_SCHEMES = ("http", "https", "s3", "gs", "az", "abfs", "abfss")


def with_siblings(opened: Opened, address: str, open_one: Callable[[str], Opened], stated: Iterable[str]) -> Opened:
    """Return what an address holds, with the files beside it that belong to it.

    Args:
        opened: The address; if it holds several files, nothing is added.
        open_one: Looks at an address.
        stated: Names of further files that a manifest states.

    Raises ArtifactError for an index that is none, or names files elsewhere; and as `Source.open`.
    """
    if len(opened.files) != 1 or urlsplit(address).scheme not in _SCHEMES or address.endswith("/"):
        return opened
    file = opened.files[0]
    names = set(stated) | set(_shards(opened, file) if file.name.endswith(_INDEX) else ())
    names.discard(file.name)
    if not names:
        return opened
    return Joined([opened, *(open_one(beside(address, name)) for name in sorted(names))], sorted(names))


def _shards(opened: Opened, file: RemoteFile) -> list[str]:
    if file.nbytes > _MOST_INDEX_BYTES:
        raise ArtifactError(f"{opened.pinned} is no index of shards: it has {file.nbytes} bytes")
    room = bytearray(file.nbytes)
    for _ in opened.fill(file, [(0, memoryview(room))]):
        pass
    try:
        found: Any = json.loads(room)["weight_map"].values()
        names = sorted({check_inside(name) for name in found})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{opened.pinned} is no index of shards beside it: {error}") from error
    if len(names) > _MOST_FILES:
        raise ArtifactError(f"{opened.pinned} names {len(names)} shards; {_MOST_FILES} are the most")
    return names


class Joined:
    """Several addresses as one: the first, and files beside it under their names there.

    Args:
        opened: Addresses of one file each; the first names them all.
        names: Names of the others.
    """

    destination: Destination | None = None

    def __init__(self, opened: Sequence[Opened], names: Sequence[str]) -> None:
        self._of: Mapping[str, tuple[Opened, RemoteFile]] = {
            name: (each, each.files[0]) for name, each in zip([opened[0].files[0].name, *names], opened, strict=True)
        }
        self.pinned = opened[0].pinned
        self.files: Sequence[RemoteFile] = tuple(
            replace(file, name=name) for name, (_, file) in sorted(self._of.items())
        )
        self.notes: Sequence[str] = tuple(note for each in opened for note in each.notes)

    def fill(self, file: RemoteFile, parts: Sequence[Part]) -> Iterator[None]:
        """See `Opened.fill`."""
        opened, there = self._of[file.name]
        return opened.fill(there, parts)

    def close(self) -> None:
        """See `Opened.close`."""
        for opened, _ in self._of.values():
            opened.close()
