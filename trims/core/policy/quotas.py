"""Tenants in the books: what the sessions of each hold, what was brought to memory for it, and how much it may.

Three things count for a tenant:

1. *Leases*, wherever the replicas lie.
2. *Leased bytes*: of the replicas in memory (shared memory and devices) that its sessions lease, each counted once.
   While they are leased no other tenant can have the room.
3. *Resident bytes*: of the replicas in memory that were brought there for it. As with memory cgroups, the tenant whose
   request came first pays for a replica. When it reads it no longer and others do, one of them pays, if it can.

A request that would exceed the first or the second is refused; one that would exceed the third has the tenant's own
idle replicas evicted first. A session without a tenant, such as one of the daemon's own user, has no limit and pays for
nothing. Every step costs O(1), an eviction O(1) for each replica that goes. Not covered: who is which tenant
(`trims.tenants`), what a refused request does instead (`Admission`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.place import TierKind
from trims.core.policy import capacity_errors
from trims.core.replica import ReplicaId, Share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.core.errors import QuotaError
    from trims.core.lease import Lease
    from trims.core.place import Place
    from trims.core.replica import Replica

#: Tiers where bytes count: memory that nothing else can have meanwhile.
MEMORY = (TierKind.CPU, TierKind.GPU)
#: Shares that count for no tenant: bytes that are not there, or on their way back.
NOT_RESIDENT = (Share.NONE, Share.LEAVING)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a tenant may hold; None where nothing is said.

    Attributes:
        leases: Leases of all its sessions.
        leased_bytes: Bytes in memory that its sessions lease.
        resident_bytes: Bytes in memory that were brought there for it, leased or idle.
    """

    leases: int | None = None
    leased_bytes: int | None = None
    resident_bytes: int | None = None


@dataclass(slots=True, eq=False)
class Account:
    """Usage of one tenant.

    Attributes:
        quota: The most of each.
        leases: Leases of its sessions.
        readers: How many leases it has on each replica in memory, and the bytes that count for it.
        paid: Bytes of each replica that it pays for.
        idle: Paid replicas that may be evicted, at each place, longest idle first.
        idle_bytes: Bytes of these at each place.
    """

    name: str
    quota: Quota
    leases: int = 0
    leased_bytes: int = 0
    resident_bytes: int = 0
    readers: dict[ReplicaId, tuple[int, int]] = field(default_factory=dict)
    paid: dict[ReplicaId, int] = field(default_factory=dict)
    idle: dict[Place, OrderedDict[ReplicaId, Replica]] = field(default_factory=lambda: defaultdict(OrderedDict))
    idle_bytes: Counter[Place] = field(default_factory=Counter)

    def missing_bytes(self, need: int) -> int:
        """Return the bytes that must leave memory before the tenant may have `need` more; 0 if none."""
        most = self.quota.resident_bytes
        return 0 if most is None else max(0, self.resident_bytes + need - most)

    def can_have(self, place: Place, need: int) -> bool:
        """Return whether the tenant can have `need` more bytes at a place, once its idle replicas there have left."""
        return self.missing_bytes(need) <= self.idle_bytes[place]

    def may_ever_lease(self, nbytes: int) -> bool:
        """Return whether a replica of this size can be leased once the tenant leases nothing else."""
        return self.quota.leased_bytes is None or nbytes <= self.quota.leased_bytes

    def victims(self, place: Place, missing: int) -> list[Replica]:
        """Replicas that leave a place so that `missing` bytes come free, longest idle first."""
        found: list[Replica] = []
        for replica in self.idle[place].values():
            if missing <= 0:
                break
            found.append(replica)
            missing -= replica.charged_bytes
        return found


