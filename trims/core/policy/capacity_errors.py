"""Refusals: the errors that residency answers with, each naming the culprit, the numbers and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import (
    CapacityError,
    DrainingError,
    InUseError,
    NoSpaceError,
    NotSupportedError,
    QuotaError,
    TooLargeError,
    TrimsError,
    from_code,
)
from trims.core.place import TierKind
from trims.core.replica import Replica, Share, State
from trims.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trims.core.place import Place
    from trims.core.policy.capacity import PlaceBooks


#: The setting that says how much a tier may hold.
_SETTINGS = {
    TierKind.CPU: "cpu_capacity_bytes",
    TierKind.DISK: "disk_capacity_bytes",
    TierKind.GPU: "gpu_share",
}


def _setting(place: Place) -> str:
    setting = _SETTINGS.get(place.tier)
    return "the tier's capacity" if setting is None else f"the setting {setting}"


def too_large(books: PlaceBooks, replica: Replica) -> TooLargeError:
    """Return the error for an image that exceeds the whole tier."""
    beside = books.least_need_of(replica) - books.takes(replica.nbytes)
    work = f", and {format_bytes(beside)} more than the reserve for the session that reads it" if beside else ""
    return TooLargeError(
        f"the image takes {format_bytes(replica.nbytes)} ({replica.nbytes} bytes){work}; the {replica.place} tier has "
        f"a capacity of {format_bytes(books.stated_bytes)} in all; raise {_setting(replica.place)}"
    )


def no_room(books: PlaceBooks, replica: Replica, leaving: Replica | None = None) -> CapacityError:
    """Return the error for a lack of room, with the numbers that explain it.

    Args:
        leaving: Replica of the same image at another place, where it serves no new reader, because it is being evicted.
    """
    shares = books.shares
    parts = [f"{format_bytes(max(0, books.free_bytes))} free of {format_bytes(books.capacity_bytes)}"]
    if books.full_until_s is not None:
        parts[0] += f" (for which the machine has room, of {format_bytes(books.stated_bytes)} that the tier may hold)"
    counted = [
        (shares[Share.READ], "leased"),
        (shares[Share.PINNED], "pinned"),
        (shares[Share.FILLING], "being filled"),
        (books.claimed_bytes, "on its way back to earlier requests"),
        (books.workspace_over(), "kept for the work of sessions that read"),
    ]
    parts += [f"{format_bytes(nbytes)} {what}" for nbytes, what in counted if nbytes]
    other = ""
    if leaving is not None:
        other = (
            f"the model is being evicted from {leaving.place} and serves no new reader there, until its last one "
            f"({len(leaving.leases)} lease(s)) has closed; close that, or make room at {replica.place}: "
        )
    return CapacityError(
        f"{other}no room at {replica.place}: {format_bytes(books.need_of(replica))} needed; {', '.join(parts)}. "
        f"Nothing was evicted. Close readers, unpin, raise {_setting(replica.place)}, or set a deadline to wait for "
        f"room"
    )


def on_no_device(error: TrimsError, replica: Replica, devices: Mapping[Place, PlaceBooks]) -> TrimsError:
    """Return the error for an image that no device could take: that of the last one tried, and the room of the others.

    Args:
        replica: The image there.
    """
    others = ", ".join(
        f"{place} has {format_bytes(max(0, books.coming_bytes))} free of {format_bytes(books.capacity_bytes)}"
        for place, books in devices.items()
        if place is not replica.place
    )
    return from_code(error.code, f"{error}. No other device can serve it: {others}") if others else error


def without_room(books: PlaceBooks, replica: Replica, error: NoSpaceError) -> NoSpaceError:
    """Return the error for a machine with less room than the tier's capacity, once nothing idle is left to evict."""
    held = format_bytes(books.charged_bytes)
    return NoSpaceError(
        f"{error}. Images take {held} at {replica.place}, of the {format_bytes(books.stated_bytes)} that its tier may "
        f"hold, and none that could have been evicted made enough room",
        error.room_bytes,
    )


def reserved(books: PlaceBooks, replica: Replica, first: Replica) -> CapacityError:
    """Return the error for room that is kept for an earlier request."""
    return CapacityError(
        f"no room at {replica.place} just now: {format_bytes(books.need_of(replica))} needed; what comes free is kept "
        f"for an earlier request of {format_bytes(books.need_of(first))} that waits with a deadline. Ask again, or set "
        f"a deadline to wait for room"
    )


def too_many_files(name: str, needed: int, most: int) -> TooLargeError:
    """Return the error for an artifact of more files than the daemon may ever have open for images."""
    return TooLargeError(
        f"{name} takes {needed} open files at file, one for each of its own and one more, and this daemon's limit of "
        f"files allows {most} for all images; raise it (`ulimit -n`, LimitNOFILE=), or open the model without a place"
    )


