"""Judgement whether an image can ever be brought where a request wants it, from its size, before it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.place import ANY_GPU, FILE, GPU, TierKind
from trims.core.policy import capacity_errors
from trims.core.policy.quotas import MEMORY
from trims.core.replica import Replica
from trims.core.residency.promotion import HOSTS

if TYPE_CHECKING:
    from trims.core.errors import TrimsError
    from trims.core.lease import Waiter
    from trims.core.place import Place
    from trims.core.residency.ledger import Ledger


def never_fits(ledger: Ledger, nbytes: int, place: Place | None, waiter: Waiter) -> TrimsError | None:
    """Return why an image of at least `nbytes` can never serve the waiter at a place; None if it may. O(1).

    Args:
        nbytes: The least that the image can take.
        place: Where; None for wherever on the host it fits.
    """
    known = ledger.capacity.at
    if place is FILE:
        return None
    if place is ANY_GPU:
        devices = [each for each in known if each.tier is TierKind.GPU]
        place = max(devices, key=lambda each: known[each].stated_bytes, default=GPU)
    if place is not None and place not in known:
        return capacity_errors.no_such_place(place, known)
    hosts = [each for each in HOSTS if each in known]
    wide = None if place is None or place.tier is TierKind.GPU else place
    if place is not None and place.tier is TierKind.GPU and _exceeds(ledger, nbytes, place):
        wide = place
    if wide is None and hosts:  # what goes to a device comes through the host
        wide = max(hosts, key=lambda each: known[each].stated_bytes)
    if wide is not None and _exceeds(ledger, nbytes, wide):
        return capacity_errors.too_large(known[wide], Replica("", wide, 0, nbytes=nbytes))
    return None if place is None else _exceeds_quota(ledger, nbytes, place, waiter)


def _exceeds(ledger: Ledger, nbytes: int, place: Place) -> bool:
    books = ledger.capacity.at[place]
    return books.takes(nbytes) > books.stated_bytes


def _exceeds_quota(ledger: Ledger, nbytes: int, place: Place, waiter: Waiter) -> TrimsError | None:
    """Return the refusal of a tenant that may never hold so much in memory; None for any other.

    Bytes that another has brought there count for no quota of resident bytes: as long as so many lie there, the image
    may be among them.
    """
    if waiter.tenant is None or place.tier not in MEMORY:
        return None
    account, books = ledger.tenancy.accounts[waiter.tenant], ledger.capacity.at[place]
    need, quota = books.takes(nbytes), account.quota
    if waiter.wants_lease and quota.leased_bytes is not None and need > quota.leased_bytes:
        return capacity_errors.too_many_leased(account.name, account.leased_bytes, need, quota.leased_bytes)
    if quota.resident_bytes is not None and need > quota.resident_bytes and books.charged_bytes < need:
        return capacity_errors.too_much_resident(account.name, account.resident_bytes, need, quota.resident_bytes)
    return None
