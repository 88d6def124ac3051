"""The check of every invariant: `validate` computes again, from the replicas alone, what the ledger keeps as sums.

Nothing here changes anything. `validate` walks everything at one moment: for tests and `TRIMS_VERIFY=1`. A live daemon
is checked in pieces (`pieces`), each of which is short, because the books are locked meanwhile: the rules of one
replica need only that replica, and sums need only one number of each.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import InvariantError
from trims.core.place import TierKind
from trims.core.policy.quotas import MEMORY, NOT_RESIDENT
from trims.core.replica import LEASABLE, Replica, ReplicaId, Share, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims.core.place import Place
    from trims.core.policy.capacity import PlaceBooks
    from trims.core.policy.quotas import Account
    from trims.core.residency.ledger import Ledger
    from trims.core.residency.room import Room

#: Replicas looked at in one piece: well below a millisecond.
_PIECE = 100
_LEASES_IN_A_PIECE = 1000


def validate(ledger: Ledger, room: Room) -> None:
    """Check everything against everything. Raises InvariantError naming the first broken rule."""
    _check_indexes(ledger)
    for (key, place), replica in ledger.table.replicas.items():
        _check(replica.key == key and replica.place == place, replica, "filed under another name")
        _check_replica(ledger, replica)
        _check_queue(ledger, room, replica)
    _check_queues(ledger, room)
    _check_capacity(ledger)
    _check_images(ledger)
    _check_leases(ledger)
    _check_waiters(ledger)
    for account in ledger.tenancy.accounts.values():
        _check_account(ledger, account)


def pieces(ledger: Ledger, room: Room) -> Iterator[Callable[[], None]]:
    """Yield the check of live books, in pieces to be called one after the other; each holds at its own moment.

    Each raises InvariantError naming the first broken rule. A piece costs at most some milliseconds at ten thousand
    replicas.
    """
    ids = list(ledger.table.replicas)
    for begin in range(0, len(ids), _PIECE):
        yield partial(_check_some, ledger, room, ids[begin : begin + _PIECE])
    for place in ledger.capacity.at:
        yield partial(_check_sums, ledger, place)
    yield partial(_check_queues, ledger, room)
    numbers = list(ledger.leases.by_number)
    for begin in range(0, len(numbers), _LEASES_IN_A_PIECE):
        yield partial(_check_some_leases, ledger, numbers[begin : begin + _LEASES_IN_A_PIECE])
    yield partial(_check_lease_counts, ledger)
    yield partial(_check_waiters, ledger)
    for account in ledger.tenancy.accounts.values():
        yield partial(_check_account, ledger, account)


def _check_some(ledger: Ledger, room: Room, ids: Sequence[tuple[str, Place]]) -> None:
    for key, place in ids:
        replica = ledger.table.replicas.get((key, place))
        if replica is not None:
            indexed = ledger.table.by_key.get(key, {}).get(place) is replica
            _check(indexed and ledger.table.by_place[place].get(key) is replica, replica, "missing in an index")
            _check_replica(ledger, replica)
            _check_queue(ledger, room, replica)
            _check_share(ledger, replica)


def _check_share(ledger: Ledger, replica: Replica) -> None:
    promised = replica.state is State.SEALED and ledger.table.is_promised(replica)
    share = ledger.capacity.share_of(replica, promised=promised)
    nbytes = 0 if share is Share.NONE else ledger.capacity.at[replica.place].takes(replica.nbytes)
    _check((share, nbytes) == (replica.share, replica.charged_bytes), replica, "counted as something else than it is")


def _check_sums(ledger: Ledger, place: Place) -> None:
    books, shares = ledger.capacity.at[place], dict.fromkeys(Share, 0)
    workspace = 0
    for replica in ledger.table.by_place[place].values():
        shares[replica.share] += replica.charged_bytes
        if replica.workspace_bytes:
            workspace += replica.workspace_bytes * len(replica.readers)
    _compare_sums(place, books, shares, workspace)


def _check_indexes(ledger: Ledger) -> None:
    by_key: dict[str, dict[Place, Replica]] = {}
    by_place: dict[Place, dict[str, Replica]] = {place: {} for place in ledger.capacity.at}
    for (key, place), replica in ledger.table.replicas.items():
        by_key.setdefault(key, {})[place] = replica
        by_place[place][key] = replica
    indexed = ledger.table.by_key
    for key in sorted(by_key.keys() | indexed.keys()):
        there, found = by_key.get(key), indexed.get(key)
        if there != found:
            raise InvariantError(
                f"{key[:16]} lies at {_format_places(there)}, the index by key has it at {_format_places(found)}"
            )
    if by_place != ledger.table.by_place:
        raise InvariantError("the index by place has other replicas than the table")


def _format_places(places: Mapping[Place, Replica] | None) -> str:
    if places is None:
        return "no place"
    return ", ".join(f"{place} ({replica.generation})" for place, replica in places.items()) or "an empty list"


def _check_replica(ledger: Ledger, replica: Replica) -> None:
    state = replica.state
    _check(state is not State.ABSENT, replica, "absent but in the books")
    _check(not replica.leases or state in LEASABLE, replica, "leased in a state that allows none")
    _check(not replica.borrowers or state in LEASABLE, replica, "read from while not sealed")
    _check(state is not State.DRAINING or replica.held, replica, "draining without a holder")
    _check(bool(replica.waiters) or state is not State.QUEUED, replica, "queued without a waiter")
    _check(not replica.waiters or state is not State.SEALED, replica, "sealed with a waiter")
    _check(replica.source is None or state is State.FILLING, replica, "a source outside a fill")
    if replica.source is not None:
        source = ledger.table.replicas.get((replica.key, replica.source))
        borrowed = source is not None and (replica.place, replica.generation) in source.borrowers
        _check(borrowed, replica, "fills from a source it has not borrowed")
    for borrower, generation in replica.borrowers:
        filled = ledger.table.replicas.get((replica.key, borrower))
        reads = filled is not None and (filled.generation, filled.source) == (generation, replica.place)
        _check(reads, replica, f"lent to {borrower}, which does not read it")
    for number in replica.leases:
        lease = ledger.leases.by_number.get(number)
        same = lease is not None and (lease.key, lease.place, lease.generation) == replica.id
        _check(same, replica, f"lease {number} is not in the books or of another replica")
    _check(replica.readers == _readers(ledger, replica), replica, "its readers are others than it says")
    impatient = {ticket for ticket, waiter in replica.waiters.items() if waiter.is_impatient}
    _check(impatient == set(replica.impatient), replica, "its waiters without a deadline are others than it says")
    promotions = sum(waiter.is_promotion for waiter in replica.waiters.values())
    _check(promotions == replica.promotions, replica, "its promotions are others than it says")
    modest = sum(waiter.modest for waiter in replica.waiters.values())
    _check(modest == replica.modest, replica, "its modest waiters are others than it says")
    tenants = Counter(waiter.tenant for waiter in replica.waiters.values())
    _check(tenants == replica.tenants, replica, "its waiters are of other tenants than it says")
    late = replica.keep_until_s is not None and replica.alarm_s is None
    _check(not late, replica, "its keep-alive ends and no alarm is set")


def _check_queue(ledger: Ledger, room: Room, replica: Replica) -> None:
    """Check that a queued replica claims room, stands in line, or is being measured."""
    in_line = replica in room.lines[replica.place]
    claims = replica.generation in room.claims[replica.place]
    _check(not (in_line or claims) or replica.state is State.QUEUED, replica, "in line, but not queued")
    _check(not (in_line and claims), replica, "in line although room is kept for it")
    _check(claims == bool(replica.claimed_bytes), replica, "its claim and the list of claims disagree")
    if replica.state is State.QUEUED:
        sized = replica.measured or ledger.table.source_of(replica) is not None
        _check(sized == (in_line or claims), replica, "its size is known, and nothing was decided, or the reverse")
        _check(not in_line or not replica.impatient, replica, "a waiter without a deadline waits for leases")
        pending = replica.measuring or ledger.promotions.ticket_of(replica) is not None
        _check(sized or bool(pending), replica, "nothing is under way that would tell its size")


def _check_queues(ledger: Ledger, room: Room) -> None:
    queued = {replica.generation for replica in ledger.table.replicas.values() if replica.state is State.QUEUED}
    for place, line in room.lines.items():
        members = set(line.members) | set(room.claims[place])
        if not members <= queued:
            raise InvariantError(f"{place}: {members - queued} are in line and not in the books")
        claimed = sum(replica.claimed_bytes for replica in room.claims[place].values())
        books = ledger.capacity.at[place]
        if claimed != books.claimed_bytes:
            raise InvariantError(f"{place}: {books.claimed_bytes} bytes claimed, the replicas claim {claimed}")
        if claimed > max(0, books.free_bytes + books.shares[Share.LEAVING]):
            raise InvariantError(f"{place}: {claimed} bytes are claimed, more than is free or on its way back")


def _check_capacity(ledger: Ledger) -> None:
    for place, books in ledger.capacity.at.items():
        shares = dict.fromkeys(Share, 0)
        here = ledger.table.by_place[place].values()
        for replica in here:
            promised = replica.state is State.SEALED and ledger.table.is_promised(replica)
            share = ledger.capacity.share_of(replica, promised=promised)
            shares[share] += 0 if share is Share.NONE else books.takes(replica.nbytes)
        workspace = sum(replica.workspace_bytes * len(_readers(ledger, replica)) for replica in here)
        _compare_sums(place, books, shares, workspace)


def _check_images(ledger: Ledger) -> None:
    """Check that the count of images is right, and that beyond the limit none on the host is idle."""
    capacity = ledger.capacity
    images = capacity.count_images(ledger.table.replicas.values())
    if images != capacity.images:
        raise InvariantError(f"{capacity.images} images counted, the replicas are {images}")
    if images > capacity.max_images:
        for place, books in capacity.at.items():
            if place.tier not in (TierKind.GPU, TierKind.CLOUD) and books.shares[Share.IDLE]:
                raise InvariantError(f"{images} images are held of {capacity.max_images}, and some at {place} are idle")


def _compare_sums(place: Place, books: PlaceBooks, shares: Mapping[Share, int], workspace: int) -> None:
    if shares != books.shares:
        raise InvariantError(f"{place}: the shares are {_sums(books.shares)}, the replicas have {_sums(shares)}")
    total = sum(shares.values())
    if total != books.charged_bytes:
        raise InvariantError(f"{place}: {books.charged_bytes} bytes charged, the replicas have {total}")
    if total > books.capacity_bytes:
        raise InvariantError(f"{place}: {total} bytes charged, the capacity is {books.capacity_bytes}")
    if workspace != books.workspace_bytes:
        raise InvariantError(f"{place}: {books.workspace_bytes} bytes kept for work, the readers need {workspace}")


def _sums(shares: Mapping[Share, int]) -> dict[str, int]:
    return {share.value: nbytes for share, nbytes in shares.items() if nbytes}


def _readers(ledger: Ledger, replica: Replica) -> Counter[int]:
    """Return the sessions that read a replica, by its leases; while it is filled, those that will, by its waiters."""
    readers = Counter(ledger.leases.by_number[number].session for number in replica.leases)
    if replica.state is State.FILLING:
        readers.update(waiter.reader for waiter in replica.waiters.values() if waiter.reader is not None)
    return readers


def _check_leases(ledger: Ledger) -> None:
    _check_some_leases(ledger, list(ledger.leases.by_number))
    _check_lease_counts(ledger)


def _check_some_leases(ledger: Ledger, numbers: Sequence[int]) -> None:
    sessions = ledger.leases.sessions
    for number in numbers:
        lease = ledger.leases.by_number.get(number)
        if lease is None:
            continue  # it ended since the check began
        replica = ledger.table.replicas.get((lease.key, lease.place))
        if replica is None or number not in replica.leases or number not in sessions.get(lease.session, ()):
            raise InvariantError(f"leases differ: {number} is in the books, and not with its replica or its session")


def _check_lease_counts(ledger: Ledger) -> None:
    by_replica = sum(len(replica.leases) for replica in ledger.table.replicas.values())
    by_session = sum(map(len, ledger.leases.sessions.values()))
    if not by_replica == by_session == len(ledger.leases.by_number):
        raise InvariantError(
            f"leases differ: {by_replica} by replica, {by_session} by session, {len(ledger.leases.by_number)} in all"
        )


def _check_waiters(ledger: Ledger) -> None:
    for ticket, (device, host) in ledger.promotions.by_ticket.items():
        _check(device.state is State.QUEUED, device, "waits for the host outside the queue")
        waited_for = ledger.waiters.by_ticket.get(ticket)
        _check(waited_for is not None and waited_for.place == host, device, "waits for a host that does not know")
    own = {ticket for ticket in ledger.waiters.by_ticket if ticket < 0}
    known = set(ledger.promotions.by_ticket) | ledger.promotions.earned
    if own != known:
        raise InvariantError(f"promotions differ: {own} wait, {known} are in the books")
    by_replica = sum(len(replica.waiters) for replica in ledger.table.replicas.values())
    if by_replica != len(ledger.waiters.by_ticket):
        raise InvariantError(f"waiters differ: {by_replica} by replica, {len(ledger.waiters.by_ticket)} by ticket")
    of_sessions = 0
    for ticket, replica in ledger.waiters.by_ticket.items():
        waiter = replica.waiters.get(ticket)
        if waiter is None or (waiter.session is not None and ticket not in ledger.waiters.sessions[waiter.session]):
            raise InvariantError(f"waiters differ: {ticket} is in the books, and not with its replica or its session")
        of_sessions += waiter.session is not None
    if of_sessions != sum(map(len, ledger.waiters.sessions.values())):
        raise InvariantError(f"waiters differ: {of_sessions} have sessions, the index by session has others")
    for replica in ledger.unawaited.all():
        requests = [each for each in replica.waiters.values() if not (each.internal or each.ticket in known)]
        _check(replica.state in (State.QUEUED, State.FILLING), replica, "counted among fills that no request waits for")
        _check(not requests, replica, "filled at a pace while a request waits")


def _check_account(ledger: Ledger, account: Account) -> None:
    """Check that a tenant's usage is the sum of its leases and of the replicas it pays for, and within its quota."""
    held: Counter[ReplicaId] = Counter()
    leases = [number for number, holder in ledger.tenancy.of_lease.items() if holder is account]
    for number in leases:
        lease = ledger.leases.by_number.get(number)
        if lease is None:
            raise InvariantError(f"tenant {account.name}: lease {number} has ended and still counts")
        if lease.place.tier in MEMORY:
            held[ReplicaId(lease.key, lease.place, lease.generation)] += 1
    leased = sum(ledger.table.replicas[each.key, each.place].charged_bytes for each in held)
    paid = [replica for replica in ledger.table.replicas.values() if replica.payer == account.name]
    resident = sum(replica.charged_bytes for replica in paid if replica.share not in NOT_RESIDENT)
    idle: Counter[Place] = Counter()
    for replica in paid:
        idle[replica.place] += replica.charged_bytes if replica.share is Share.IDLE else 0
    found = (len(leases), leased, resident, +idle)
    stated = (account.leases, account.leased_bytes, account.resident_bytes, +account.idle_bytes)
    if found != stated or held != {each: count for each, (count, _) in account.readers.items()}:
        raise InvariantError(f"tenant {account.name}: its account says {stated}, its replicas and leases are {found}")
    quota, sums = account.quota, (len(leases), leased, resident)
    most = (quota.leases, quota.leased_bytes, quota.resident_bytes)
    if any(limit is not None and value > limit for value, limit in zip(sums, most, strict=True)):
        raise InvariantError(f"tenant {account.name}: leases, leased and resident bytes are {sums}, the most {most}")


def _check(holds: bool, replica: Replica, rule: str) -> None:
    if not holds:
        stated = "\n  ".join(replica.story())
        raise InvariantError(
            f"{replica.key[:16]} at {replica.place} ({replica.state.value}): {rule}. Its story:\n  {stated}"
        )