def no_descriptors(needed: int, held: int, most: int) -> CapacityError:
    """Return the error for too many open files. Idle images have been evicted already."""
    return CapacityError(
        f"{needed} more needed: {held} files of images are open, and this daemon's limit of files allows {most}; "
        f"raise it (`ulimit -n`, LimitNOFILE=), close readers, or unpin models"
    )


def too_many_leases(tenant: str, most: int) -> QuotaError:
    """Return the error for a tenant that has as many leases as it may."""
    return QuotaError(
        f"tenant {tenant!r} has {most} leases, as many as it may; close weights, or raise its `leases` in the daemon's "
        f"tenants file"
    )


def too_many_leased(tenant: str, leased_bytes: int, need: int, most: int) -> QuotaError:
    """Return the error for a tenant that leases as many bytes as it may."""
    if need > most:
        return QuotaError(
            f"the model takes {format_bytes(need)} in memory, and tenant {tenant!r} may lease {format_bytes(most)} in "
            f"all; open it without a place, or raise its `leased_bytes` in the daemon's tenants file"
        )
    return QuotaError(
        f"tenant {tenant!r} leases {format_bytes(leased_bytes)} in memory, and {format_bytes(need)} more would exceed "
        f"its {format_bytes(most)}; close weights, or raise its `leased_bytes` in the daemon's tenants file"
    )


def too_much_resident(tenant: str, resident_bytes: int, need: int, most: int) -> QuotaError:
    """Return the error for a tenant with as many bytes in memory as it may have, none of which can leave."""
    if need > most:
        return QuotaError(
            f"the model takes {format_bytes(need)} in memory, and tenant {tenant!r} may have {format_bytes(most)} "
            f"there in all; open it without a place, or raise its `resident_bytes` in the daemon's tenants file"
        )
    return QuotaError(
        f"tenant {tenant!r} has {format_bytes(resident_bytes)} in memory that cannot leave now, and "
        f"{format_bytes(need)} more would exceed its {format_bytes(most)}; close weights, or raise its "
        f"`resident_bytes` in the daemon's tenants file"
    )


def no_such_place(place: Place, known: Iterable[Place]) -> NotSupportedError:
    """Return the error for a place where the daemon has no tier."""
    names = ", ".join(str(each) for each in known)
    return NotSupportedError(
        f"this daemon has no tier {place}; it has {names}. `trims doctor` says what a missing device lacks"
    )


def no_pins(place: Place, known: Iterable[Place]) -> NotSupportedError:
    """Return the error for a place where nothing can be pinned."""
    names = ", ".join(str(each) for each in known if each is not place)
    return NotSupportedError(
        f"nothing can be pinned at {place}: the artifact's own files take none of the daemon's memory; pin at {names}"
    )


def draining() -> DrainingError:
    """Return the error of a daemon that takes no new requests."""
    return DrainingError("the daemon is draining: open leases run on, new requests are refused; ask the next daemon")


def why_in_use(replica: Replica) -> str:
    """Return a sentence for InUseError: who holds the replica."""
    if replica.state is not State.SEALED and replica.state is not State.DRAINING:
        remedy = "it leaves by itself" if replica.state is State.FREEING else "evict it once its load has ended"
        return f"the replica at {replica.place} is {replica.state.value}; {remedy}"
    return (
        f"the replica at {replica.place} has {len(replica.leases)} lease(s) and {len(replica.borrowers)} running "
        f"copies; close them, or evict with drain"
    )


def leaving(replica: Replica) -> InUseError:
    """Return the error for a request that meets a replica which is evicted once its last lease closes."""
    return InUseError(
        f"the model is being evicted from {replica.place} and waits for its last reader; end that (`trims ps` names "
        f"it), or set a deadline to wait for it"
    )


def why_late(replica: Replica) -> str:
    """Return a sentence for DeadlineError: what the model waited for."""
    what = "the load goes on, ask again" if replica.state is State.FILLING else "ask again, and wait longer"
    return f"the deadline passed while {_waited_for(replica)}; {what}"


def _waited_for(replica: Replica) -> str:
    place, size = replica.place, f"{replica.place} ({format_bytes(replica.nbytes)})"
    return {
        State.QUEUED: f"it waited for room at {size}",
        State.FILLING: f"it was loaded to {size}",
        State.DRAINING: f"its copy at {place}, which is evicted, waited for its last reader",
        State.FREEING: f"the memory of its evicted copy at {place} was given back",
    }.get(replica.state if replica.nbytes else State.ABSENT, f"its artifact was read to find its size, for {place}")
