"""Mappings of one session: each image is mapped once in a process, however often it is opened.

What a mapping is, and how its leases end, is in `mapped_image`.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque

from trims.core.errors import BadMessageError, ClosedError, ImageError, is_system_error
from trims.memory.attach import Attachment
from trims_client import forks
from trims_client.connection.sockets import lacks_descriptors
from trims_client.mapping.mapped_image import HeldLeases, Lease, MappedImage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from trims.memory.cuda.drivers import Export
    from trims.memory.pages import Pages
    from trims.wire.frames import Message
    from trims_client.connection.channel import Channel
    from trims_client.mapping.device import DeviceRegion
    from trims_client.mapping.mapped_image import Image, Upgrade


#: Most losses that are remembered for leases that this client does not know yet.
_EARLY = 64


class MappedImages:
    """All mappings of a session.

    Attributes:
        lock: Guards this object; reentrant. A close needs it, so no request to the daemon, which may hang, holds it.
        untold: Lost mappings that were not reported to the user yet.
        upgrades: Images that lie at a better place now. Events come in any thread; the watch thread sees to them.
        postponed: Mappings whose leases the watch thread takes up later, and the connections that refused them.
        collect: Closes device memory that was given back or could not be closed; None before any was opened.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: Lock for opening memory that no grant brings along. The opener asks the daemon, hence `lock` will not do.
        self._opening = threading.Lock()
        self._by_image: dict[Image, MappedImage] = {}
        self._unborrowed: set[MappedImage] = set()
        self.untold: deque[MappedImage] = deque()
        self.upgrades: deque[Upgrade] = deque()
        self.postponed: deque[tuple[Channel, MappedImage]] = deque()
        #: Borrows of weights that were dropped without a close. Finalisers append; they must not take `lock`, under
        #: which the very mapping may be in use by the thread that they interrupt.
        self.dropped: deque[Borrow] = deque()
        #: Leases that were lost before their grant was mapped here, and the reasons.
        self._lost_early: dict[tuple[Channel, int], str] = {}
        self.collect: Callable[[], object] | None = None
        forks.adapt_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks in a forked child: the threads that held the locks do not exist there."""
        self.lock, self._opening = threading.RLock(), threading.Lock()
        for mapping in self.held():
            mapping.attachment.after_fork()

    def borrow(
        self,
        channel: Channel,
        answer: Message,
        fd: int,
        name: str = "",
        *,
        export: Callable[[int], Export] | None = None,
        pages: Callable[[int, int], Pages] | None = None,
    ) -> Borrow:
        """Map the granted segment, or share the existing mapping. Takes ownership of the descriptor.

        Args:
            export: Asks the daemon, by the lease's number, for the device memory; called once for each mapping.
            pages: Asks the daemon, by the lease's number and the file's, for pages of an artifact's file that did not
                come with the grant. The descriptors of either are closed here.

        Raises:
            ImageError: The segment is not what the daemon announced; the lease is given back.
            OSError: This process has no descriptor left; the lease is given back.
            BadMessageError: The answer is no grant.
        """
        number = answer.get("lease")
        if type(number) is not int:
            if fd >= 0:
                os.close(fd)
            raise BadMessageError(f"the daemon granted without a lease: {answer!r}"[:200])
        lease = Lease(channel, number)
        try:
            status = os.fstat(fd)
            image = (str(answer["key"]), str(answer["place"]), status.st_dev, status.st_ino)
            nbytes = int(answer["nbytes"])
            if "device" in answer and export is not None:
                make = functools.partial(self._map_device, image, fd, nbytes, lambda: export(number))
                return self._borrow_apart(image, lease, name, make)
            if "pages" in answer:
                return self._borrow_apart(image, lease, name, lambda: self._map_given(image, fd, nbytes, answer))
            if "files" in answer and pages is not None:
                asks = [functools.partial(pages, number, file) for file in range(int(answer["files"]))]
                return self._borrow_apart(image, lease, name, lambda: self._map_files(image, fd, nbytes, asks))
            with self.lock:
                mapping = self._by_image.get(image) or self._map(image, fd, nbytes)
                mapping.digest = str(answer.get("digest", ""))
                mapping.anywhere = mapping.anywhere and answer.get("anywhere") is True
                return self._share(mapping, lease, name)
        except BaseException as error:
            lease.give_back()
            if isinstance(error, ImageError) or _is_about_the_bytes(error):
                raise ImageError(f"{name or 'the granted segment'} cannot be mapped: {error}; open it again") from error
            raise
        finally:
            for each in (fd, *(part[0] for part in answer.get("pages", ()))):
                if each >= 0:
                    os.close(each)

    def _borrow_apart(self, image: Image, lease: Lease, name: str, make: Callable[[], MappedImage]) -> Borrow:
        with self._opening:
            with self.lock:
                known = self._by_image.get(image)
                if known is not None:
                    return self._share(known, lease, name)
            made = make()
            with self.lock:
                return self._share(made, lease, name)

    def _share(self, mapping: MappedImage, lease: Lease, name: str) -> Borrow:
        """Add one borrow to the mapping. Called under the lock."""
        self._by_image[mapping.image] = mapping
        mapping.names.add(name)
        borrow = Borrow(self, mapping, lease)
        mapping.hold(lease)
        reason = self._lost_early.pop((lease.channel, lease.number), None)
        if reason is not None:
            self.lose(lease.channel, lease.number, reason)
        return borrow

    def _map(self, image: Image, fd: int, nbytes: int, pages: Iterable[Pages] = ()) -> MappedImage:
        held = HeldLeases()
        gone: list[Callable[[], None]] = []

        def released() -> None:
            held.release()
            for forget in gone:
                forget()

        mapping = MappedImage(image[0], image[1], image[2:], Attachment(fd, nbytes, released, pages), held)
        gone.append(functools.partial(_forget, weakref.ref(self), weakref.ref(mapping)))
        return mapping

    def _map_given(self, image: Image, fd: int, nbytes: int, answer: Message) -> MappedImage:
        """Map the head, and behind it the pages that came with the grant, which are taken out of `answer`."""
        from trims.memory.pages import Pages

        left: list[tuple[int, int, int, int]] = answer["pages"]
        if len(left) != int(answer["files"]):
            raise ImageError(f"pages of {len(left)} files were granted, {answer['files']} were announced")
        return self._map_files(image, fd, nbytes, [lambda: Pages(*left.pop(0))] * len(left))

    def _map_files(self, image: Image, fd: int, nbytes: int, asks: Sequence[Callable[[], Pages]]) -> MappedImage:
        """Map the head, and the pages of the artifact's files behind it."""
        pages = _closed_after_use(asks)
        try:
            return self._map(image, fd, nbytes, pages)
        finally:
            pages.close()  # after an error, which keeps what is half done

    def _map_device(self, image: Image, fd: int, nbytes: int, export: Callable[[], Export]) -> MappedImage:
        mapping = self._map(image, fd, nbytes)
        mapping.open_device(export)
        self.collect = _collector()
        return mapping

    def give_back(self, mapping: MappedImage, lease: Lease, token: object) -> None:
        """Close one borrow. The last one unmaps; its lease stays until no view is left."""
        with self.lock:
            mapping.borrows.discard(token)
            if mapping.borrows:
                if mapping.spares(lease):
                    mapping.leases.discard(lease)
                    lease.give_back()
                return
            if self._by_image.get(mapping.image) is mapping:
                del self._by_image[mapping.image]
                self._unborrowed.add(mapping)
        mapping.close()

    def put_aside(self, mapping: MappedImage) -> None:
        """Let no open share a mapping from now on. Called under the lock, as `put_back` is."""
        if self._by_image.get(mapping.image) is mapping:
            del self._by_image[mapping.image]
            self._unborrowed.add(mapping)

    def put_back(self, mapping: MappedImage) -> None:
        """Undo `put_aside`, unless the memory was mapped a second time since."""
        if mapping.image not in self._by_image:
            self._by_image[mapping.image] = mapping
            self._unborrowed.discard(mapping)

    def find(self, channel: Channel, number: int) -> MappedImage | None:
        """Return the mapping that a lease keeps; None if its grant is not mapped yet, or not any more."""
        with self.lock:
            return next((each for each in self.held() if each.lease_of(channel, number) is not None), None)

    def of_image(self, channel: Channel, key: str) -> list[MappedImage]:
        """Return the mappings of an image that a connection's leases keep."""
        with self.lock:
            return [each for each in self.held() if each.key == key and each.lease_of(channel) is not None]

    def exchange(self, mapping: MappedImage, channel: Channel, answer: Message, fd: int) -> bool:
        """Put granted memory under a mapping of the same bytes; views stay valid.

        The leases that the channel has granted for it so far are given back, or the new one if nothing was changed.

        Args:
            fd: The descriptor that came with the grant; it stays the caller's.

        Raises:
            BadMessageError: The answer is no grant.
            ImageError, OSError: The memory cannot be mapped; the new lease is given back.
        """
        number, place = answer.get("lease"), answer.get("place")
        if type(number) is not int or not isinstance(place, str):
            raise BadMessageError(f"the daemon granted without a lease or a place: {answer!r}"[:200])
        lease = Lease(channel, number)
        exchanged = False
        try:
            status = os.fstat(fd)
            with self.lock:
                same = answer.get("key") == mapping.key and answer.get("digest") == mapping.digest != ""
                if same and mapping.anywhere and mapping.lost is None and mapping.region is None:
                    exchanged = mapping.attachment.exchange(fd)
                if exchanged:
                    self._moved(mapping, place, (status.st_dev, status.st_ino), lease)
        finally:
            if not exchanged:
                lease.give_back()
        return exchanged

    def _moved(self, mapping: MappedImage, place: str, identity: tuple[int, int], lease: Lease) -> None:
        """Record that other memory lies under a mapping now. Called under the lock."""
        found = self._by_image.get(mapping.image) is mapping
        if found:
            del self._by_image[mapping.image]
        mapping.place, mapping.identity = place, identity
        before = list(mapping.leases)
        mapping.hold(lease)
        for each in before:
            mapping.leases.discard(each)
            each.give_back()
        if found and mapping.image not in self._by_image:
            self._by_image[mapping.image] = mapping
        else:  # the session has the memory mapped a second time: later opens share that mapping
            self._unborrowed.add(mapping)
            if mapping.unmapped:  # the last view went meanwhile
                self._unborrowed.discard(mapping)

    def close_dropped(self) -> None:
        """Close the borrows that were dropped without a close."""
        while self.dropped:
            try:
                self.dropped.popleft().close()
            except IndexError:  # another thread was faster
                return

    def lose(self, channel: Channel, number: int, reason: str) -> None:
        """Record that the daemon has lost the memory of a lease, and ended the lease.

        The memory stays mapped, but later opens do not share this mapping.
        """
        with self.lock:
            mapping = self.find(channel, number)
            if mapping is None:
                # Either the lease is being given back, and the loss does not matter, or its grant is not mapped yet.
                if number not in channel.owed:
                    self._lost_early[channel, number] = reason
                    while len(self._lost_early) > _EARLY:
                        del self._lost_early[next(iter(self._lost_early))]
                return
            mapping.forget(channel, number)
            if mapping.lost is None:
                mapping.lost = reason
                self.untold.append(mapping)
            for image in [image for image, each in self._by_image.items() if each is mapping]:
                del self._by_image[image]
                self._unborrowed.add(mapping)

    def lose_leases(self) -> None:
        """Forget all leases, because the connection that granted them has ended."""
        with self.lock:
            self._lost_early.clear()
            for mapping in self.held():
                mapping.leases.clear()

    def to_take_up(self, channel: Channel) -> list[MappedImage]:
        """Return mappings for which this connection must be asked for a lease, each once for each connection."""
        with self.lock:
            return [mapping for mapping in self.held() if mapping.ask_once(channel)]

    def held(self) -> list[MappedImage]:
        """Return all mappings whose memory this process can still reach."""
        with self.lock:
            return [*self._by_image.values(), *self._unborrowed]


