"""Conversions of the store's views to messages of the control door."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.manifests.serving import TensorType
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trims.core.residency.events import Changed
    from trims.daemon.budget import Budget
    from trims.daemon.clients import Connection
    from trims.daemon.devices import Devices
    from trims.daemon.endpoint import EndpointKeeper
    from trims.daemon.transfers import Pushing
    from trims.registry.versions import Versions
    from trims.sources.process.fetcher import Running
    from trims.store.read_model import AccountView, LoadView, ReadModel, ReplicaView
    from trims.tenants import Tenants


def replica(view: ReplicaView, connections: Iterable[Connection]) -> pb.Replica:
    """Return one replica, and which clients hold it."""
    message = pb.Replica(
        key=view.id.key,
        place=str(view.id.place),
        state=view.state.value,
        nbytes=view.nbytes,
        leases=view.leases,
        waiters=view.waiters,
        pinned=view.pinned,
        cost_s=view.cost_s,
        uses=view.uses,
        idle_s=view.idle_s,
        digest=view.digest,
        location=view.location,
        generation=view.id.generation,
        names=view.names,
        holders=_holders(view, connections),
        story=view.story,
        device=view.device,
    )
    if view.keep_left_s is not None:
        message.keep_left_s = view.keep_left_s
    return message


def _holders(view: ReplicaView, connections: Iterable[Connection]) -> list[pb.Holder]:
    if not view.leases_by_session:
        return []
    known = {connection.number: connection for connection in connections}
    holders = []
    for number, leases in sorted(view.leases_by_session.items()):
        holder = pb.Holder(session=number, leases=leases)
        if (connection := known.get(number)) is not None:
            holder.pid, holder.uid, holder.agent = connection.peer.pid, connection.peer.uid, connection.agent
        holders.append(holder)
    return holders


def stats(
    read: ReadModel,
    sessions: int,
    uptime_s: float,
    devices: Devices | None = None,
    budget: Budget | None = None,
    *,
    endpoint: EndpointKeeper | None = None,
    tenants: Iterable[pb.TenantStats] = (),
    counts: Mapping[str, int] | None = None,
) -> pb.StatsReply:
    """Return counters and tiers at one moment, and the devices, if they are asked for, at the next."""
    whole = read.whole()
    message = pb.StatsReply(
        counters={**whole.counters, **(counts or {})},
        tiers=[
            pb.TierStats(
                place=str(tier.place),
                capacity_bytes=tier.capacity_bytes,
                charged_bytes=tier.charged_bytes,
                replicas=tier.replicas,
                policy=tier.policy,
            )
            for tier in whole.tiers
        ],
        sessions=sessions,
        leases=whole.leases,
        uptime_s=uptime_s,
        unverified_bytes=whole.unverified_bytes,
        images=whole.images,
        tenants=tenants,
    )
    if devices is not None:
        message.devices.extend(devices.look(whole.tiers))
        message.gpu_off = devices.off
    if budget is not None:
        message.max_files, message.max_sessions, message.max_images = budget.limit, budget.sessions, budget.images
    if endpoint is not None:
        message.endpoint, message.endpoint_off = endpoint.where(), endpoint.off()
    return message


def tenants(accounts: Iterable[AccountView], known: Tenants, sessions: Mapping[str, int]) -> list[pb.TenantStats]:
    """Return what each tenant holds, and the most that it may hold."""
    found = []
    for account in accounts:
        tenant = known.by_name[account.name]
        quota = tenant.quota
        found.append(
            pb.TenantStats(
                name=account.name,
                sessions=sessions.get(account.name, 0),
                leases=account.leases,
                leased_bytes=account.leased_bytes,
                resident_bytes=account.resident_bytes,
                most_sessions=tenant.sessions,
                most_leases=quota.leases,
                most_leased_bytes=quota.leased_bytes,
                most_resident_bytes=quota.resident_bytes,
            )
        )
    return found


def tensors(types: Iterable[TensorType]) -> list[pb.TensorInfo]:
    """Return inputs or outputs of a model as messages."""
    return [pb.TensorInfo(name=each.name, dtype=each.dtype, shape=each.shape) for each in types]


def types_of(infos: Iterable[pb.TensorInfo]) -> tuple[TensorType, ...]:
    """Return the types that `tensors` wrote."""
    return tuple(TensorType(each.name, each.dtype, tuple(each.shape)) for each in infos)


def load_progress(view: LoadView) -> pb.LoadProgress:
    """Return how far a running load is."""
    return pb.LoadProgress(
        phase=view.phase, done_bytes=view.done_bytes, total_bytes=view.total_bytes,
        fetched_bytes=view.fetched_bytes, bytes_per_s=view.bytes_per_s, left_s=view.left_s,
    )  # fmt: skip


def push_progress(pushing: Pushing) -> pb.LoadProgress:
    """Return how far a push is."""
    moved = pushing.moved
    done, total = (0, 0) if moved is None else (moved.done_bytes, moved.total_bytes)
    over = pushing.over.is_set()
    return pb.LoadProgress(
        phase="done" if over else "pushing", done_bytes=done, total_bytes=total, done=over, note=pushing.note
    )


def transfer(running: Running) -> pb.Transfer:
    """Return a transfer that runs."""
    moved = running.moved
    return pb.Transfer(
        address=running.address, what=running.what, done_bytes=moved.done_bytes, total_bytes=moved.total_bytes,
        fetched_bytes=moved.fetched_bytes, bytes_per_s=running.rate, left_s=running.left_s,
        trouble=moved.trouble,
    )  # fmt: skip


def aliases(versions: Versions) -> pb.AliasReply:
    """Return the versions and aliases of a model."""
    return pb.AliasReply(
        name=versions.name,
        versions=versions.registered,
        aliases=[
            pb.ModelAlias(label=label, version=alias.version, previous=alias.previous)
            for label, alias in sorted(versions.aliases.items())
        ],
    )


def change(changed: Changed, names: Sequence[str]) -> pb.Change:
    """Return one change of state."""
    return pb.Change(
        key=changed.key,
        place=str(changed.place),
        old=changed.old.value,
        new=changed.new.value,
        why=changed.why,
        generation=changed.generation,
        names=names,
    )
