"""Weights that wait for their use without a lease: the daemon may free their memory meanwhile.

A process that opens a model ahead of need would hold a lease for as long as it waits: the model could not be evicted,
and an open of another one might fail for want of room. *Suspended* weights keep their addresses only. The memory is
unmapped, every descriptor of it is closed, and the lease is given back. What was built on the weights stays as it is,
and must not read them. `Suspended.wake` opens the model again and maps the same memory at the same addresses, which
takes one request. If the model is another one by now, or lies elsewhere, it is of no use any more.

Imported only by a process that parks. Not covered: the mappings themselves (`trims.memory.suspended_mapping`).
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError, NotSupportedError
from trims_client.connection.connection import Deadline
from trims_client.mapping.device import collect as collect_loans
from trims_client.mapping.mapped_image import Lease, MappedImage
from trims_client.mapping.mappings import Borrow

if TYPE_CHECKING:
    from trims.wire.frames import Message
    from trims_client import Session
    from trims_client.connection.channel import Channel
    from trims_client.weights import Weights


def image_of(weights: Weights) -> tuple[str, str]:
    """Key and place of the image that weights from a session lie in. Raises NotSupportedError for a private copy."""
    mapping = _mapping(weights)
    return mapping.key, mapping.place


class Suspended:
    """Weights of a session, parked.

    Args:
        session: Session that has opened them, by a model's name.
        weights: Open. Nothing reads them until `wake` has returned True; a read kills the process.

    Raises:
        NotSupportedError: The weights lie on a device, are shared by others of the process, or are no mapped file.
        OSError: The kernel refused.
    """

    def __init__(self, session: Session, weights: Weights, place: str | None = None) -> None:
        self._session = session
        self._weights = weights
        self._place = place
        self._mapping = mapping = _mapping(weights)
        images = session._mappings
        with images.lock:
            if mapping.region is not None or mapping.lost is not None or len(mapping.borrows) != 1:
                raise NotSupportedError(f"{weights.name!r} at {mapping.place} cannot be parked")
            # The artifact's own files stay whatever the daemon does: only the lease is given back.
            self._parking = None if mapping.place == "file" else mapping.attachment.park(mapping.identity)
            mapping.parked = True
            images.put_aside(mapping)
            leases = list(mapping.leases)
            mapping.leases.clear()
            for lease in leases:  # last: the memory is unmapped by now
                lease.give_back()
        session._settle()

    def wake(self, deadline_s: float | None = None) -> bool:
        """Open the model again, by its name, and read the same memory as before.

        Args:
            deadline_s: Passed to `Session.open`.

        Returns:
            False if the name stands for another image, or the image lies in other memory: open the model in another
            process. The weights stay parked.

        Raises:
            TrimsError: The model cannot be opened.
            OSError: The kernel refused; the process can be of no use any more.
        """
        mapping, images = self._mapping, self._session._mappings
        channel, answer, fd = _open(self._session, self._weights.name, self._place, deadline_s)
        try:
            lease = Lease(channel, _number(answer))
            with images.lock:
                same = _is_same(answer, fd, mapping)
                if same:
                    if self._parking is not None:
                        mapping.attachment.wake(self._parking, fd, populate=mapping.place == "cpu")
                    mapping.parked = False
                    mapping.hold(lease)
                    images.put_back(mapping)
                else:
                    lease.give_back()
        finally:
            if fd >= 0:
                os.close(fd)
        self._weights.warm = bool(answer.get("warm"))
        return same


def still_current(session: Session, weights: Weights, place: str | None = None) -> bool:
    """Return whether the name of open weights still stands for the memory they lie in. Raises as `Session.open`."""
    channel, answer, fd = _open(session, weights.name, place, None)
    try:
        Lease(channel, _number(answer)).give_back()
        return _is_same(answer, fd, _mapping(weights))
    finally:
        if fd >= 0:
            os.close(fd)


def let_go(session: Session, weights: Weights) -> bool:
    """Close weights and give their lease back at once. Return False if something in this process still reads them."""
    mapping = _mapping(weights)
    weights.close()
    gc.collect()  # modules hold their tensors in circles
    collect_loans()
    session._settle()
    return mapping.unmapped


def open_resident(session: Session, name: str, key: str, place: str) -> Weights:
    """Attach to an image only if it lies at a place now: nothing is loaded, and the name is not looked up.

    Raises ModelNotFoundError if it does not lie there, and what `Session.open` raises.
    """
    return session._open_at({"op": "resume", "key": key}, name, place, Deadline(), None)


def _open(session: Session, name: str, place: str | None, deadline_s: float | None) -> tuple[Channel, Message, int]:
    """Have a model granted, as `Session.open` does, and map nothing."""
    message: Message = {"op": "open", "model": name}
    if place not in (None, "auto"):
        message["place"] = place
    channel, (answer, fd) = session._request(message, Deadline(deadline_s), waits=True)
    return channel, answer, fd


def _mapping(weights: Weights) -> MappedImage:
    borrow = weights._attachment
    if not isinstance(borrow, Borrow):
        raise NotSupportedError(f"{weights.name!r} is a private copy, which no daemon has")
    return borrow.mapping


def _number(answer: Message) -> int:
    number = answer.get("lease")
    if type(number) is not int:
        raise BadMessageError(f"the daemon granted without a lease: {answer!r}"[:200])
    return number


def _is_same(answer: Message, fd: int, mapping: MappedImage) -> bool:
    if fd < 0 or (answer.get("key"), answer.get("place")) != (mapping.key, mapping.place):
        return False
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino) == mapping.identity
