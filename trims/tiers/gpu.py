"""The GPU tier: images in the memory of one device, which its keeper owns. The daemon itself never touches CUDA.

A sealed replica has two parts for borrowers: its head, in host memory, by which tensors are found; and the export of
the device's memory. Not covered: which images are there (residency), how they move (`trims.keeper.mover`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

from trims.core.errors import DaemonAwayError, DeviceLostError, ImageError, InternalError, TrimsError
from trims.core.place import Place, TierKind
from trims.keeper.messages import Verdict
from trims.keeper.watch import KeeperWatch
from trims.tiers.base import Draft, Extent, explain_descriptors, identity_of
from trims.tiers.checking import check_wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.keeper.client import KeeperConnection, KeeperState

log = logging.getLogger(__name__)
#: Unit, in bytes, in which devices give memory that can be shared, whichever way.
UNIT_BYTES = 2 << 20
#: Seconds to wait for a keeper's description: an operator waits for it at a terminal.
_DESCRIBE_S = 3.0


class GpuTier:
    """Images on one device.

    Args:
        number: Number of the place: `gpu:0` is number 0 of this daemon, whatever CUDA calls it.
        find: The socket of the device's keeper; starts one if none serves.
    """

    #: The keeper never died and no other process writes there.
    hash_on_adoption: bool = False

    def __init__(self, number: int, find: Callable[[], Path], capacity_bytes: int, reserve_bytes: int = 0) -> None:
        self.place = Place(TierKind.GPU, number)
        self.capacity_bytes = capacity_bytes
        self.reserve_bytes = reserve_bytes
        self.unit_bytes = UNIT_BYTES
        self._keeper = KeeperWatch(str(self.place), find)
        self.uuid, self.peers = self._keeper.state.device, self._keeper.state.peers
        self._lock = threading.Lock()
        #: A draft goes with its connection, so each has one of its own.
        self._drafts: dict[str, KeeperConnection] = {}
        self._open: dict[str, Extent] = {}
        #: Images that the keeper could not free when asked to, each with its label.
        self._owed: dict[int, str] = {}
        self._skipped = 0

    @property
    def ends_with_session(self) -> bool:
        """See `DeviceTier.ends_with_session`."""
        return not self._keeper.state.read_only

    @property
    def skipped(self) -> int:
        """See `Tier.skipped`."""
        return self._skipped

    def create(self, key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:  # noqa: ARG002 - the protocol's
        """See `Tier.create`. The draft has no descriptor: `copy_in` fills it."""
        connection = self._keeper.connect()
        try:
            self._free_owed(connection)
            label = str(connection.create(nbytes))
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._drafts[label] = connection
        return Draft(-1, nbytes, label)

    def copy_in(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        """Have the keeper copy a replica of the host into the draft. Raises ImageError if it is not intact."""
        self._drafts[draft.label].fill(int(draft.label), source.fd, on_progress)

    def copy_across(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        """See `DeviceTier.copy_across`: this device's keeper opens the other's memory."""
        if source.export is None:
            raise InternalError(f"{source.key[:16]} at {source.place} lies on no device")
        self._drafts[draft.label].copy(int(draft.label), source.export, source.fd, on_progress)

    def copy_out(self, extent: Extent, draft: Draft, on_progress: Callable[[int], None] | None = None) -> None:
        """Have the keeper copy a replica of the device into a draft of the host."""
        with self._keeper.connect() as connection:
            connection.read(int(extent.label), draft.fd, on_progress)

    def seal(self, draft: Draft, key: str, digest: str) -> Extent:
        """See `Tier.seal`."""
        with self._lock:
            connection = self._drafts.pop(draft.label)
        with connection:
            connection.seal(int(draft.label), key, digest)
            try:
                return self._hold(connection, int(draft.label), key, digest, draft.nbytes)
            except BaseException:
                self._free(connection, int(draft.label), f"{key[:16]}, which cannot be borrowed,")
                raise

    def abort(self, draft: Draft) -> None:
        """See `Tier.abort`: the keeper frees what its connection did not seal."""
        with self._lock:
            connection = self._drafts.pop(draft.label)
        with connection:
            self._free(connection, int(draft.label), "a draft")

    def explain(self, error: OSError, nbytes: int) -> Exception:  # noqa: ARG002 - the protocol's
        """See `Tier.explain`: of the device's memory the keeper says CapacityError itself."""
        return explain_descriptors(error)

    def free(self, extent: Extent) -> None:
        """See `Tier.free`. A keeper that is gone has freed it; one that cannot is asked again before the next image.

        Until then it keeps it: raising would change nothing about that.
        """
        with self._lock:
            held = self._open.pop(extent.label, None)
        if held is None:
            return
        _let_go(held)
        image, what = int(extent.label), extent.key[:16]
        with self._freeing(image, what), self._keeper.connect() as connection:
            connection.free(image)

    def examine(self, extent: Extent) -> Verdict:
        """See `DeviceTier.examine`. A keeper of an older version knows blake3 alone."""
        with self._keeper.connect() as connection:
            if not self._keeper.state.verifies:
                return Verdict("blake3", connection.digest(int(extent.label)), extent.digest)
            verdict = connection.verify(int(extent.label))
        return verdict._replace(expected=extent.digest) if verdict.way == "blake3" else verdict

    def leave(self, extent: Extent) -> None:
        """See `Tier.leave`: the keeper keeps it."""
        with self._lock:
            held = self._open.pop(extent.label)
        _let_go(held)

    def verify(
        self, extent: Extent, cancelled: threading.Event | None = None, pace: Callable[[int], None] | None = None
    ) -> None:
        """See `Tier.verify`. The keeper does it in one order, so it is stopped only before and slowed only after."""
        check_wanted(extent, cancelled)
        if wrong := self.examine(extent).wrong:
            raise ImageError(f"{extent.key[:16]} at {self.place}: {wrong}")
        extent.fresh, extent.identity = True, identity_of(extent.fd)
        if pace is not None:
            pace(extent.nbytes)

    def scan(self) -> Iterator[Extent]:
        """Take over what the keeper holds; see `Tier.scan`. Nothing there is ever removed.

        What cannot be had, such as beside a full or a lost device, is left with the keeper: a daemon starts anyway.
        """
        self._skipped = 0
        try:
            connection = self._keeper.connect()
        except TrimsError as error:
            log.error("%s cannot be looked through: %s", self.place, error)  # noqa: TRY400 - the cause is all there is
            return
        with connection:
            yield from self._found(connection)

    def _found(self, connection: KeeperConnection) -> Iterator[Extent]:
        try:
            images = connection.hello().images
        except TrimsError as error:
            log.error("%s cannot be looked through: %s", self.place, error)  # noqa: TRY400 - the cause is all there is
            return
        for kept in images:
            try:
                extent = self._hold(connection, kept.image, kept.key, kept.digest, kept.nbytes)
            except (TrimsError, OSError) as error:
                log.warning("%s stays in the keeper of %s, unused: %s", kept.key[:16], self.place, error)
                self._skipped += 1
                continue
            extent.fresh, extent.identity = False, identity_of(extent.fd)
            yield extent

    def describe(self) -> KeeperState:
        """Return the keeper's present state. Raises DeviceLostError if it has ended, or does not answer soon."""
        with self._keeper.connect(_DESCRIBE_S) as connection:
            return connection.hello()

    def watch(self, lost: Callable[[Place], None], back: Callable[[Place], None]) -> None:
        """Have the keeper's end noticed, and another keeper started. Both are called from a thread of ours.

        Args:
            lost: What the keeper held is gone.
            back: Another one serves; always after `lost`.
        """
        self._keeper.start(lambda: lost(self.place), lambda: back(self.place))

    def unwatch(self) -> None:
        """Unwatch the keeper: neither callback is called any more. Idempotent."""
        self._keeper.end()

    def end_keeper(self) -> None:
        """Have the keeper free everything and end. After `close`."""
        with contextlib.suppress(TrimsError), self._keeper.connect() as connection:
            connection.end()

    def close(self) -> None:
        """See `Tier.close`: the keeper stays."""
        self.unwatch()
        with self._lock:
            for extent in self._open.values():
                _let_go(extent)
            self._open.clear()

    def _free(self, connection: KeeperConnection, image: int, what: str) -> None:
        """Have the keeper free an image. Raises nothing: see `free`."""
        with self._freeing(image, what):
            connection.free(image)

    @contextlib.contextmanager
    def _freeing(self, image: int, what: str) -> Iterator[None]:
        """Record images that the block could not free, if there is still a keeper to do it later.

        Raises no TrimsError.
        """
        try:
            yield
        except (DeviceLostError, DaemonAwayError) as error:
            log.info("%s at %s went with its keeper: %s", what, self.place, error)
        except TrimsError as error:
            log.error("%s at %s was not freed, which is tried again: %s", what, self.place, error)  # noqa: TRY400 - the cause is all there is
            with self._lock:
                self._owed[image] = what

    def _free_owed(self, connection: KeeperConnection) -> None:
        with self._lock:
            owed, self._owed = self._owed, {}
        for image, what in owed.items():
            self._free(connection, image, what)

    def _hold(self, connection: KeeperConnection, image: int, key: str, digest: str, nbytes: int) -> Extent:
        export, head_fd = connection.export(image)
        if os.fstat(head_fd).st_size != nbytes:
            export.close()
            os.close(head_fd)
            raise ImageError(f"the head of {key[:16]} at {self.place} is not of its image's length")
        extent = Extent(key, self.place, nbytes, digest, head_fd, str(image), named=False, export=export)
        with self._lock:
            self._open[extent.label] = extent
        return extent


def _let_go(extent: Extent) -> None:
    extent.close()
    if extent.export is not None:
        extent.export.close()