class Tenancy:
    """The accounts of all tenants.

    Attributes:
        of_lease: Holder of each lease, by its number; leases without a tenant are not listed.
    """

    def __init__(self, quotas: Mapping[str, Quota] | None = None) -> None:
        self.accounts = {name: Account(name, quota) for name, quota in (quotas or {}).items()}
        self.of_lease: dict[int, Account] = {}

    # -- leases ----------------------------------------------------------------------------------------------------

    def refusal(self, tenant: str, replica: Replica | None) -> QuotaError | None:
        """Return why a tenant may have no lease of a replica now, or of one that is still to come; None if it may."""
        account = self.accounts[tenant]
        quota = account.quota
        if quota.leases is not None and account.leases >= quota.leases:
            return capacity_errors.too_many_leases(tenant, quota.leases)
        return None if replica is None else self.refusal_of_bytes(tenant, replica, replica.charged_bytes)

    def refusal_of_bytes(self, tenant: str, replica: Replica, nbytes: int) -> QuotaError | None:
        """Return why a tenant may have no lease of a replica of that size; None if it may."""
        account = self.accounts[tenant]
        most = account.quota.leased_bytes
        if most is None or not _is_memory(replica) or replica.id in account.readers:
            return None
        if account.leased_bytes + nbytes > most:
            return capacity_errors.too_many_leased(tenant, account.leased_bytes, nbytes, most)
        return None

    def leased(self, lease: Lease, tenant: str, replica: Replica) -> None:
        """Record a lease of the tenant."""
        account = self.of_lease[lease.number] = self.accounts[tenant]
        account.leases += 1
        if _is_memory(replica):
            leases, nbytes = account.readers.get(replica.id, (0, 0))
            if not leases:
                nbytes = replica.charged_bytes
                account.leased_bytes += nbytes
            account.readers[replica.id] = (leases + 1, nbytes)

    def returned(self, lease: Lease, replica: Replica) -> None:
        """Record the end of a lease; leases without a tenant are ignored."""
        account = self.of_lease.pop(lease.number, None)
        if account is None:
            return
        account.leases -= 1
        if _is_memory(replica):
            leases, nbytes = account.readers[replica.id]
            if leases > 1:
                account.readers[replica.id] = (leases - 1, nbytes)
            else:
                del account.readers[replica.id]
                account.leased_bytes -= nbytes
                if replica.payer == account.name:
                    self._pass_bill(account, lease, replica)

    def _pass_bill(self, payer: Account, ended: Lease, replica: Replica) -> None:
        """Let another reading tenant pay, if it can: the payer reads no longer. O(1): the oldest lease counts.

        Else others could keep a tenant from its own room by reading what it has brought.
        """
        number = next((each for each in replica.leases if each != ended.number), None)
        if number is None:
            return
        nbytes, reader = payer.paid.get(replica.id, 0), self.of_lease.get(number)
        if reader is None or not reader.missing_bytes(nbytes):
            self._settle(payer, replica, 0)
            replica.payer = None if reader is None else reader.name
            self.recount(replica)

    # -- memory ----------------------------------------------------------------------------------------------------

    def payer_of(self, replica: Replica, need: int) -> Account | None:
        """Return the tenant that pays for a queued replica: the first that waits for it and can; None if none has to.

        One that need not give up other replicas comes before those that must. A request without a tenant that waits
        for it, too, has no limit: then no tenant pays. If none can, it is the first.
        """
        if not _is_memory(replica) or not replica.tenants or None in replica.tenants:
            return None
        accounts = [self.accounts[tenant] for tenant in replica.tenants if tenant is not None]
        able = [each for each in accounts if each.can_have(replica.place, need)] or accounts
        return min(able, key=lambda each: each.missing_bytes(need) > 0)

    def pay(self, replica: Replica, need: int) -> None:
        """Let a tenant pay for a replica that is filled from now on, until it leaves memory."""
        if replica.waiters:  # what leaves a device for the host has none: it is paid for as before
            payer = self.payer_of(replica, need)
            replica.payer = None if payer is None else payer.name

    def recount(self, replica: Replica) -> None:
        """Count the bytes of a replica that a tenant pays for as what they are now."""
        if replica.payer is None:
            return
        nbytes = 0 if replica.share in NOT_RESIDENT else replica.charged_bytes
        self._settle(self.accounts[replica.payer], replica, nbytes)

    @staticmethod
    def _settle(account: Account, replica: Replica, nbytes: int) -> None:
        replica_id = replica.id
        paid = account.paid.pop(replica_id, 0)
        account.resident_bytes += nbytes - paid
        if nbytes:
            account.paid[replica_id] = nbytes
        idle = account.idle[replica.place]
        if idle.pop(replica_id, None) is not None:
            account.idle_bytes[replica.place] -= paid
        if nbytes and replica.share is Share.IDLE:
            idle[replica_id] = replica
            account.idle_bytes[replica.place] += nbytes


def _is_memory(replica: Replica) -> bool:
    return replica.place.tier in MEMORY
