"""The control door: gRPC on a Unix socket, for operators and schedulers.

Every handler turns errors of the tree into a status in one place (`trims.wire.status`); anything else is our bug and
ends that call only. Not covered: opening weights (`attach_door`).
"""

from __future__ import annotations

import functools
import json
import logging
import os
import queue
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc

from trims.core.errors import (
    ArtifactError,
    CallerError,
    CapacityError,
    InternalError,
    LostPeerError,
    ManifestError,
    ModelNotFoundError,
    TrimsError,
)
from trims.core.place import CPU, Place
from trims.core.replica import State
from trims.daemon import views
from trims.daemon.check import check_store
from trims.daemon.registrations import Registrations
from trims.daemon.sockets import SocketName
from trims.manifests.references import name_of, reference_to
from trims.manifests.serving import NO_SIGNATURE, Signature
from trims.registry.base import parse_yaml
from trims.store.pending_requests import Loaded
from trims.wire import trims_pb2 as pb
from trims.wire import trims_pb2_grpc
from trims.wire.answers import PROTOCOL_VERSION
from trims.wire.keepalive import PING_S, ping_options
from trims.wire.messages import MAX_DEADLINE_S
from trims.wire.status import abort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from trims.daemon.attach_door import AttachDoor
    from trims.daemon.budget import Budget
    from trims.daemon.devices import Devices
    from trims.daemon.endpoint import EndpointKeeper
    from trims.daemon.transfers import Pushing, Transfers
    from trims.registry.base import Registry
    from trims.registry.versions import Entry
    from trims.store.model_changes import Subscription
    from trims.store.pending_requests import Pending
    from trims.store.store import Store

log = logging.getLogger(__name__)
_POLL_S = 0.1
_WORKERS = 64
#: Calls that may stay open for long (Load, Watch, orders that wait for watchers); other workers answer short ones.
MAX_STREAMS = 48
#: Seconds that an order which changes models waits for its watchers, the endpoints, to have acted on it.
CONFIRMED_S = 2.0
_MAX_MESSAGE_BYTES = 4 << 20
_Handler = TypeVar("_Handler", bound="Callable[..., Any]")


