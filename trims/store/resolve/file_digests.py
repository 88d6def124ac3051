"""Digests of files: kept in the catalog by identity, and read where they are not known for certain."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import DigestMismatchError, ManifestError
from trims.store.catalog import identity_of
from trims.store.resolve import hashing
from trims.store.resolve.hashing import Digests, LongReadError, Progress, Reading
from trims.store.work import stepped_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trims.manifests.manifest import Manifest
    from trims.store.catalog import Catalog

#: A file was last written when its times say, or up to this many seconds later: some file systems keep whole seconds,
#: and the times of one call of `write` are those of its beginning. Such a call takes longer for more bytes, of which it
#: writes 2 GiB at most.
_REST_S, _WRITTEN_BYTES_PER_S, _MOST_WRITTEN_BYTES = 2.0, 64 << 20, 2 << 30
#: Marks a digest in the catalog that was read of a file which may still have been written.
_UNCERTAIN = " uncertain"
#: A file up to this length is hashed in less time than a thread takes to start on a busy machine.
_HASH_HERE_BYTES = 1 << 20


class FileDigests:
    """Digests of artifacts' files.

    Args:
        trusts: A file whose identity is unchanged is taken to hold the same bytes.
        rest_s: Seconds until a reading of a file is certain to see all of its last write; see `rest_of`.
    """

    def __init__(self, catalog: Catalog, *, trusts: bool, rest_s: Callable[[Path], float]) -> None:
        self._catalog = catalog
        self.trusts = trusts
        self.rest_s = rest_s

    def read(
        self,
        files: tuple[Path, ...],
        manifest: Manifest,
        reading: Reading,
        check: Callable[[], None],
        by_source: Mapping[str, str] | None = None,
    ) -> list[Digests]:
        """Return the digests of all files; those that are not known are read.

        Args:
            manifest: States the digests of some.
            check: Called before a long file is read.
            by_source: Digests (sha256) that the files' source states, by name in the folder of the main file.

        Raises ManifestError, DigestMismatchError, LongReadError, and as `hashing.check_same`.
        """
        stated = dict(manifest.artifact.sha256)
        names = names_in_folder(files)
        unknown = set(stated) - set(names)
        if unknown:
            raise ManifestError(
                f"{manifest.name}: artifact.sha256 names {sorted(unknown)[0]!r}, which is not a file of it"
            )
        stated = {**(by_source or {}), **stated}
        return [self._digest(file, stated.get(name), reading, check) for file, name in zip(files, names, strict=True)]

    def _digest(self, file: Path, stated_sha256: str | None, reading: Reading, check: Callable[[], None]) -> Digests:
        identity, certain = identity_of(file), self.rest_s(file) <= 0
        known = self._known(file, identity) if self.trusts else None
        again = known is not None and not known.certain and certain and reading.behind is not None
        if known is None or again or (stated_sha256 is not None and known.sha256 is None):
            which = (str(file), identity, stated_sha256 is not None)
            whole = None if reading.progress is None else reading.progress.known(which, certain=again)
            known = whole or self._read(file, which, certain, reading, check)
        if stated_sha256 is not None and known.sha256 != stated_sha256:
            raise DigestMismatchError(
                f"{file.resolve()}: sha256 is {known.sha256}, the manifest or the file's source states "
                f"{stated_sha256}; fetch that file again, or, if it was changed on purpose, register it as it is now "
                "(`trims add PATH --replace`), or correct the manifest"
            )
        return known

    def _read(
        self, file: Path, which: tuple[str, str, bool], certain: bool, reading: Reading, check: Callable[[], None]
    ) -> Digests:
        """Read a file, from where its last turn ended."""
        long, (_, identity, _) = file.stat().st_size > _HASH_HERE_BYTES, which
        if long:
            check()
        if long and not reading.long:
            raise LongReadError(str(file))
        progress = reading.progress or Progress()
        part = progress.part(which, certain=certain)
        read = partial(hashing.read_digests, file, part, reading)
        found = stepped_back(read) if long else read()
        hashing.check_same(part, identity_of(file))
        progress.remember(which, found)
        mark = "" if found.certain else _UNCERTAIN
        self._catalog.remember_digests(str(file), identity + mark, found.blake3, found.sha256)
        return found

    @staticmethod
    def prove(files: tuple[Path, ...], manifest: Manifest, digests: Sequence[Digests] | None) -> bool:
        """Return whether the digests, None for none, are all that a manifest states of the files."""
        stated = manifest.artifact.sha256
        if digests is None:
            return not stated
        found = {name: each.sha256 for name, each in zip(names_in_folder(files), digests, strict=True)}
        return all(found.get(name) == digest for name, digest in stated.items())

    def known(self, files: tuple[Path, ...], identities: tuple[str, ...]) -> list[Digests] | None:
        """Return the digests of all files, if the catalog has them."""
        known = [self._known(file, each) for file, each in zip(files, identities, strict=True)]
        found = [each for each in known if each is not None]
        return found if len(found) == len(files) else None

    def known_of(self, file: Path) -> Digests | None:
        """Return the digests of a file as it is now, if the catalog has them. Raises OSError."""
        return self._known(file, identity_of(file))

    def _known(self, file: Path, identity: str) -> Digests | None:
        for mark in ("", _UNCERTAIN):
            found = self._catalog.digests(str(file), identity + mark)
            if found is not None:
                return Digests(*found, certain=not mark)
        return None


def names_in_folder(files: Sequence[Path]) -> list[str]:
    """Return the name of each file of an artifact in the folder of its main file; of others their last part."""
    folder = files[0].parent
    return [str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name for file in files]


def rest_of(file: Path) -> float:
    """Return the seconds until a reading of the file is certain to see all of its last write; 0 or less if it is now.

    A file that is written once more within one tick of its file system's clock keeps its times. So does a file for as
    long as one call of `write` is under way. What is read meanwhile may not be what the file holds in the end; git has
    the same rule and calls such files racy. Times that lie in the future say nothing: the clock was wrong then.
    """
    status, now_s = file.stat(), time.time()
    written_s = max((each for each in (status.st_mtime, status.st_ctime) if each <= now_s), default=-math.inf)
    takes_s = _REST_S + min(status.st_size, _MOST_WRITTEN_BYTES) / _WRITTEN_BYTES_PER_S
    return written_s + takes_s - now_s
