"""A mapped image and the leases that keep it.

A lease ends when nothing in this process can reach the bytes any more: the last `Weights` is closed and the last view
is gone. That may happen in a finaliser, in any thread, at any moment. So a release only appends the lease's number to a
queue, and the session sends the close with its next request, or within a second.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.memory.attach import Attachment
    from trims.memory.cuda.drivers import Export
    from trims_client.connection.channel import Channel
    from trims_client.mapping.device import DeviceRegion

    #: Identity of a mapped image: key, place, device and inode of its segment. Each is mapped once.
    Image = tuple[str, str, int, int]


class Lease:
    """The right to read one replica, as one connection granted it.

    A lease number is valid only on the connection that granted it. Hence a lease refers to its connection, and the
    numbers to give back are queued there (`Channel.owed`) and are dropped with it.
    """

    __slots__ = ("channel", "number")

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel = channel
        self.number = number

    def give_back(self) -> None:
        """Queue the lease to be given back. Safe in any thread and any finaliser: takes no lock, sends nothing."""
        self.channel.owed.append(self.number)

    def __repr__(self) -> str:
        return f"<Lease {self.number} of {self.channel!r}>"


class HeldLeases:
    """The leases that keep one image.

    The finaliser of the memory holds this object and so must hold nothing that keeps the memory mapped.
    """

    __slots__ = ("leases", "unmapped")

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self.unmapped = False

    def release(self) -> None:
        """Give every lease back: the memory was unmapped. Called from a finaliser, so it takes no lock."""
        self.unmapped = True
        self.give_back_all()

    def give_back_all(self) -> None:
        """Queue each lease to be given back, once."""
        while self.leases:
            try:
                self.leases.pop().give_back()
            except KeyError:  # another thread was faster
                return


class MappedImage:
    """One mapped image and the leases that keep it.

    Attributes:
        identity: Device and inode of the segment.
        leases: The leases held for it; the last one stays until the memory is unmapped.
        borrows: A token for each `Borrow` that is open.
        region: The device memory, if the replica lies on a device.
        digest: The digest of the image, as granted; empty if the daemon does not know it.
        anywhere: Whether every open of it has left the place to the daemon.
        names: The names that it was opened by.
        lost: Why its owner does not have the memory any more; None while the owner has it.
        parked: Whether it has only its addresses now, and no lease (see `parking`).
    """

    __slots__ = (
        "__weakref__", "_asked", "_held", "anywhere", "attachment", "borrows", "digest", "identity", "key", "leases",
        "lost", "names", "parked", "place", "region",
    )  # fmt: skip

    def __init__(
        self, key: str, place: str, identity: tuple[int, int], attachment: Attachment, held: HeldLeases
    ) -> None:
        self.key = key
        self.place = place
        self.identity = identity
        self.attachment = attachment
        self._held = held
        self.leases = held.leases
        self.borrows: set[object] = set()
        self.region: DeviceRegion | None = None
        self.digest = ""
        self.anywhere = True
        self.names: set[str] = set()
        self.lost: str | None = None
        self.parked = False
        self._asked: Channel | None = None

    @property
    def image(self) -> Image:
        """Return the identity under which the mapping is found."""
        return (self.key, self.place, *self.identity)

    @property
    def unmapped(self) -> bool:
        """Return whether no view of the memory is left."""
        return self._held.unmapped

    def open_device(self, export: Callable[[], Export]) -> None:
        """Open the device memory that the head describes. Raises NotSupportedError if the device is out of reach."""
        from trims_client.mapping.device import DeviceRegion

        try:
            self.region = DeviceRegion(export(), self.attachment.data)
        except BaseException:
            self.attachment.close()
            raise

    def close(self) -> None:
        """Unmap the memory as soon as no view is left."""
        self.region = None
        self.attachment.close()

    def hold(self, lease: Lease) -> None:
        """Keep a lease until the memory is unmapped; if it is unmapped already, give the lease back.

        The second case:

        1. A session asks a new daemon for a lease of an image that it has mapped.
        2. Meanwhile another thread drops the last view, and the memory is unmapped.
        3. The lease arrives. Without the check of `unmapped` it would be kept until the session ends.
        """
        self.leases.add(lease)
        if self._held.unmapped:
            self._held.give_back_all()

    def lease_of(self, channel: Channel, number: int | None = None) -> Lease | None:
        """Return the lease that this connection granted under that number (None: any of its leases), or None."""
        for lease in list(self.leases):  # a copy: a finaliser may empty the set
            if lease.channel is channel and number in (None, lease.number):
                return lease
        return None

    def spares(self, lease: Lease) -> bool:
        """Return whether the lease can be given back while the memory is in use: its connection has another one.

        Why a lease of another connection is not enough:

        1. Two opens of one image are granted, and the daemon restarts before the first grant is mapped here.
        2. The first grant's lease has ended with its daemon. Only the second grant's lease keeps the memory.
        3. The second `Weights` is closed, and the reader of the first one goes on: the second lease must stay.
        """
        others = [each for each in list(self.leases) if each is not lease and each.channel is lease.channel]
        return lease in self.leases and bool(others)

    def forget(self, channel: Channel, number: int) -> None:
        """Drop a lease that has ended at the daemon."""
        lease = self.lease_of(channel, number)
        if lease is not None:
            self.leases.discard(lease)

    def lacks_lease(self, channel: Channel) -> bool:
        """Return whether this connection should be asked for a lease.

        An artifact's own files stay mapped without one: no daemon can take them away.
        """
        needs_none = self.place == "file" or self.parked or self._held.unmapped or self.lost is not None
        return not needs_none and self.lease_of(channel) is None

    def ask_once(self, channel: Channel) -> bool:
        """Return whether to ask this connection for a lease; True at most once for each connection."""
        if self._asked is channel or not self.lacks_lease(channel):
            return False
        self._asked = channel
        return True


class Upgrade:
    """Pending move of an image's mappings to a faster place that the daemon has reported.

    Attributes:
        channel: The connection that reported it.
        place: The better place.
        looks: How often mappings of the image were looked for.
        tried: Mappings that have moved, or could not.
    """

    __slots__ = ("channel", "key", "looks", "place", "tried")

    def __init__(self, channel: Channel, key: str, place: str) -> None:
        self.channel = channel
        self.key = key
        self.place = place
        self.looks = 0
        self.tried: weakref.WeakSet[MappedImage] = weakref.WeakSet()