def _guarded(handler: _Handler) -> _Handler:
    """Wrap a handler: errors of the tree become a status; others are logged and become `internal`."""

    @functools.wraps(handler)
    def guarded(self: ControlDoor, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return handler(self, request, context)
        except TrimsError as error:
            abort(context, error)
        except Exception as error:
            if not _aborted(context):
                log.exception("%s failed", handler.__name__)
                abort(
                    context,
                    InternalError(f"{type(error).__name__}: {error}; the daemon's log has the details"),
                )
            raise

    return cast("_Handler", guarded)


def _aborted(context: grpc.ServicerContext) -> bool:
    return not context.is_active()


class ControlDoor(trims_pb2_grpc.ControlServicer):
    """Serves the control door of one daemon.

    Args:
        attach: Knows which process holds which lease.
        devices: Reported by Stats and Resident.
        endpoint: Beside the daemon; reported by Stats.
        boot: Identifies this life of the daemon.
        state_dir: Reported by Health.
        on_shutdown: Called with `purge` when a request asks the daemon to end.
        waits_for: Says what must be done before the daemon ends; empty text while it was not asked to end.
    """

    def __init__(
        self,
        store: Store,
        registry: Registry,
        attach: AttachDoor,
        path: Path,
        *,
        devices: Devices,
        budget: Budget,
        endpoint: EndpointKeeper,
        boot: str,
        version: str,
        state_dir: Path,
        on_shutdown: Callable[[bool], None],
        transfers: Transfers,
        waits_for: Callable[[], str] = str,
        ping_s: float = PING_S,
    ) -> None:
        self._store = store
        self._read = store.read
        self._watchers = store.watchers
        self._model_changes = store.model_changes
        self._registry = registry
        self._attach = attach
        self._name = SocketName(path)
        self._devices = devices
        self._budget = budget
        self._endpoint = endpoint
        self._about = {"boot": boot, "version": version, "state_dir": str(state_dir)}
        self._on_shutdown = on_shutdown
        self._transfers = transfers
        self._registrations = Registrations(store, registry, transfers)
        self._waits_for, self._ping_s = waits_for, ping_s
        self._started_at_s = time.monotonic()
        self._stopping = False
        #: The last one has the socket of the door's name; earlier ones have lost it and serve who is connected.
        self._servers: list[grpc.Server] = []
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)

    def start(self) -> None:
        """Bind and begin to serve."""
        self._pool = futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="trims-control")
        self._publish()

    def _publish(self) -> None:
        self._name.clear()
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0)]
        options += ping_options(self._ping_s)
        server = grpc.server(self._pool, options=options)
        trims_pb2_grpc.add_ControlServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        before = os.umask(0o177)  # no other user may connect, not even in the moment before the mode is set
        try:
            server.add_insecure_port(f"unix:{self._name.path}")
        finally:
            os.umask(before)
        self._name.bound(0o600)
        server.start()
        self._servers.append(server)

    def publish_again(self) -> list[str]:
        """Bind a new socket if the last one has lost its name; return that name. Calls and streams go on."""
        if self._name.is_there():
            return []
        self._publish()
        return [str(self._name.path)]

    def stop(self) -> None:
        """End running calls and remove the socket."""
        self._stopping = True
        with self._name.others_spared():
            for ended in [server.stop(grace=1.0) for server in self._servers]:
                ended.wait()
        self._pool.shutdown(wait=True)
        self._name.withdraw()

    # -- models ----------------------------------------------------------------------------------------------------

    @_guarded
    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Model:
        """Keep a manifest."""
        raw = self._transfers.manifest_at(request.address) if request.address else _parsed(request.manifest_yaml)
        model = self._model(self._registrations.register(raw, request.origin, replace=request.replace))
        if request.replace or len(model.versions) > 1:  # nothing is known of a name that is new
            model.unconfirmed.extend(self._unconfirmed())
        return model

    @_guarded
    def Unregister(self, request: pb.UnregisterRequest, context: grpc.ServicerContext) -> pb.UnregisterReply:
        """Forget a version of a model, or all."""
        self._registrations.unregister(request.name, every=request.all_versions)
        return pb.UnregisterReply(unconfirmed=self._unconfirmed())

    @_guarded
    def Alias(self, request: pb.AliasRequest, context: grpc.ServicerContext) -> pb.AliasReply:
        """Show, switch, switch back or remove an alias."""
        reply = views.aliases(
            self._registrations.alias(request.name, request.version, back=request.back, remove=request.remove)
        )
        if request.version or request.back or request.remove:
            reply.unconfirmed.extend(self._unconfirmed())
        return reply

    def _unconfirmed(self) -> list[str]:
        """Wait until watchers of models have acted on a change. Return those that did not within the bound."""
        may_wait = self._streams.acquire(blocking=False)  # else no worker may be left for the watchers' confirmations
        try:
            found = self._model_changes.unconfirmed(CONFIRMED_S if may_wait else 0.0)
        finally:
            if may_wait:
                self._streams.release()
        if found:
            log.warning("within %g s a change of models was not confirmed by %s", CONFIRMED_S, ", ".join(found))
        return found

    @_guarded
    def List(self, request: pb.ListRequest, context: grpc.ServicerContext) -> pb.ModelList:
        """Return all registered models, or the versions of one. One whose manifest cannot be read hides no other."""
        listed = (self._listed(row, context) for row in self._rows(request.name))
        return pb.ModelList(models=[model for model in listed if model is not None])

    def _rows(self, name: str) -> list[str]:
        """Return the versions of a model; all of all models without a name."""
        if not name:
            return self._registry.rows()
        try:
            return self._registry.versions(name).rows()
        except ModelNotFoundError:
            return []

    def _listed(self, row: str, context: grpc.ServicerContext) -> pb.Model | None:
        if self._stopping or not context.is_active():  # a registry may take long for each
            raise LostPeerError("the daemon ends, or the client has gone, before all models were listed")
        try:
            return self._model(self._registry.find(row))
        except ModelNotFoundError:
            return None  # it was removed meanwhile
        except ManifestError as error:
            return pb.Model(name=name_of(row), reference=row, problem=str(error))

    @_guarded
    def Describe(self, request: pb.NameRequest, context: grpc.ServicerContext) -> pb.Model:
        """Return one model, with the histories of its replicas."""
        described = self._model(self._registry.find(request.name), story=True)
        described.lock_json = self._transfers.locked(request.name)
        described.format = described.format or self._store.find_format(request.name)
        if request.look and (trouble := self._store.find_trouble(request.name)):
            raise ArtifactError(trouble)
        return described

    @_guarded
    def Learn(self, request: pb.LearnRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Keep the inputs and outputs of a run, unless the name stands for another image by now."""
        keys = self._read.keys_of(self._store.resolver.row_of(request.name))
        if request.key in keys:
            found = Signature(views.types_of(request.inputs), views.types_of(request.outputs))
            self._store.resolver.signatures.learn(keys, found)
            self._model_changes.notify(name_of(row) for key in keys if key for row in self._read.names_of(key))
        return pb.Empty()

    # -- residency -------------------------------------------------------------------------------------------------

    @_guarded
    def Load(self, request: pb.LoadRequest, context: grpc.ServicerContext) -> Iterator[pb.LoadProgress]:
        """Have a model at a place; the work is started before the first message is asked for."""
        self._begin_stream(context)
        place = Place.wanted(request.place) if request.place else None
        deadline_s = request.deadline_s if request.HasField("deadline_s") else None
        if deadline_s is not None and not 0 <= deadline_s <= MAX_DEADLINE_S:
            raise CallerError(f"deadline_s is {deadline_s}; it must be seconds from 0 to {MAX_DEADLINE_S:,.0f}")
        pending = self._store.load(request.name, place, deadline_s)
        return self._load_progress(request.name, place, pending, context)

    def _load_progress(
        self,
        name: str,
        place: Place | None,
        pending: Pending,
        context: grpc.ServicerContext,
        note: Callable[[], str] = str,
    ) -> Iterator[pb.LoadProgress]:
        try:
            while not pending.done(_POLL_S):
                yield views.load_progress(self._read.load(name, place))
                if self._stopping or not context.is_active():
                    return
            loaded = pending.result()
        except TrimsError as error:
            abort(context, error)
        assert isinstance(loaded, Loaded), "a load asks for no lease"
        self._model_changes.unconfirmed(CONFIRMED_S)  # the name may stand for another image from now on
        view = self._read.replica(loaded.key, loaded.place)
        seen = views.replica(view, self._attach.connections()) if view else None
        yield pb.LoadProgress(
            phase="done", done_bytes=loaded.nbytes, total_bytes=loaded.nbytes, done=True, replica=seen, note=note()
        )

    @_guarded
    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> Iterator[pb.LoadProgress]:
        """Fetch what lies at the address of a model's manifest."""
        self._begin_stream(context)
        forget = functools.partial(self._registrations.unregister, request.name, every=False)
        pulling = self._transfers.pull(
            request.name, update=request.update, prove=request.prove, forget=forget if request.forget else None
        )
        context.add_callback(pulling.stop.set)  # also at its end, where nothing is left to stop
        words = functools.partial(self._transfers.pulled, request.name)
        return self._load_progress(request.name, None, pulling.pending, context, words)

    @_guarded
    def Push(self, request: pb.PushRequest, context: grpc.ServicerContext) -> Iterator[pb.LoadProgress]:
        """Write a model's image to an address."""
        self._begin_stream(context)
        return self._push_progress(
            self._transfers.push(request.name, request.address, replace=request.replace), context
        )

    def _push_progress(self, pushing: Pushing, context: grpc.ServicerContext) -> Iterator[pb.LoadProgress]:
        while not pushing.over.wait(_POLL_S):
            yield views.push_progress(pushing)
            if self._stopping or not context.is_active():
                pushing.stop.set()
                return
        if isinstance(pushing.error, TrimsError):
            abort(context, pushing.error)
        elif pushing.error is not None:
            raise pushing.error
        yield views.push_progress(pushing)

    @_guarded
    def Transfers(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.TransferList:
        """Return the transfers that run, and the addresses whose files are refused."""
        damaged = [
            pb.Transfer(address=address, what="damaged", trouble=trouble)
            for address, trouble in self._transfers.damaged().items()
        ]
        return pb.TransferList(transfers=[*map(views.transfer, self._transfers.running()), *damaged])

    @_guarded
    def Prune(self, request: pb.PruneRequest, context: grpc.ServicerContext) -> pb.PruneReply:
        """Remove downloads that no registered model has."""
        removed, nbytes = self._transfers.prune(dry_run=request.dry_run)
        uploads = self._transfers.give_up_pushes(dry_run=request.dry_run)
        return pb.PruneReply(removed=removed, nbytes=nbytes, uploads=uploads)

    @_guarded
    def Evict(self, request: pb.EvictRequest, context: grpc.ServicerContext) -> pb.EvictReply:
        """Free replicas."""
        key = self._store.key_of(request.name)
        places = self._store.evict_image(
            key, Place.wanted(request.place) if request.place else None, drain=request.drain, name=request.name
        )
        draining = [str(place) for place in places if self._is_draining(key, place)]
        return pb.EvictReply(freed=[str(place) for place in places if str(place) not in draining], draining=draining)

    def _is_draining(self, key: str, place: Place) -> bool:
        view = self._read.replica(key, place)
        return view is not None and view.state is State.DRAINING

    @_guarded
    def Pin(self, request: pb.PinRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Pin a model to a place."""
        self._store.pin(request.name, _place(request.place) or CPU, pinned=True)
        return pb.Empty()

    @_guarded
    def Unpin(self, request: pb.PinRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Take a pin back."""
        self._store.pin(request.name, _place(request.place) or CPU, pinned=False)
        return pb.Empty()

    @_guarded
    def Resident(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.ReplicaList:
        """Return everything in the ledger, and the devices."""
        connections = self._attach.connections()
        replicas = [views.replica(view, connections) for view in self._read.replicas()]
        return pb.ReplicaList(replicas=replicas, devices=self._devices.look(self._read.whole().tiers))

    @_guarded
    def Stats(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.StatsReply:
        """Return counters, tiers and devices."""
        uptime_s = time.monotonic() - self._started_at_s
        attach = self._attach
        return views.stats(
            self._read,
            len(attach.connections()),
            uptime_s,
            self._devices,
            self._budget,
            endpoint=self._endpoint,
            counts=self._transfers.counts(),
            tenants=views.tenants(self._read.accounts(), attach.tenants, attach.clients),
        )

    @_guarded
    def Watch(self, request: pb.Empty, context: grpc.ServicerContext) -> Iterator[pb.Change]:
        """Yield changes of state; subscribed before the first message is asked for."""
        self._begin_stream(context)
        watcher = self._watchers.add()
        context.add_callback(lambda: self._watchers.remove(watcher))
        context.send_initial_metadata(())  # shows the client that nothing is missed from now on
        return self._changes(watcher, context)

    def _changes(self, watcher: queue.Queue[Any], context: grpc.ServicerContext) -> Iterator[pb.Change]:
        while context.is_active() and not self._stopping:
            try:
                changed = watcher.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            yield views.change(changed, self._read.names_of(changed.key))

    @_guarded
    def WatchModels(self, request: pb.WatchModelsRequest, context: grpc.ServicerContext) -> Iterator[pb.ModelChange]:
        """Yield names of models that changed; subscribed before the first message."""
        self._begin_stream(context)
        subscription = self._model_changes.add(request.watcher)
        context.add_callback(lambda: self._model_changes.remove(subscription))
        return self._changed_models(subscription, subscription.notified, context)

    def _changed_models(
        self, subscription: Subscription, first: int, context: grpc.ServicerContext
    ) -> Iterator[pb.ModelChange]:
        def change(sequence: int, names: Iterable[str] = (), *, everything: bool = False) -> pb.ModelChange:
            outside, watch = self._registry.changes_outside, subscription.number
            return pb.ModelChange(names=names, all=everything, outside=outside, watch=watch, sequence=sequence)

        yield change(first)
        while context.is_active() and not self._stopping:
            names, everything, sequence = subscription.take(_POLL_S)
            if names or everything:
                yield change(sequence, names, everything=everything)

    @_guarded
    def ConfirmModels(self, request: pb.ConfirmModelsRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Note that a watcher of models has acted on a change."""
        self._model_changes.confirm(request.watch, request.sequence)
        return pb.Empty()

    # -- the daemon ------------------------------------------------------------------------------------------------

    @_guarded
    def Check(self, request: pb.CheckRequest, context: grpc.ServicerContext) -> pb.CheckReply:
        """Check the ledger against the facts."""
        report = check_store(self._store, verify=request.verify)
        report.findings += self._transfers.damaged().values()
        answer = pb.CheckReply(findings=report.findings, replicas=report.replicas, verified_bytes=report.verified_bytes)
        answer.verified_by.update(report.verified_by)
        return answer

    @_guarded
    def Drain(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.Empty:
        """Take no new opens."""
        self._store.drain()
        return pb.Empty()

    @_guarded
    def Health(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.HealthReply:
        """Return the daemon's version and process, and whether it takes opens."""
        waits_for = self._waits_for()
        status = "ending" if waits_for else "draining" if self._read.draining else "serving"
        return pb.HealthReply(
            status=status, pid=os.getpid(), protocol=PROTOCOL_VERSION, waits_for=waits_for, **self._about
        )

    @_guarded
    def Shutdown(self, request: pb.ShutdownRequest, context: grpc.ServicerContext) -> pb.Empty:
        """End the daemon, after this call is answered."""
        self._on_shutdown(request.purge)
        return pb.Empty()

    def _begin_stream(self, context: grpc.ServicerContext) -> None:
        if not self._streams.acquire(blocking=False):
            raise CapacityError(
                f"{MAX_STREAMS} loads and watches are running, which is the limit (each endpoint watches, too); end a "
                "`trims load` or `trims watch`, or ask again when one has ended"
            )
        if not context.add_callback(self._streams.release):
            self._streams.release()  # the client is gone already

    def _opened_row(self, entry: Entry) -> str:
        """Return the row that an open of this one opens: it may have the artifact of another model."""
        found = self._store.resolver.references.entry_of(entry.manifest)
        return entry.row if found is None else found.row

    def _model(self, entry: Entry, *, story: bool = False) -> pb.Model:
        manifest, versions = entry.manifest, self._registry.versions(entry.manifest.name)
        image, connections = self._read.image_of(self._opened_row(entry)), self._attach.connections()
        replicas = self._read.replicas_of(image, story=story)
        # A list of thousands of models would read a row for each, once a second for the web page.
        signature = self._read.signature_of(image) if story else NO_SIGNATURE
        raw = self._registry.raw(entry.row)
        return pb.Model(
            name=manifest.name,
            reference=reference_to(manifest.name, manifest.version) if "version" in raw else entry.row,
            aliases=versions.leading_to(manifest.version),
            versions=versions.registered,
            version=manifest.version,
            description=manifest.description,
            license=manifest.license,
            origin=manifest.origin,
            framework=manifest.framework.name if manifest.framework else "",
            format=image.format or self._read.format_of(entry.row, manifest),
            key=image.key,
            image_bytes=image.nbytes,
            in_memory=self._read.in_memory(image),
            manifest_json=json.dumps(raw, sort_keys=True),
            replicas=[views.replica(view, connections) for view in replicas],
            inputs=views.tensors(signature.inputs),
            outputs=views.tensors(signature.outputs),
            tensors_seen=signature.seen,
            files=map(str, image.files) if story else (),
        )


def _parsed(text: str) -> Any:
    try:
        return parse_yaml(text)
    except ManifestError as error:
        raise ManifestError(f"the manifest {error}") from error


def _place(text: str) -> Place | None:
    return Place.parse(text) if text else None
