"""A simulated machine: the real store and the real handling of requests over simulated tiers, clients and time."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError, CapacityError, InUseError, InvariantError, QuotaError, TrimsError
from trims.core.place import CLOUD, CPU, DISK, FILE, GPU
from trims.core.policy.eviction import FirstInFirstOut, GreedyDualSizeFrequency, LeastFrequentlyUsed, LeastRecentlyUsed
from trims.core.policy.quotas import Quota
from trims.core.replica import State
from trims.core.residency.events import Grant, Refuse, Requested
from trims.daemon.requests import Requests
from trims.formats.base import Limits
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.registry.sqlite import SqliteRegistry
from trims.store.assembly import StoreSettings, Surroundings, build_store
from trims.store.catalog import Catalog
from trims.store.pending_requests import Granted, Outcome
from trims.store.resolve.artifacts import ANY_READING
from trims.store.resolve.resolver import Resolver
from trims.tenants import Tenant
from trims.wire.frames import encode
from trims.wire.messages import parse_request
from trims.wire.peer import Peer

from .files import SimArtifacts, SimBytes, SimCloud, SimConversion, SimDevice, SimTier
from .judge import Asked, Judge, ViolationError
from .scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.core.lease import Lease
    from trims.core.residency.events import Event
    from trims.registry.versions import Entry
    from trims.store.resolve.hashing import Reading
    from trims.store.resolve.resolved import Resolved

    from .choices import Choices

#: Contents of artifacts and the bytes their images take. The last one fits nowhere.
SIZES = {"c0": 10, "c1": 20, "c2": 30, "c3": 30, "c4": 45, "c5": 60, "c6": 90, "c7": 25, "c8": 500}
CAPACITIES = {CPU: 100, DISK: 150, GPU: 80}
POLICIES = (LeastRecentlyUsed, GreedyDualSizeFrequency, LeastFrequentlyUsed, FirstInFirstOut)
#: Every second client belongs to one of these.
TENANTS = (Tenant("small", quota=Quota(3, 60, 50)), Tenant("careful", quota=Quota(5, 90, 70), verified=True))
NAMES = ("m0", "m1", "m2", "m3", "m4", "m5")


def artifact(content: str) -> bytes:
    """A real, tiny safetensors file."""
    header = b'{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    return len(header).to_bytes(8, "little") + header + b"=" + content.encode().rjust(3, b"=")


def keys_of_contents(folder: Path) -> dict[str, str]:
    """The image key of each content, asked of a resolver of its own."""
    registry, catalog = SqliteRegistry(folder / "r.db"), Catalog(folder / "c.db")
    resolver, keys = Resolver(registry, catalog, InterpreterSelection(), folder, Limits()), {}
    for content in SIZES:
        path = folder / f"{content}.safetensors"
        path.write_bytes(artifact(content))
        keys[content] = resolver.resolve(f"file:{path}").key
    registry.close()
    catalog.close()
    return keys


_keys: dict[str, str] = {}


def keys() -> dict[str, str]:
    """Return the keys of all contents, found out once."""
    if not _keys:
        with tempfile.TemporaryDirectory() as folder:
            _keys.update(keys_of_contents(Path(folder)))
    return _keys


@dataclass(eq=False)
class Client:
    """A connection as the door keeps it, and what its client knows."""

    number: int
    peer: Peer = field(default_factory=lambda: Peer(1, 0, 0))
    tenant: Tenant | None = None
    pending: int = 0
    over: bool = False
    inbox: deque[dict[str, Any]] = field(default_factory=deque)
    leases: list[int] = field(default_factory=list)
    #: Leases by the number of the request for one at a better place: the lease whose place the new one takes.
    upgrades: dict[int, list[int]] = field(default_factory=dict)
    next_id: int = 0

    def watch_process(self) -> bool:
        """See `Connection`."""
        return True


class FaultyCatalog(Catalog):
    """A catalog whose disk is full, or that is locked by another process, now and then."""

    choices: Choices
    judge: Judge

    def _row(self, question: str, key: str) -> Any:
        self.judge.looks("reads the catalog")
        return super()._row(question, key)

    def _flush(self, statement: str = "", values: tuple[object, ...] = ()) -> None:
        self.judge.looks("writes the catalog")
        if self.choices.chance(16):
            self._unwritten.clear()
            self._fresh.clear()
            raise CapacityError("the disk under the catalog is full")
        super()._flush(statement, values)


class WatchedResolver(Resolver):
    """Resolver that reports when it looks at files, and during whose looks an operator may do something."""

    judge: Judge
    meanwhile: Callable[[], None]

    def _resolve(self, entry: Entry, reading: Reading) -> Resolved:
        found = super()._resolve(entry, reading)
        self.meanwhile()
        return found

    def resolve(self, name: str, reading: Reading = ANY_READING) -> Resolved:
        """See `Resolver.resolve`."""
        self.judge.looks("resolves a name")
        return super().resolve(name, reading)

    def where(self, name: str) -> str:
        """See `Resolver.where`."""
        self.judge.looks("asks the registry")
        return super().where(name)


class World:
    """One machine.

    Args:
        choices: All decisions.

    Attributes:
        events: Events that residency handled.
        seen: How often each (event, state of its replica) was.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.scheduler = Scheduler(choices)
        self.files = SimBytes(choices)
        self._folder = tempfile.TemporaryDirectory(prefix="trims-sim-", dir="/dev/shm")
        self.path = Path(self._folder.name)
        self.judge = Judge(SIZES, keys(), self.scheduler.clock)
        args = (self.files, choices, self.judge)
        self.device = SimDevice(GPU, CAPACITIES[GPU], *args)
        host = [SimTier(place, CAPACITIES[place], *args) for place in (CPU, DISK)]
        self.cloud = SimCloud(*args)
        self.tiers = [*host, self.device, SimArtifacts(FILE, sys.maxsize, *args), self.cloud]
        self.in_place = choices.chance(2)
        self.policy = choices.one_of(POLICIES)
        self.max_images = choices.one_of((sys.maxsize, sys.maxsize, 12, 15))
        self.verify_every = 1 + choices.below(8)
        self.lives = 0
        self.events = 0
        #: Counts of the kinds of things that the scheduler has let happen.
        self.happened: Counter[str] = Counter()
        self.seen: Counter[tuple[str, str]] = Counter()
        self.clients: list[Client] = []
        self.trace: list[str] = []
        for name in NAMES:
            self.judge.now_means(name, None)
        self.start()

    # -- life of a daemon ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A daemon starts on what the last one left."""
        self.happened["starts of a daemon"] += 1
        self.lives += 1
        scheduler, choices = self.scheduler, self.choices
        FaultyCatalog.choices, FaultyCatalog.judge = choices, self.judge
        self.judge.draining = False
        self.registry = SqliteRegistry(self.path / "registry.db")
        self.catalog = FaultyCatalog(self.path / "catalog.db", scheduler.pool)
        parts = (self.registry, self.catalog, InterpreterSelection(), self.path, Limits())
        resolver = WatchedResolver(*parts, in_place=self.in_place, clock=scheduler.clock, rest_s=self._rest_of)
        resolver.judge, resolver.meanwhile = self.judge, self._during_a_look
        settings = StoreSettings(workers=2, converters=2, life=self.lives, max_images=self.max_images)
        surroundings = Surroundings(
            pools=scheduler.pool,
            convert=lambda resolved: SimConversion(resolved, self.files, choices, self.judge),
            host=self.files,
            clock=scheduler.clock,
        )
        self.store = build_store(
            self.tiers,
            {place: self.policy() for place in (*CAPACITIES, FILE, CLOUD)},
            resolver,
            self.catalog,
            limits=Limits(),
            settings=settings,
            surroundings=surroundings,
            quotas={tenant.name: tenant.quota for tenant in TENANTS},
        )
        self._listen()
        self.answers: deque[tuple[Client, int, Outcome]] = deque()
        self.requests = Requests(self.store, self.send, lambda *answer: self.answers.append(answer))
        before = [(tier, {held[1] for held in tier.sealed.values()}, tier.held_in_all()) for tier in self.tiers]
        self.store.adopt()
        for tier, keys_before, nbytes in before:
            gone = keys_before - {held[1] for held in tier.sealed.values()}
            self.judge.check(not gone or nbytes > tier.capacity_bytes, f"a restart removed good images: {gone}")

    def _rest_of(self, file: Path) -> float:
        """Now and then a file counts as one that may still be written."""
        del file
        return float(self.choices.below(3)) if self.choices.chance(20) else -1.0

    def _listen(self) -> None:
        """Stand between residency, runner and watchers, and count."""
        store = self.store
        handle, report = store.residency.handle, store._feed

        def handled(event: Event) -> Any:
            self._count(event)
            was_draining = store.residency.draining
            opened = isinstance(event, Requested) and event.anywhere and event.waiter.wants_lease
            mapped = opened and self._can_be_mapped(event)
            earned = set(store.residency.promotions.earned)
            done = handle(event)
            self.happened["copies earned by use"] += len(store.residency.promotions.earned - earned)
            if mapped and not was_draining:
                self.happened["opens of what lies on the host"] += 1
                self.happened["opens of artifacts in place"] += any(
                    isinstance(each, Grant) and each.lease.place is FILE for each in done
                )
                mine = [each for each in done if getattr(each, "ticket", None) == event.waiter.ticket]
                answered = any(
                    isinstance(each, Grant) or (isinstance(each, Refuse) and isinstance(each.error, QuotaError))
                    for each in mine
                )
                self.judge.check(answered, "an open that could be mapped at once waits")
            if (
                was_draining
                and isinstance(event, Requested)
                and not (event.waiter.internal or event.waiter.is_promotion)
            ):
                refused = any(isinstance(each, Refuse) and each.ticket == event.waiter.ticket for each in done)
                self.judge.check(refused, "a daemon that drains takes a new request")
            if self.events % self.verify_every == 0:
                store.residency.validate()
            return done

        def reported(event: Event) -> None:
            for _ in range(1 + self.choices.chance(6)):  # once more, later
                self.scheduler.later("report", lambda: report(event))

        store.residency.handle = handled  # type: ignore[method-assign]
        store.runner._report = reported
        store._shell.wait_for = lambda holds, timeout_s: bool(holds())  # type: ignore[method-assign]
        store.watchers.tell = self.judge.changed  # type: ignore[method-assign]
        store._shell._bindings[_changed()] = self.judge.changed  # type: ignore[assignment]
        store.device_leases.subscribe_to_losses(self._lost)
        store.subscribe_to_upgrades(self._upgraded)

    def _can_be_mapped(self, event: Requested) -> bool:
        found = [self.store.residency.find(event.key, place) for place in (CPU, DISK)]
        tenant = event.waiter.tenant
        if tenant is not None and self.store.residency.tenancy.refusal(tenant, found[0]) is not None:
            found[0] = None  # what lies in memory is not for this tenant: its own files may have to be looked at
        if event.in_place is not None:
            found.append(self.store.residency.find(event.in_place, FILE))
        return any(replica is not None and replica.state is State.SEALED for replica in found)

    def _count(self, event: Event) -> None:
        self.events += 1
        key, place = getattr(event, "key", None), getattr(event, "place", None)
        found = self.store.residency.find(key, place) if key and place else None
        state = "-" if key is None else (found.state if found else State.ABSENT).value
        self.seen[type(event).__name__, state] += 1

    def crash(self) -> None:
        """The daemon is killed: nothing of it remains but memory, files, and what its clients have mapped."""
        self.scheduler.tasks.clear()
        for tier in self.tiers:
            tier.died()
        self.registry.close()
        self.catalog._db.close()
        self.catalog._reader.close()
        self.judge.conversions = 0
        for client in self.clients:
            self.judge.ended(client.number)
        self.clients.clear()

    def stop(self, *, purge: bool) -> None:
        """The daemon is asked to end."""
        for client in list(self.clients):
            self.hang_up(client)
        if purge:
            self.judge.pins.clear()
        self.store.stop(purge=purge)
        while self.scheduler.run_one(any_order=False):
            pass
        self.check_tasks()
        if purge:
            left = [label for label in self.tiers[0].sealed if label in self.tiers[0].extents]
            left = [label for label in left if label not in self.judge.stuck]
            self.judge.check(not left, f"a purge left {left} in memory")
        self.judge.check(not self.judge.conversions, f"{self.judge.conversions} conversions were never closed")
        drafts = [label for tier in self.tiers for label in tier.drafts]
        self.judge.check(not drafts, f"unfinished memory is left: {drafts}")
        self.judge.check(not self.files.open, f"{len(self.files.open)} descriptors are left open")
        self.judge.stuck.clear()
        self.scheduler.tasks.clear()
        self.registry.close()
        self.catalog.close()

    def close(self) -> None:
        """Remove the machine."""
        self._folder.cleanup()

    # -- the door --------------------------------------------------------------------------------------------------

    def connect(self) -> Client:
        """A client connects."""
        number = self.store.begin_session()
        client = Client(number, tenant=(*TENANTS, None, None)[number % 4])
        if client.tenant is not None:
            self.judge.tenants[number] = client.tenant
        self.clients.append(client)
        return client

    def ask(self, client: Client, message: dict[str, Any]) -> None:
        """A client sends a message; the door reads it later."""
        if message["op"] != "close" or "id" in message:
            message["id"] = client.next_id
            client.next_id += 1
        client.inbox.append(message)

    def read_one(self, client: Client) -> None:
        """The door handles one message of a client."""
        self.happened["messages"] += 1
        message = client.inbox.popleft()
        self._note(client, message)
        self.judge.in_door = True
        try:
            self.requests.handle(client, parse_request(message))  # type: ignore[arg-type]
        except BadMessageError as error:
            self.trace.append(f"bad message: {error}")
            self.end(client)
        finally:
            self.judge.in_door = False

    def _note(self, client: Client, message: dict[str, Any]) -> None:
        now = self.scheduler.now_s
        if message["op"] == "close":
            self.judge.closed(client.number, message["lease"])
        if "id" in message and message["op"] != "close":
            name = message.get("model") or message.get("path") or message.get("key", "")
            asked = Asked(client.number, message["op"], name, now, message.get("deadline_s"))
            self.judge.asks(client.number, message["id"], asked)

    def answer_one(self) -> None:
        """The door sends one answer."""
        self.happened["answers"] += 1
        client, request, outcome = self.answers.popleft()
        if not client.over:
            self._granting = outcome
            self.judge.in_door = True
            self.requests.answer(client, request, outcome)  # type: ignore[arg-type]
            self.judge.in_door = False

    def send(self, client: Client, message: dict[str, Any], fd: int = -1) -> None:
        """Take a message that the door would write into the client's socket."""
        encode(message)  # raises if it is too long for a frame
        if "error" in message:
            self.happened["refused for a quota"] += message["error"]["code"] == "quota"
            self.judge.refused(client.number, message["id"], message["error"]["code"], message["error"]["message"])
        elif "lease" in message and "key" in message:
            assert isinstance(self._granting, Granted)
            extent = self._extent_of(fd)
            there = any(extent.label in tier.sealed for tier in self.tiers)
            self.judge.check(there, f"{extent.label} is granted, and its memory is gone")
            self.judge.granted(client.number, message, extent, self.files.open[fd].content)
            client.leases.append(message["lease"])
            before = [each for each in client.upgrades.pop(message["id"], ()) if each in client.leases]
            self.happened["upgrades"] += bool(before)
            for lease in before:
                client.leases.remove(lease)
                self.ask(client, {"op": "close", "lease": lease})
        elif "closed" not in message and "id" in message:
            self.judge.answered(client.number, message["id"])

    def _extent_of(self, fd: int) -> Any:
        found = [each for tier in self.tiers for each in tier.extents.values() if each.fd == fd]
        self.judge.check(len(found) == 1, "granted a descriptor that is closed")
        return found[0]

    def _lost(self, lease: Lease, reason: str) -> None:
        del reason
        self.judge.lost(lease.number)

    def _upgraded(self, session: int, key: str) -> None:
        """Notify a session that an image it reads from disk lies in memory: it moves there, or does not listen."""
        leases = self.judge.upgraded(session, key)
        client = next((each for each in self.clients if each.number == session), None)
        if client is not None and self.choices.chance(2):
            self.ask(client, {"op": "resume", "key": key, "place": "cpu"})
            client.upgrades[client.next_id - 1] = leases

    def hang_up(self, client: Client) -> None:
        """A client's process has ended, and the door notices."""
        self.happened["hang-ups"] += 1
        self.end(client)

    def end(self, client: Client) -> None:
        """The door ends a session."""
        if not client.over:
            client.over = True
            self.clients.remove(client)
            self.judge.ended(client.number)
            self.store.end_session(client.number)

    # -- operators -------------------------------------------------------------------------------------------------

    def register(self, name: str, content: str, residency: dict[str, Any]) -> None:
        """`trims register --replace`, as the control door does it."""
        path = self.path / f"{name}.safetensors"
        if not path.exists() or self.choices.chance(2):
            path = self.path / f"{name}-{self.choices.below(3)}.safetensors"
        self._write(path, content)
        manifest = {"name": name, "artifact": {"path": str(path)}, "residency": residency}
        self.registry.put(manifest, "", replace=True)
        self.store.manifest_changed(name)
        self._files_changed(path, content)
        self.paths[name] = path
        self.judge.now_means(name, content)

    @property
    def paths(self) -> dict[str, Path]:
        """Return the path of each registered name's artifact."""
        return self.__dict__.setdefault("_paths", {})

    def _during_a_look(self) -> None:
        """An operator replaces or removes a name while one is being looked into, perhaps the same."""
        what = self.choices.below(12)
        if what == 11:
            self.register(self.choices.one_of(NAMES), self.choices.one_of(tuple(SIZES)), {})
        elif what == 10:
            self.unregister(self.choices.one_of(NAMES))

    def rewrite(self, name: str, content: str) -> None:
        """A publisher puts other bytes where a registered artifact lies."""
        if name in self.paths:
            self._write(self.paths[name], content)
            self._files_changed(self.paths[name], content)

    def _files_changed(self, path: Path, content: str) -> None:
        for name, where in self.paths.items():
            if where == path:
                self.judge.now_means(name, content, grace_s=0.5)

    def _write(self, path: Path, content: str) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(artifact(content))
        fresh.replace(path)

    def unregister(self, name: str) -> None:
        """`trims rm`."""
        if name in self.paths:
            self.registry.remove(name)
            self.paths.pop(name)
            self.judge.now_means(name, None)
            try:
                self.store.retire(name)
            except CapacityError:
                self.trace.append("rm could not be written")

    def pin(self, name: str, place: Any, *, pinned: bool) -> None:
        """Run `trims pin` or `unpin`. Only a pin that was reported to an operator is judged."""
        if not pinned:
            self.judge.pins.pop((name, place), None)
        try:
            self.store.pin(name, place, pinned=pinned)
        except TrimsError as error:
            self.trace.append(f"pin: {error}")
            return
        if pinned:
            self.judge.pins[name, place] = self.store.key_of(name)

    def evict(self, name: str, place: Any, *, drain: bool) -> None:
        """`trims evict`."""
        try:
            self.store.evict(name, place, drain=drain, timeout_s=0.0)
        except (TrimsError, InUseError) as error:
            self.trace.append(f"evict: {error}")

    def lose_device(self) -> None:
        """The device's keeper dies; another one serves a moment later."""
        self.device.keeper_dies()
        self.judge.leases = {n: lease for n, lease in self.judge.leases.items() if lease.place != GPU}
        self.store.device_leases.lost(GPU)
        self.scheduler.later("keeper", lambda: self.store.device_leases.back(GPU))

    # -- time and checks -------------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.happened["leaps of the clock"] += 1
        self.scheduler.now_s += seconds
        due = self.store.next_due_s()
        if due is not None and due <= self.scheduler.now_s:
            self.store.tick(self.scheduler.now_s)
            self._drain_answers_of_deadlines()

    def _drain_answers_of_deadlines(self) -> None:
        while self.answers:
            self.answer_one()
        self.judge.overdue()

    def check_tasks(self) -> None:
        """Nothing that runs in a worker may die of an exception."""
        if self.judge.broken:
            raise ViolationError(self.judge.broken[0])
        if self.scheduler.died:
            error = self.scheduler.died[0]
            raise ViolationError(f"a worker died: {type(error).__name__}: {error}") from error

    def settle(self) -> None:
        """Let all work end without new requests; readers keep what they hold."""
        for _ in range(100_000):
            self.check_tasks()
            if self.answers:
                self.answer_one()
            elif reading := [client for client in self.clients if client.inbox]:
                self.read_one(reading[0])
            elif not self.scheduler.run_one():
                soon = [at for at in (self.scheduler.next_at_s(), self.store.runner.next_due_s()) if at is not None]
                if not soon:
                    break
                self.tick(max(0.0, min(soon) - self.scheduler.now_s) + 0.001)
        else:
            raise ViolationError("work brings about work for ever")
        self.judge.at_rest()

    def _open_the_last(self) -> None:
        """Nothing is read and nothing fails: what the machine has room for beside what must stay is served."""
        tier, capacity = self.tiers[0], self.store.residency.capacity
        sizes = {key: SIZES[content] for content, key in self.judge.keys.items()}
        pinned = sum(sizes[key] for key, place in capacity.pins if place is CPU)
        room = tier.capacity_bytes - tier.squatted_bytes - tier.stays_bytes() - pinned
        fitting = [content for content in SIZES if SIZES[content] <= room]
        if not fitting or self.store.residency.draining:
            return
        self.happened["last opens beside other programs"] += tier.squatted_bytes > 0
        self.choices.calm = True
        path, content = self.path / "last.safetensors", fitting[-1]
        self._write(path, content)
        self.judge.now_means(str(path), content)
        while (client := self.connect()).tenant is not None:
            self.end(client)
        self.ask(client, {"op": "open", "path": str(path), "place": "cpu"})
        self.settle()
        served = client.leases or self.judge.codes[client.number] == "bad_image"  # what lay on disk may be flipped
        self.judge.check(bool(served), f"{SIZES[content]} bytes were refused where {room} can be had")
        self.end(client)
        self.settle()

    def validate(self) -> None:
        """The store's own books, in one piece and in short pieces."""
        try:
            self.store.residency.validate()
            for piece in self.store.residency.checks():
                piece()
        except InvariantError as error:
            raise ViolationError(str(error)) from error

    def settle_for_good(self) -> None:
        """End all sessions, deadlines and work: nothing may be left outside the books."""
        for client in list(self.clients):
            self.end(client)
        for _ in range(30):
            self.settle()
            self.tick(1000.0)
        self.settle()
        self._open_the_last()
        self.judge.check(not self.judge.asked, f"never answered: {list(self.judge.asked.values())}")
        extents = {extent.label for extent in self.store.runner.extents().values()}
        held = {label for tier in self.tiers for label in tier.extents} - self.judge.stuck
        self.judge.check(held == extents - self.judge.stuck, f"memory outside the books: {held ^ extents}")
        self.judge.check(not self.judge.conversions, f"{self.judge.conversions} conversions outlive their requests")
        self.validate()
        booked = {(each.key, each.place) for each in self.store.residency.replicas.values()}
        found = {(each.key, each.place) for each in self.store.runner.extents().values()}
        self.judge.check(booked == found, f"replicas without memory, or the reverse: {booked ^ found}")
        leases = self.store.residency.leases.by_number
        self.judge.check(not leases, f"leases outlive their sessions: {leases}")
        asks = self.store._shell._asks
        self.judge.check(not asks, f"the store still keeps requests: {asks}")


def _changed() -> Any:
    from trims.core.residency.events import Changed

    return Changed
