"""Mappings of one session: each image is mapped once in a process, however often it is opened.

A lease ends when nobody in this process can reach the bytes any more: the last `Weights` is closed and the last view
is gone. Which may be noticed in a finaliser, in any thread, at any moment; so releasing only notes it down, and the
session sends the note at its next chance.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, ClosedError, ImageError
from trims.memory.attach import Attachment

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from trims.memory.cuda.drivers import Export
    from trims.wire.frames import Message
    from trims_client.device import DeviceRegion


#: So many losses of leases that this client does not know are remembered.
_EARLY = 64


class Mapping:
    """One mapped image and the leases that keep it.

    Attributes:
        key: Image key.
        place: As text.
        identity: Device and inode of the segment.
        leases: Numbers held for it; the last one stays until the memory is unmapped.
        borrows: A token for each `Borrow` that is open; lease numbers would not do, as each daemon counts from 1.
        region: The device's memory, if the replica lies on one.
        names: What it was opened as.
        lost: Why its owner has it no more; None while he has.
    """

    __slots__ = ("attachment", "borrows", "identity", "key", "leases", "lost", "names", "place", "region")

    def __init__(self, key: str, place: str, identity: tuple[int, int], attachment: Attachment) -> None:
        self.key = key
        self.place = place
        self.identity = identity
        self.attachment = attachment
        self.leases: set[int] = set()
        self.borrows: set[object] = set()
        self.region: DeviceRegion | None = None
        self.names: set[str] = set()
        self.lost: str | None = None

    def open_device(self, export: Callable[[], Export]) -> None:
        """Open what the head describes. Raises NotSupportedError if this process cannot reach the device."""
        from trims_client.device import DeviceRegion

        try:
            self.region = DeviceRegion(export(), self.attachment.data)
        except BaseException:
            self.attachment.close()
            raise

    def close(self) -> None:
        """Unmap, as soon as no view is left."""
        self.region = None
        self.attachment.close()


class Mappings:
    """All mappings of a session.

    Args:
        lock: Guards the books; reentrant.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._by_image: dict[tuple[str, str, int, int], Mapping] = {}
        self._lingering: set[Mapping] = set()
        #: Leases to give back; appended from finalisers, where no lock may be taken.
        self.given_up: deque[int] = deque()
        #: Mappings that were lost, and nobody was told yet.
        self.untold: deque[Mapping] = deque()
        #: Leases that were lost before their grant was mapped here, with the reason.
        self._lost_early: dict[int, str] = {}
        #: Lets go of devices' memory that is given back, or could not be closed earlier; None before one was opened.
        self.collect: Callable[[], object] | None = None

    def borrow(
        self,
        answer: Message,
        fd: int,
        name: str = "",
        *,
        void: bool = False,
        export: Callable[[int], Export] | None = None,
    ) -> Borrow:
        """Map what was granted, or use the mapping there is. Takes the descriptor over.

        Args:
            answer: The grant.
            fd: What came with it.
            name: What was asked for.
            void: The lease has ended with its connection: the memory is mapped, the number not remembered.
            export: Gets what opens a device's memory, by the lease's number; asked once for each mapping.

        Raises ImageError if the segment is not what the daemon announced; the lease is given back.
        BadMessageError if the answer is no grant.
        """
        lease = answer.get("lease")
        if type(lease) is not int:
            if fd >= 0:
                os.close(fd)
            raise BadMessageError(f"the daemon granted without a lease: {answer!r}"[:200])
        given_up = [] if void else self.given_up
        try:
            status = os.fstat(fd)
            image = (str(answer["key"]), str(answer["place"]), status.st_dev, status.st_ino)
            with self._lock:
                mapping = self._by_image.get(image)
                if mapping is None:
                    mapping = self._map(image, fd, int(answer["nbytes"]))
                    if "device" in answer and export is not None:
                        mapping.open_device(lambda: export(lease))
                        self.collect = _collector()
                    self._by_image[image] = mapping
                mapping.names.add(name)
                borrow = Borrow(self, image, mapping, lease)
                if not void:
                    self._hold(mapping, lease)
                return borrow
        except (OSError, ValueError, KeyError, TypeError) as error:
            given_up.append(lease)
            raise ImageError(f"the granted segment cannot be mapped: {error}") from error
        except BaseException:
            given_up.append(lease)
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    def _hold(self, mapping: Mapping, lease: int) -> None:
        mapping.leases.add(lease)
        if lease in self._lost_early:
            self.lose(lease, self._lost_early.pop(lease))

    def _map(self, image: tuple[str, str, int, int], fd: int, nbytes: int) -> Mapping:
        held: list[Mapping] = []

        def released() -> None:
            mapping = held.pop()
            self.given_up.extend(mapping.leases)
            mapping.leases.clear()
            self._lingering.discard(mapping)

        mapping = Mapping(image[0], image[1], image[2:], Attachment(fd, nbytes, released))
        held.append(mapping)
        return mapping

    def give_back(self, image: tuple[str, str, int, int], mapping: Mapping, lease: int, token: object) -> None:
        """One borrow is closed. The last one unmaps, and keeps its lease until no view is left."""
        with self._lock:
            mapping.borrows.discard(token)
            if mapping.borrows:
                if lease in mapping.leases:  # not one of an earlier daemon, whose number may mean another by now
                    mapping.leases.discard(lease)
                    self.given_up.append(lease)
                return
            if self._by_image.get(image) is mapping:
                del self._by_image[image]
                self._lingering.add(mapping)
        mapping.close()

    def lose(self, lease: int, reason: str) -> None:
        """A lease has ended at the daemon, which has lost the memory: its number means nothing any more.

        What is mapped stays mapped, and is not given to anybody who opens from now on.
        """
        with self._lock:
            mapping = next((each for each in self.held() if lease in each.leases), None)
            if mapping is None:
                if lease not in self.given_up:  # told once more that it is over, the daemon says so; else its grant
                    self._lost_early[lease] = reason  # is on its way to be mapped
                    while len(self._lost_early) > _EARLY:
                        del self._lost_early[next(iter(self._lost_early))]
                return
            mapping.leases.discard(lease)
            if mapping.lost is None:
                mapping.lost = reason
                self.untold.append(mapping)
            for image in [image for image, each in self._by_image.items() if each is mapping]:
                del self._by_image[image]
                self._lingering.add(mapping)

    def lose_leases(self) -> list[Mapping]:
        """The daemon that granted them is gone: forget all numbers; returns what is still mapped."""
        with self._lock:
            self.given_up.clear()
            self._lost_early.clear()
            for mapping in self.held():
                mapping.leases.clear()
            return self.held()

    def held(self) -> list[Mapping]:
        """All mappings whose memory this process can still reach."""
        with self._lock:
            return [*self._by_image.values(), *self._lingering]


