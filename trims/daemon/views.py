"""The books as messages of the control door. Reading only; each function takes the lock for one consistent look."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from typing import TYPE_CHECKING

from trims.core.replica import State
from trims.store.runner import Job
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.core.events import Changed
    from trims.core.manifest import Manifest
    from trims.core.place import Place
    from trims.core.replica import Replica
    from trims.daemon.clients import Session
    from trims.daemon.devices import Devices
    from trims.store.store import Store
    from trims.tiers.base import Extent


def replica(store: Store, sessions: Sequence[Session], found: Replica, *, story: bool = False) -> pb.Replica:
    """One replica."""
    now = time.monotonic()
    extent = store.runner.extent(Job(found.key, found.place, found.generation))
    with store.locked():
        message = pb.Replica(
            key=found.key,
            place=str(found.place),
            state=found.state.value,
            nbytes=found.nbytes,
            leases=len(found.leases),
            waiters=len(found.waiters),
            pinned=(found.key, found.place) in store.residency.room.pins,
            cost_s=found.cost_s,
            uses=found.uses,
            idle_s=0.0 if found.held or not found.last_used_s else now - found.last_used_s,
            digest=extent.digest if extent else "",
            location=_location(extent) if extent else "",
            generation=found.generation,
            holders=_holders(store, sessions, found),
            story=list(found.story) if story else [],
        )
        if extent is not None and extent.export is not None:
            message.device = extent.export.device
        if found.keep_until_s is not None:
            message.keep_left_s = max(0.0, found.keep_until_s - now)
    message.names.extend(_names(store, found.key))
    return message


def _location(extent: Extent) -> str:
    if extent.export is None:
        return extent.label
    return f"image {extent.label} of the keeper of {extent.export.device}, shared by {extent.export.driver}"


def _names(store: Store, key: str) -> list[str]:
    return store.catalog.names_of(key)


def _holders(store: Store, sessions: Sequence[Session], found: Replica) -> list[pb.Holder]:
    by_session = Counter(store.residency.leases.by_number[number].session for number in found.leases)
    known = {session.number: session for session in sessions}
    holders = []
    for number, leases in sorted(by_session.items()):
        session = known.get(number)
        peer = session.peer if session else None
        holders.append(
            pb.Holder(
                session=number,
                pid=peer.pid if peer else 0,
                uid=peer.uid if peer else 0,
                agent=session.agent if session else "",
                leases=leases,
            )
        )
    return holders


def replicas_of(store: Store, sessions: Sequence[Session], key: str, *, story: bool = False) -> list[pb.Replica]:
    """All replicas of an image, fastest place first."""
    with store.locked():
        found = store.residency.places_of(key)
    return [replica(store, sessions, each, story=story) for each in found]


def all_replicas(store: Store, sessions: Sequence[Session]) -> list[pb.Replica]:
    """Everything in the books, by place, largest first."""
    with store.locked():
        found = list(store.residency.replicas.values())
    found.sort(key=lambda each: (each.place.tier.rank, each.place.device, -each.nbytes, each.key))
    return [replica(store, sessions, each) for each in found]


def stats(store: Store, sessions: int, uptime_s: float, devices: Devices | None = None) -> pb.StatsReply:
    """Counters and tiers at one moment, and the devices, if they are asked for, at the next."""
    looked = devices.look(store) if devices is not None else []
    with store.locked():
        residency = store.residency
        held = Counter(place for _, place in residency.replicas)
        tiers = [
            pb.TierStats(
                place=str(place),
                capacity_bytes=capacity,
                charged_bytes=residency.room.charged[place],
                replicas=held[place],
                policy=residency.room.policy_name(place),
            )
            for place, capacity in residency.room.capacities.items()
        ]
        return pb.StatsReply(
            counters=dict(store.counters),
            tiers=tiers,
            sessions=sessions,
            leases=len(residency.leases.by_number),
            uptime_s=uptime_s,
            devices=looked,
            gpu_off=devices.off if devices is not None else "",
        )


def load_progress(store: Store, name: str, place: Place | None) -> pb.LoadProgress:
    """Where a running load is."""
    known = store.resolver.cached(name)
    if known is None:
        return pb.LoadProgress(phase="resolving")
    where = place or known.manifest.residency.place
    found = store.residency.find(known.key, where)
    progress = store.runner.progress(known.key, where)
    if found is None or found.state is not State.FILLING:
        return pb.LoadProgress(phase=found.state.value if found else "queued")
    return pb.LoadProgress(phase="filling", done_bytes=progress.done_bytes if progress else 0, total_bytes=found.nbytes)


def change(changed: Changed, names: Sequence[str]) -> pb.Change:
    """One change of state."""
    return pb.Change(
        key=changed.key,
        place=str(changed.place),
        old=changed.old.value,
        new=changed.new.value,
        why=changed.why,
        generation=changed.generation,
        names=names,
    )


def manifest_json(manifest: Manifest) -> str:
    """A manifest for reading."""
    return json.dumps(dataclasses.asdict(manifest), default=str, sort_keys=True)
