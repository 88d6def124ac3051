"""Reading an artifact's files for their digests: in turns, rate-limited, and to the end only while a request waits.

A read that takes its turn with others stops after `TURN_BYTES`, and goes on from there later: a file of a terabyte
holds up one of a gigabyte for the length of a turn. So does a read that no request waited for any more: if one waits
again, and the file is the same, nothing is read twice. Not covered: which workers read (`lookups`), and where digests
are kept (`catalog`).
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import blake3

from trims.background.task import Order, SourceFailedError, Task
from trims.core.errors import ArtifactChangedError, ArtifactError
from trims.memory.reading import read_up_to
from trims.store.catalog import identity_of, same_file
from trims.tiers.transfer import default_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.background.rate_limit import Behind
    from trims.core.place import Place

#: Bytes that a read may take before another one has its turn: a second or two of a plain disk.
TURN_BYTES = 256 << 20
_READ_BYTES = 16 << 20


class LongReadError(Exception):
    """A file must be read in full, which takes long: ask again where that holds up no other lookup."""


class DigestNeededError(Exception):
    """The artifact may not be served before it was read: ask again for its digest."""


class NotWantedError(Exception):
    """No request waits for the answer any more."""


class TurnOverError(Exception):
    """A file was read as far as one turn goes: ask again, with the same progress, once others had theirs."""


class ReplacedError(Exception):
    """Another file lies at the path by now, such as by a rename: what was read is of no use, begin with the new one."""


class Digests(NamedTuple):
    """Digests of one file; `certain` unless it may still have been written while it was read."""

    blake3: str
    sha256: str | None
    certain: bool


class Sizes(Protocol):
    """Judgement of sizes: which images are too large for the requests of a lookup, before their artifacts are read."""

    def may_refuse(self, nbytes: int, stated: Place | None) -> bool:
        """Return whether an image of so many bytes, at its manifest's place, is too large for some of the requests."""
        ...

    def refuse(self, nbytes: int, stated: Place | None) -> None:
        """Refuse the requests for which an image of at least so many bytes is too large.

        Raises NotWantedError if no request is left, or the error itself where there is but one.
        """
        ...


@dataclass(slots=True, eq=False)
class Part:
    """A file that was not read to its end.

    Attributes:
        file: Path and identity, and whether its sha256 is wanted.
        certain: Whether the file was at rest when the read began: see `Digests`.
    """

    file: tuple[str, str, bool]
    certain: bool
    tree: Any
    sha256: Any
    done_bytes: int = 0


class Progress:
    """Progress of reading the files of one lookup. For one thread at a time.

    Attributes:
        least_bytes: The fewest bytes that an image of the artifact can take; None until that was found out.
        read_bytes: Bytes read in all turns together.
    """

    def __init__(self) -> None:
        self.least_bytes: int | None = None
        self.read_bytes = 0
        self._whole: dict[tuple[str, str, bool], Digests] = {}
        self._part: Part | None = None
        self._is_from_before = False

    def known(self, file: tuple[str, str, bool], *, certain: bool) -> Digests | None:
        """Return the digests of a file that was read to its end, by its path, identity and whether sha256 is wanted."""
        found = self._whole.get(file)
        return found if found is not None and found.certain >= certain else None

    def remember(self, file: tuple[str, str, bool], digests: Digests) -> None:
        """Keep the digests of a file that was read to its end."""
        self._whole[file], self._part = digests, None

    def part(self, file: tuple[str, str, bool], *, certain: bool) -> Part:
        """Return how far a file was read, or begin with it.

        Raises as `check_same` if the file was changed between two turns of one lookup.
        """
        part, is_from_before = self._part, self._is_from_before
        self._is_from_before = False
        if part is None or part.file != file:
            self._part = begun = begin(file, certain=certain)
            if part is not None and part.file[0] == file[0] and not is_from_before:
                check_same(part, file[1])
            return begun
        return part

    def keep(self) -> Progress | None:
        """Return how far a file was read, for the next lookup of the same name; None if none was begun."""
        if self._part is None or not self._part.done_bytes:
            return None
        kept = Progress()
        kept._part, kept._is_from_before = self._part, True
        return kept