def _collector() -> Callable[[], object]:
    from trims_client.device import collect

    return collect


class Borrow:
    """One `Weights`' share of a mapping: what an Attachment is to a single user."""

    def __init__(self, owner: Mappings, image: tuple[str, str, int, int], mapping: Mapping, lease: int) -> None:
        self._owner = owner
        self._image = image
        self._mapping: Mapping | None = mapping
        self._lease = lease
        self._token = object()
        mapping.borrows.add(self._token)

    @property
    def mapping(self) -> Mapping:
        """What is shared. Raises ClosedError."""
        return self._open()

    @property
    def data(self) -> memoryview:
        """All bytes, read-only."""
        return self._open().attachment.data

    def private_data(self) -> memoryview:
        """All bytes, copy-on-write."""
        return self._open().attachment.private_data()

    @property
    def region(self) -> DeviceRegion | None:
        """The device's memory; None on the host."""
        return self._open().region

    @property
    def lost(self) -> str | None:
        """See `Mapping.lost`; None once this share is given back."""
        mapping = self._mapping
        return None if mapping is None else mapping.lost

    def close(self) -> None:
        """Give this share back. Idempotent."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            self._owner.give_back(self._image, mapping, self._lease, self._token)

    def _open(self) -> Mapping:
        if self._mapping is None:
            raise ClosedError("these weights are closed; open them again to read")
        return self._mapping
