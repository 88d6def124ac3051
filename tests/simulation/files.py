"""Memory, files and conversions that exist only in a simulated run, and can be torn, flipped and full."""

from __future__ import annotations

import errno
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import blake3

from trims.core.errors import (
    ArtifactError,
    CapacityError,
    ConversionError,
    DeviceLostError,
    ImageError,
    NoSpaceError,
    SourceUnavailableError,
)
from trims.core.place import Place, TierKind
from trims.keeper.messages import Verdict
from trims.memory.cuda.drivers import Export
from trims.tiers.base import Draft, Extent
from trims.tiers.cloud import CloudImage, CloudTier

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from trims.image.in_place import InPlacePlan
    from trims.store.resolve.resolved import Resolved

    from .choices import Choices
    from .judge import Judge

_UNWRITTEN = "unwritten"


def digest_of(content: str) -> str:
    """The digest of a simulated file."""
    return str(blake3.blake3(content.encode()).hexdigest())


@dataclass(slots=True, eq=False)
class SimFile:
    """One file or segment: its content is a word that stands for all its bytes."""

    nbytes: int
    content: str = _UNWRITTEN
    version: int = 0
    gone: bool = False


class SimBytes:
    """`trims.store.fill.copying.HostBytes` over simulated files. Descriptors are numbers no real file has."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._numbers = itertools.count(1_000_000)
        self.open: dict[int, SimFile] = {}

    def descriptor(self, file: SimFile) -> int:
        """Open a file."""
        number = next(self._numbers)
        self.open[number] = file
        return number

    def close(self, fd: int) -> None:
        """Close a descriptor, once."""
        del self.open[fd]

    def identity(self, fd: int) -> tuple[int, ...]:
        """See `HostBytes`."""
        return (id(self.open[fd]) % 997, self.open[fd].nbytes, self.open[fd].version)

    def check(self, fd: int, nbytes: int) -> None:
        """See `HostBytes`."""
        if self.open[fd].nbytes != nbytes or not self.open[fd].content.startswith("image of "):
            raise ImageError("it is no image")

    def digest(self, fd: int, nbytes: int, behind: object = None) -> str:
        """See `HostBytes`."""
        del nbytes, behind
        return digest_of(self.open[fd].content)

    digest_of_untrusted = digest

    def copy(
        self,
        source_fd: int,
        target_fd: int,
        nbytes: int,
        on_progress: Callable[[int], None],
        pages: object,
    ) -> None:
        """See `HostBytes`; fails in the middle now and then."""
        del pages
        source = self.open[source_fd]
        if self._choices.chance(24):
            raise OSError(errno.ENOSPC, "No space left on device")
        if source.gone:
            raise ImageError("the source ends too early")
        on_progress(nbytes // 2)
        self.open[target_fd].content = source.content
        on_progress(nbytes)

    def runs_code(self, fd: int, nbytes: int) -> bool:
        """See `HostBytes.runs_code`."""
        del fd, nbytes
        return False

    def copy_behind(
        self, source_fd: int, draft: Draft, on_progress: Callable[[int], None], behind: object
    ) -> str | None:
        """See `HostBytes`; now and then it gives way in the middle, as to a request."""
        del behind
        if self._choices.chance(8):
            self.open[draft.fd].content = "half an image"
            return None
        self.copy(source_fd, draft.fd, draft.nbytes, on_progress, None)
        return digest_of(self.open[draft.fd].content)

    def stop(self) -> None:
        """See `HostBytes`."""


class SimTier:
    """A tier of simulated files, with less memory than it was promised, that outlives its daemon."""

    unit_bytes = 1

    def __init__(self, place: Place, capacity_bytes: int, files: SimBytes, choices: Choices, judge: Judge) -> None:
        self.place = place
        self.capacity_bytes = capacity_bytes
        self.hash_on_adoption = place.tier is TierKind.CPU
        self._files = files
        self._choices = choices
        self._judge = judge
        self.skipped = 0
        #: Unfinished memory by label, sealed memory by label: (file, key, digest).
        self.drafts: dict[str, SimFile] = {}
        self.sealed: dict[str, tuple[SimFile, str, str]] = {}
        self.extents: dict[str, Extent] = {}
        #: Bytes of the machine's room that other programs take.
        self.squatted_bytes = 0
        self._numbers = itertools.count(1)
        self._fds: set[int] = set()

    def held_bytes(self) -> int:
        """Return the bytes of all memory known to this daemon: not of what it could not look at, or not give back."""
        known = [held[0] for label, held in self.sealed.items() if label in self.extents.keys() - self._judge.stuck]
        return sum(-(-file.nbytes // self.unit_bytes) * self.unit_bytes for file in [*self.drafts.values(), *known])

    def held_in_all(self) -> int:
        """Return the bytes that all sealed memory takes."""
        return sum(-(-held[0].nbytes // self.unit_bytes) * self.unit_bytes for held in self.sealed.values())

    def squat(self, nbytes: int) -> None:
        """Other programs take so much of the machine's room from now on, or what is left of it."""
        self.squatted_bytes = 0
        self.squatted_bytes = max(0, min(nbytes, self.room_bytes()))

    def room_bytes(self) -> int:
        """Return the bytes that the machine can still give: also memory that the daemon does not know of takes room."""
        drafts = sum(-(-file.nbytes // self.unit_bytes) * self.unit_bytes for file in self.drafts.values())
        return self.capacity_bytes - self.squatted_bytes - self.held_in_all() - drafts

    def stays_bytes(self) -> int:
        """Return the bytes that nothing can make the daemon give back: it could not look at them, or not free them."""
        known = self.extents.keys() - self._judge.stuck
        return sum(held[0].nbytes for label, held in self.sealed.items() if label not in known)

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        """See `Tier`."""
        del allocate
        if self._choices.chance(24):
            raise CapacityError("no descriptor left")
        self._judge.creates(self, key, nbytes)
        room = self.room_bytes()
        if self._choices.chance(24) or nbytes > room:
            known = room if self._choices.chance(2) else None
            raise NoSpaceError(f"{self.place} is full: {nbytes} bytes", known)
        label = f"{key[:8]}-{self.place}-{generation}-{next(self._numbers)}"
        file = self.drafts[label] = SimFile(nbytes)
        return Draft(self._descriptor(file), nbytes, label)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier`."""
        file = self.drafts.pop(draft.label)
        self._close(draft.fd)
        if self._choices.chance(24):
            raise OSError(errno.EIO, "Input/output error")
        self.sealed[draft.label] = (file, key, digest)
        self._judge.seals(self, key, file.content)
        return self._open(draft.label)

    def _open(self, label: str) -> Extent:
        file, key, digest = self.sealed[label]
        extent = Extent(key, self.place, file.nbytes, digest, self._descriptor(file), label)
        self.extents[label] = extent
        return extent

    def abort(self, draft: Draft) -> None:
        """See `Tier`."""
        del self.drafts[draft.label]
        self._close(draft.fd)

    def explain(self, error: OSError, nbytes: int) -> Exception:
        """See `Tier`."""
        return NoSpaceError(f"{self.place} is full: {nbytes} bytes") if error.errno == errno.ENOSPC else error

    def free(self, extent: Extent) -> None:
        """See `Tier`; fails now and then."""
        self._judge.frees(self, extent)
        if self._choices.chance(24):
            self._judge.stuck.add(extent.label)
            raise OSError(errno.EIO, "Input/output error")
        self.sealed.pop(extent.label, None)
        if self.extents.pop(extent.label, None) is not None:
            self._close(extent.fd)

    def scan(self) -> Iterator[Extent]:
        """See `Tier`: some cannot be looked at, some were changed while no daemon ran."""
        self.skipped = 0
        self.drafts.clear()
        for label in list(self.sealed):
            if self._choices.chance(12):
                self.skipped += 1
                continue
            extent = self._open(label)
            extent.fresh, extent.identity = False, self._files.identity(extent.fd)
            yield extent

    def leave(self, extent: Extent) -> None:
        """See `Tier`."""
        self._close(self.extents.pop(extent.label).fd)

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier`."""
        del cancelled, pace
        found = self._files.digest(extent.fd, extent.nbytes)
        if found != extent.digest:
            raise ImageError(f"{extent.label} hashes to {found[:8]}")
        extent.fresh, extent.identity = True, self._files.identity(extent.fd)

    def flip(self) -> None:
        """Change the bytes of one sealed replica, as a program with the right to do so might."""
        if self.sealed:
            label = self._choices.one_of(list(self.sealed))
            file = self.sealed[label][0]
            file.content, file.version = "flipped " + file.content, file.version + 1
            if not self.extents and self.hash_on_adoption:
                self._judge.foul.add(label)

    def close(self) -> None:
        """See `Tier`."""
        for extent in self.extents.values():
            self._close(extent.fd)
        self.extents.clear()

    def died(self) -> None:
        """The daemon was killed: the kernel closed what it had open."""
        for fd in list(self._fds):
            self._close(fd)
        self.extents.clear()

    def _descriptor(self, file: SimFile) -> int:
        fd = self._files.descriptor(file)
        self._fds.add(fd)
        return fd

    def _close(self, fd: int) -> None:
        self._fds.remove(fd)
        self._files.close(fd)


class SimArtifacts(SimTier):
    """Artifacts that are open. A reader sees what the file held when it was opened: files are replaced by renames."""

    def serve(self, key: str, generation: int, plan: InPlacePlan) -> Extent:
        """See `InPlaceTier`; there is no descriptor now and then."""
        if self._choices.chance(24):
            raise CapacityError("no descriptor left")
        (part,) = plan.pages
        data = part.file.path.read_bytes() if part.file.path.exists() else b""
        part.file.check_again()
        label = f"{key[:8]}-{self.place}-{generation}-{next(self._numbers)}"
        self.sealed[label] = (SimFile(plan.nbytes, f"image of {self._judge.content_of_file(data)}"), key, "")
        return self._open(label)

    def close(self) -> None:
        """See `Tier`."""
        super().close()
        self.sealed.clear()

    def died(self) -> None:
        """The daemon was killed: the kernel closed what it had open."""
        super().died()
        self.sealed.clear()


class SimDevice(SimTier):
    """A device with a keeper that may die, and all its memory with it."""

    uuid = "GPU-0"
    peers: frozenset[str] = frozenset()
    reserve_bytes = 10
    unit_bytes = 8
    ends_with_session = False
    lives = 0

    def _open(self, label: str) -> Extent:
        extent = super()._open(label)
        extent.export = Export("vmm", self.uuid, extent.nbytes)
        return extent

    def keeper_dies(self) -> None:
        """Lose all memory of the keeper."""
        self.lives += 1
        for file in self.drafts.values():
            file.gone = True
        self.sealed.clear()

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier`."""
        if self.drafts[draft.label].gone:
            self.abort(draft)
            raise DeviceLostError("the keeper has ended")
        return super().seal(draft, key, digest)

    def copy_in(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        """See `DeviceTier`."""
        self._files.copy(source.fd, draft.fd, draft.nbytes, on_progress or (lambda _: None), None)

    def copy_out(self, extent: Extent, draft: Draft, on_progress: Callable[[int], None] | None = None) -> None:
        """See `DeviceTier`."""
        if extent.label not in self.sealed:
            raise DeviceLostError("the keeper has ended")
        self._files.copy(extent.fd, draft.fd, draft.nbytes, on_progress or (lambda _: None), None)

    def copy_across(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        """See `DeviceTier`."""
        raise AssertionError("there is one device")

    def examine(self, extent: Extent) -> Verdict:
        """See `DeviceTier`."""
        return Verdict("blake3", self._files.digest(extent.fd, extent.nbytes), extent.digest)


class SimCloud(CloudTier):
    """Images in a bucket that does not answer now and then, breaks off, or has other bytes than were described."""

    def __init__(self, files: SimBytes, choices: Choices, judge: Judge) -> None:
        super().__init__(self._bring, lambda: list(self._ever.values()))
        self._files, self._choices, self._judge = files, choices, judge
        #: Images that any daemon knew.
        self._ever: dict[str, CloudImage] = {}
        self.drafts: dict[str, SimFile] = {}
        self.sealed: dict[str, tuple[SimFile, str, str]] = {}
        self.extents: dict[str, Extent] = {}

    def held_in_all(self) -> int:
        """Return 0: nothing of it is here."""
        return 0

    def image_of(self, content: str, nbytes: int) -> CloudImage:
        """Return the image of a content, as a push would describe it."""
        return CloudImage(self._judge.keys[content], digest_of(f"image of {content}"), nbytes, f"bucket/{content}")

    def know(self, image: CloudImage) -> Extent:
        """See `CloudTier.know`."""
        extent = super().know(image)
        self._ever[image.key], self.extents[extent.label] = image, extent
        return extent

    def _bring(
        self, image: CloudImage, draft: Draft, on_progress: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        del stopped
        if self._choices.chance(8):
            raise SourceUnavailableError("the bucket does not answer")
        on_progress(image.nbytes // 2)
        self._files.open[draft.fd].content = "half an image"
        if self._choices.chance(12):
            raise SourceUnavailableError("the bucket broke off; what has come is kept")
        if self._choices.chance(12):
            raise ImageError("the bucket has other bytes than were described")
        wrong = " flipped" if self._choices.chance(24) else ""  # in a way that no checksum of the way notices
        self._files.open[draft.fd].content = f"image of {image.address.rpartition('/')[2]}{wrong}"
        on_progress(image.nbytes)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`."""
        self.extents.pop(extent.label, None)
        super().free(extent)

    def close(self) -> None:
        """See `Tier.close`."""
        self.extents.clear()
        super().close()

    died = close


class SimConversion:
    """See `trims.formats.conversion.conversion.Conversion`. Reads the artifact when planned, and again when written."""

    def __init__(self, resolved: Resolved, files: SimBytes, choices: Choices, judge: Judge) -> None:
        self._path = Path(resolved.artifact.files[0])
        self._files = files
        self._choices = choices
        self._judge = judge
        self._why: str | None = None
        judge.conversions += 1
        self._open = True

    def plan(self) -> int:
        """See `Conversion.plan`."""
        self._check()
        return self._judge.size_of_file(self._read())

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """See `Conversion.write`."""
        self._check()
        if on_progress is not None:
            on_progress(1)
        self._files.open[fd].content = f"image of {self._judge.content_of_file(self._read())}"

    def give_way(self, *, yes: bool) -> None:
        """See `Conversion.give_way`: there are no processors here."""

    @property
    def is_carriable(self) -> bool:
        """See `Conversion.is_carriable`: half of them."""
        return bool(self._choices.chance(2))

    def carry(self, by: object, fd: int, *, large_pages: bool) -> str | None:
        """See `Conversion.carry`; now and then it gives way in the middle, as to a request."""
        del by, large_pages
        if self._choices.chance(3):
            self._check()
            self._files.open[fd].content = "half an image"
            return None
        self.write(fd)
        return digest_of(self._files.open[fd].content)

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"{self._path}: {error}") from error

    def _check(self) -> None:
        if self._why is not None:
            raise ConversionError(f"its conversion was stopped: {self._why}")
        if self._choices.chance(24):
            raise ConversionError("the converter died")

    def cancel(self, why: str = "") -> None:
        """See `Conversion.cancel`."""
        self._why = self._why or why

    def close(self) -> None:
        """See `Conversion.close`."""
        self.cancel("closed")
        if self._open:
            self._open = False
            self._judge.conversions -= 1