@dataclass(frozen=True, slots=True)
class Reading:
    """Permissions of a lookup that may have to learn a file's digest.

    Attributes:
        digest: Whether it must. Without, an artifact that may be served in place is not read; for any other it raises
            DigestNeededError.
        long: Whether it may read long files; else it raises LongReadError.
        wanted: Asked now and then while a file is read; False ends that with NotWantedError.
        behind: Rate limiter, if no request waits for the answer; None if one does.
        progress: How far files were read. With it, a long read raises TurnOverError when its turn is over; None reads
            each file to its end.
        sizes: Refuses requests before a long file is read; None lets every file be read.
    """

    long: bool = True
    digest: bool = True
    wanted: Callable[[], bool] = lambda: True
    behind: Behind | None = None
    progress: Progress | None = None
    sizes: Sizes | None = None


def begin(file: tuple[str, str, bool], *, certain: bool) -> Part:
    """Begin with a file."""
    return Part(file, certain, blake3.blake3(max_threads=default_threads()), hashlib.sha256() if file[2] else None)


def check_same(part: Part, identity: str) -> None:
    """Compare the identity that a file has now with that of the file whose reading began.

    Raises ReplacedError for another file, ArtifactChangedError for one that was written or touched meanwhile.
    """
    path, before, _ = part.file
    if same_file(before, identity):
        if identity != before:
            raise ArtifactChangedError(f"{path} changed while it was read; open it again once it is written")
        return
    raise ReplacedError(path)


def read_digests(file: Path, part: Part, reading: Reading) -> Digests:
    """Read a file to its end, or as far as the turn goes.

    Not through a mapping: a file that shrinks meanwhile would kill the daemon.

    Raises NotWantedError, TurnOverError, as `check_same`, and ArtifactError for an empty file.
    """
    if reading.behind is not None:
        found = _read_behind(file, part, reading, reading.behind)
        if found is not None:
            return found
    until_bytes = None if reading.progress is None else part.done_bytes + TURN_BYTES
    with (
        open(file, "rb", buffering=0) as source,
        memoryview(bytearray(_buffer_bytes(source.fileno(), _READ_BYTES))) as view,
    ):
        while got := read_up_to(source.fileno(), view, part.done_bytes):
            _add(part, view[:got])
            if reading.progress is not None:
                reading.progress.read_bytes += got
            _check_wanted(part, reading)
            if until_bytes is not None and part.done_bytes >= until_bytes:
                raise TurnOverError(str(file))
    if part.done_bytes == 0:
        raise ArtifactError(f"{file} is empty")
    return Digests(part.tree.hexdigest(), None if part.sha256 is None else part.sha256.hexdigest(), part.certain)


def _add(part: Part, piece: memoryview) -> None:
    part.tree.update(piece)
    if part.sha256 is not None:
        part.sha256.update(piece)
    part.done_bytes += len(piece)


def _read_behind(file: Path, part: Part, reading: Reading, behind: Behind) -> Digests | None:
    """Read the file rate-limited. Return None when a request starts waiting for this file."""
    with open(file, "rb", buffering=0) as source:
        nbytes = os.fstat(source.fileno()).st_size
        if nbytes == 0:
            raise ArtifactError(f"{file} is empty")
        task = Task.of_file(nbytes, ("blake3",) if part.sha256 is None else ("blake3", "sha256"))
        try:
            found = behind.carry(Order(task, [source.fileno()]), lambda _: _check_wanted(part, reading))
        except SourceFailedError as error:
            raise ArtifactError(f"{file} cannot be read: {error}") from error
    return None if found is None else Digests(found["blake3"], found.get("sha256"), part.certain)


def _check_wanted(part: Part, reading: Reading) -> None:
    """Raise if reading on is of no use: no request waits for it, or the file is another one by now."""
    if not reading.wanted():
        raise NotWantedError(f"{part.file[0]} was not read to its end: no request waits for it any more")
    check_same(part, identity_of(part.file[0]))


def _buffer_bytes(fd: int, most_bytes: int) -> int:
    """Limit a buffer to what the file has: zeroing memory takes longer than reading a small file."""
    return max(1, min(most_bytes, os.fstat(fd).st_size))