def _is_about_the_bytes(error: BaseException) -> bool:
    """Return whether an error of mapping says that the memory is not what was announced."""
    if is_system_error(error):
        return not lacks_descriptors(error)
    return isinstance(error, ValueError | KeyError | TypeError | OverflowError)


def _closed_after_use(asks: Iterable[Callable[[], Pages]]) -> Generator[Pages]:
    """Yield pages, each with its descriptor open until the next is asked for: this process may have few to spare."""
    for ask in asks:
        part = ask()
        try:
            yield part
        finally:
            os.close(part.fd)


def _forget(images: weakref.ref[MappedImages], mapping: weakref.ref[MappedImage]) -> None:
    """Forget a mapping whose memory was unmapped. Session and mapping may be gone before that."""
    owner, unmapped = images(), mapping()
    if owner is not None and unmapped is not None:
        owner._unborrowed.discard(unmapped)


def _collector() -> Callable[[], object]:
    from trims_client.mapping.device import collect

    return collect


class Borrow:
    """The share of one `Weights` in a mapping; the counterpart of an Attachment with a single user."""

    def __init__(self, owner: MappedImages, mapping: MappedImage, lease: Lease) -> None:
        self._owner = owner
        self._mapping: MappedImage | None = mapping
        self._lease = lease
        self._token = object()
        mapping.borrows.add(self._token)

    @property
    def mapping(self) -> MappedImage:
        """Return the shared mapping. Raises ClosedError."""
        return self._open()

    @property
    def data(self) -> memoryview:
        """Return all bytes, read-only."""
        return self._open().attachment.data

    def private_data(self) -> memoryview:
        """Return all bytes, copy-on-write."""
        return self._open().attachment.private_data()

    @property
    def region(self) -> DeviceRegion | None:
        """Return the device memory; None on the host."""
        return self._open().region

    @property
    def place(self) -> str | None:
        """Return where the memory lies now; None after `close`."""
        mapping = self._mapping
        return None if mapping is None else mapping.place

    @property
    def lost(self) -> str | None:
        """Return `MappedImage.lost`; None after `close`."""
        mapping = self._mapping
        return None if mapping is None else mapping.lost

    def close(self) -> None:
        """Give this share back. Idempotent."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            self._owner.give_back(mapping, self._lease, self._token)

    def drop(self) -> None:
        """Have it closed within a second. For a finaliser: takes no lock."""
        if self._mapping is not None:
            self._owner.dropped.append(self)

    def _open(self) -> MappedImage:
        if self._mapping is None:
            raise ClosedError("these weights are closed; open them again to read")
        return self._mapping
