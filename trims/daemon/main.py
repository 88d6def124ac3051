"""Putting a daemon together from its settings, and running it until it is asked to end."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import logging
import os
import secrets
import signal
import sys
import threading
from typing import TYPE_CHECKING

import trims
from trims.core.errors import ConfigError
from trims.core.place import CLOUD, CPU, DISK, FILE, Place
from trims.core.policy.eviction import LeastRecentlyUsed, Policy
from trims.core.units import format_bytes
from trims.daemon import sharing as sharing_record
from trims.daemon.attach_door import AttachDoor
from trims.daemon.budget import budget, raise_limit
from trims.daemon.config import unknown_variables
from trims.daemon.control_door import ControlDoor
from trims.daemon.devices import Devices
from trims.daemon.endpoint import endpoint_of
from trims.daemon.folder_lock import FolderLock
from trims.daemon.gpus import gpu_tiers
from trims.daemon.notify import Notifier
from trims.daemon.shutdown import Shutdown
from trims.daemon.sources import Sources
from trims.daemon.transfers import Transfers
from trims.daemon.watch import Watch
from trims.environments.environment_store import EnvironmentStore
from trims.followed_files import LOOK_S, FollowedFiles
from trims.formats.base import Limits
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.formats.conversion.scratch import sweep_scratch
from trims.formats.plugins import load_all
from trims.logs import configure, hand_down
from trims.memory.available import missing_bytes
from trims.memory.heap import return_large_buffers
from trims.memory.memfd import SealedMemfd
from trims.memory.shm import PosixShm, check_folder
from trims.memory.shortage import group_limit
from trims.process.system_calls import OF_DAEMON, require
from trims.registry.generation import Checkpoints
from trims.registry.opening import file_of_registry, open_registry
from trims.store.assembly import StoreSettings, build_store
from trims.store.catalog import CATALOG, Catalog
from trims.store.resolve.resolver import Resolver
from trims.store.rows import restore_rows
from trims.tenants import read_tenants
from trims.tiers.cpu import CpuTier
from trims.tiers.disk import DiskTier
from trims.tiers.file import FileTier
from trims.trace import spans
from trims.trace.recorder import MOST_BYTES, prune
from trims.wire.address import ATTACH_SOCKET, CONTROL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.config import Config
    from trims.memory.segments import SegmentDriver
    from trims.store.store import Store
    from trims.tiers.base import Tier

log = logging.getLogger(__name__)
#: Seconds between two hand-overs of the interpreter. The default of 5 ms would be the tail latency of a warm open.
_SWITCH_INTERVAL_S = 0.0005
#: Seconds between two looks whether clients find the doors.
DOORS_S = 60.0
#: Seconds between two looks whether registry and catalog have changes in their logs only.
_CHECKPOINT_S = 1.0
#: Seconds between two looks at what control groups leave for images.
_MEMORY_S = 1.0


class Daemon:
    """One daemon: store and doors. `start`, `wait`, `stop`; constructing it starts nothing."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.boot = secrets.token_hex(8)
        self._purge = False
        self.ended = False
        #: Error that killed the attach door; the process then ends with an error.
        self.died: BaseException | None = None
        #: Work that must be done before the daemon can end, once it was asked to end; empty before.
        self.waits_for = ""
        self._announcing = threading.Lock()
        self._lacks_memory = False
        looks = {self._look_at_doors: DOORS_S, self._look_at_memory: _MEMORY_S}
        databases = [config.state_dir / CATALOG, file_of_registry(config.registry, config.state_dir)]
        looks[Checkpoints([path for path in databases if path is not None]).look] = _CHECKPOINT_S
        if config.tenants is not None:
            self._tenants_file = FollowedFiles(str(config.tenants), [config.tenants], self._read_tenants)
            looks[self._look_at_tenants] = LOOK_S
        sharing = config.state_dir / sharing_record.NAME
        self._sharing = FollowedFiles(str(sharing), [sharing], self._read_sharing)
        looks[self._look_at_sharing] = LOOK_S
        self._watch = Watch(looks)
        self._misses_doors = False

    def start(self) -> None:
        """Lock the folders, adopt what is there, open the doors. Raises ConfigError; nothing is left half open."""
        config = self.config
        self.ending = Shutdown()
        with contextlib.ExitStack() as undo:
            undo.callback(self.ending.close)
            self._locks = [FolderLock(config.runtime_dir, "the runtime folder")]
            undo.callback(self._locks[0].release)
            self._open_runtime_dir()
            self._locks.append(FolderLock(config.state_dir, "the state folder"))
            undo.callback(self._locks[1].release)
            sweep_scratch()
            self._build(undo)
            undo.callback(self.store.stop)
            self.store.start()
            undo.pop_all()
        leases = self.store.device_leases
        for gpu in self.gpus:
            gpu.watch(
                lost=lambda place: self.attach.run(lambda: leases.lost(place)),
                back=lambda place: self.attach.run(lambda: leases.back(place)),
            )
        self.attach.start()
        self.control.start()
        self._watch.start()
        log.info("serving at %s with %d bytes of cpu capacity", config.runtime_dir, config.cpu_capacity_bytes)

    def _open_runtime_dir(self) -> None:
        # Others may pass through to the attach socket if it is open to them; the control socket never is.
        self.config.runtime_dir.chmod(0o711 if self.config.socket_mode & 0o077 else 0o700)

    def _build(self, undo: contextlib.ExitStack) -> None:
        config = self.config
        self.budget = budget(config.max_sessions)
        self.tenants = read_tenants(config.tenants)
        if not config.socket_mode & 0o066 and any(tenant.users for tenant in self.tenants.by_name.values()):
            log.warning("tenants list users, and socket_mode %o lets in this user only", config.socket_mode)
        self.registry = open_registry(config.registry, config.state_dir)
        undo.callback(self.registry.close)
        self.catalog = Catalog(config.state_dir / CATALOG)
        undo.callback(self.catalog.close)
        restore_rows(self.registry, self.catalog)
        self.endpoint = endpoint_of(config)
        self.sources = Sources(config, self.catalog)
        undo.callback(self.sources.close)
        tiers, policies, gpu_off = self._open_tiers(undo)
        self.store = self._build_store(tiers, policies)
        self.sources.remote.downloads.connect(self.store.reads_below)
        self._make_doors(gpu_off)

    def _open_tiers(self, undo: contextlib.ExitStack) -> tuple[list[Tier], dict[Place, Policy], str]:
        """Return the tiers, a policy for each, and why there is no GPU tier."""
        config = self.config
        tiers: list[Tier] = []
        for opened in (cpu_tier, disk_tier):
            tiers.append(opened(config))
            undo.callback(tiers[-1].close)
        tiers += [FileTier(), self.sources.tier]
        policies: dict[Place, Policy] = {
            CPU: load_policy(config.cpu_policy),
            DISK: load_policy(config.disk_policy),
            FILE: LeastRecentlyUsed(),
            CLOUD: LeastRecentlyUsed(),
        }
        self.gpus, gpu_off = gpu_tiers(config)
        for gpu in self.gpus:
            undo.callback(gpu.close)
            tiers.append(gpu)
            policies[gpu.place] = load_policy(config.gpu_policy)
        return tiers, policies, gpu_off

    def _build_store(self, tiers: list[Tier], policies: dict[Place, Policy]) -> Store:
        config = self.config
        limits = Limits(memory_bytes=config.converter_memory_bytes, time_s=config.converter_time_s)
        resolver = Resolver(
            self.registry,
            self.catalog,
            InterpreterSelection(config.environments, EnvironmentStore(config.environments_dir)),
            config.state_dir / "artifacts",
            limits,
            always_hash=config.always_hash,
            in_place=config.trust == "identity",
            real_devices=bool(self.gpus) and config.cuda == "driver",
            remote=self.sources.remote,
        )
        settings = StoreSettings(
            keep_alive_s=config.keep_alive_s,
            verify=config.verify,
            workers=config.workers,
            converters=config.converters,
            max_images=self.budget.images,
            behind_bytes_per_s=config.behind_bytes_per_s or None,
        )
        return build_store(
            tiers,
            policies,
            resolver,
            self.catalog,
            limits=limits,
            settings=settings,
            quotas=self.tenants.quotas(),
        )

    def _make_doors(self, gpu_off: str) -> None:
        config = self.config
        self.attach = AttachDoor(
            self.store,
            config.runtime_dir / ATTACH_SOCKET,
            budget=self.budget,
            tenants=self.tenants,
            mode=config.socket_mode,
            boot=self.boot,
            on_death=self._door_died,
            template_bytes=config.template_capacity_bytes,
            loaders=config.loaders,
        )
        self.control = ControlDoor(
            self.store,
            self.registry,
            self.attach,
            config.runtime_dir / CONTROL_SOCKET,
            devices=Devices(self.gpus, config.cuda, gpu_off),
            budget=self.budget,
            endpoint=self.endpoint,
            boot=self.boot,
            version=trims.__version__,
            state_dir=config.state_dir,
            on_shutdown=self.ask_to_end,
            transfers=Transfers(self.store, self.registry, self.sources),
            waits_for=lambda: self.waits_for,
            ping_s=config.grpc_ping_s,
        )

    def ask_to_end(self, purge: bool = False) -> None:
        """Make `wait` return. Safe from any thread."""
        self._purge = self._purge or purge
        self._announce_end()
        self.ending.ask()

    def _announce_end(self) -> None:
        """Announce at the doors and in the locked folders that the daemon is ending. Idempotent."""
        with self._announcing:
            if not self.waits_for:
                self.waits_for = "requests that run at the endpoint" if self.endpoint.where() else "its doors to close"
                for lock in self._locks:
                    lock.announce_end()

    def _look_at_memory(self) -> None:
        """Have idle images leave while a control group is about to be full: by its processes, or by a lower limit."""
        missing = missing_bytes()
        if missing:
            if not self._lacks_memory:
                log.warning(
                    "memory is almost full, idle images leave: %s missing; %s", format_bytes(missing), group_limit()
                )
            self.store.give_way(missing)
        self._lacks_memory = bool(missing)

    def _read_tenants(self) -> Callable[[], None]:
        found = read_tenants(self.config.tenants)
        return lambda: self.attach.run(lambda: self.attach.renew_tenants(found))

    def _look_at_tenants(self) -> None:
        """Take over the tenants file if it has changed."""
        take = self._tenants_file.look()
        if take is not None:
            take()

    def _read_sharing(self) -> Callable[[], None]:
        found = sharing_record.share_from(self.config.state_dir)
        return lambda: self.attach.run(lambda: self.attach.renew_share_from(found))

    def _look_at_sharing(self) -> None:
        """Take over what was measured of sharing if it has changed."""
        take = self._sharing.look()
        if take is not None:
            take()

    def _look_at_doors(self) -> None:
        """Have clients find the doors again if a program has removed them, such as one that removes old files."""
        for lock in self._locks:
            ours = lock.renew()
            if not ours and not self._misses_doors:
                log.error("%s was removed, and another daemon has it now: new clients find only that one", lock.folder)
            if not ours:
                self._misses_doors = True
                return
        self._misses_doors = False
        self._open_runtime_dir()
        lost = self.attach.publish_again() + self.control.publish_again()
        if lost:
            log.warning("removed by another program, and made again: %s", ", ".join(lost))

    def _hasten(self) -> None:
        log.warning("asked once more: requests that run are failed now")
        self.endpoint.hasten()

    def _door_died(self, error: BaseException) -> None:
        self.died = error
        self.ask_to_end()

    def wait(self) -> None:
        """Sleep until the daemon is asked to end."""
        self.ending.wait()

    def stop(self) -> None:
        """Close the doors, end the store, let go of the folders."""
        self.ended = True
        self._announce_end()
        self.ending.on_haste(self._hasten)
        log.info("ending, once %s are done; Ctrl-C or SIGTERM once more fails them", self.waits_for)
        self.endpoint.stop()  # before the doors: requests that run may still need them
        self.waits_for = "its memory to be left in order"
        self._watch.stop()
        self.attach.stop()
        for gpu in self.gpus:
            gpu.unwatch()
        self.sources.close()  # first: what is fetched is kept, and workers wait for it
        self.store.stop(purge=self._purge)
        for gpu in self.gpus if self._purge else ():
            gpu.end_keeper()
        if self._purge:
            _remove_segments(self.config, "the daemon was asked to free its memory")
        self.control.stop()
        self.registry.close()
        self.catalog.close()
        for lock in self._locks:
            lock.release()
        self.ending.close()
        log.info("ended")


def shm_prefix(state_dir: Path) -> str:
    """Return the prefix of this daemon's segment names: daemons differ in their state folder, so in this."""
    place = hashlib.sha256(f"{os.geteuid()}:{state_dir.resolve()}".encode()).hexdigest()[:12]
    return f"trims-{place}"


def segment_driver(config: Config) -> SegmentDriver:
    """Return the driver of this daemon's shared memory. Raises ConfigError if it cannot be made where it should lie."""
    prefix = shm_prefix(config.state_dir)
    named = PosixShm(prefix, config.segment_dir)
    if config.cpu_memory == "shm":
        check_folder(config.segment_dir)
        return named
    for name in named.names():
        log.warning("segment %s is removed: cpu_memory is %s now, no client would ever use it", name, config.cpu_memory)
        named.remove(name)
    return SealedMemfd(prefix)


def cpu_tier(config: Config) -> Tier:
    """Return the tier of shared memory. Raises ConfigError."""
    return CpuTier(segment_driver(config), config.cpu_capacity_bytes, large_pages=config.large_pages)


def disk_tier(config: Config) -> Tier:
    """Return the tier of the folder `images`. Raises ConfigError."""
    return DiskTier(config.state_dir / "images", config.disk_capacity_bytes)


def _remove_segments(config: Config, why: str) -> None:
    """Remove all segments with this daemon's prefix, also those beyond the store's limit of files."""
    named = PosixShm(shm_prefix(config.state_dir), config.segment_dir)
    for name in list(named.names()):
        log.info("segment %s is removed: %s", name, why)
        named.remove(name)


def load_policy(name: str) -> Policy:
    """Return an instance of the named policy. Raises ConfigError naming all there are, or the plugin that is none."""
    found = {entry.name: entry for entry in importlib.metadata.entry_points(group="trims.policies")}
    if name not in found:
        raise ConfigError(f"there is no eviction policy {name!r}; known are {', '.join(sorted(found))}")
    policy = found[name].load()()
    if not isinstance(policy, Policy):
        raise ConfigError(f"the plugin {found[name].value} is not an eviction policy: see trims.core.policy.Policy")
    return policy


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end a program in order, also a closed terminal's, unless `nohup` has it ignored."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hang_up]


def _record(config: Config) -> None:
    """Record traces below the state folder, here and in processes that are started from here."""
    folder = config.state_dir / "trace"
    os.environ[spans.FOLDER_VARIABLE] = str(folder)
    os.environ[spans.LEVEL_VARIABLE] = config.trace_level.name.lower()
    os.environ[spans.ALL_VARIABLE] = str(int(config.trace))
    prune(folder, MOST_BYTES)
    spans.configure(folder, "daemon", level=config.trace_level, everything=config.trace)


def serve(config: Config) -> None:
    """Run a daemon in this process until a signal or Shutdown ends it."""
    configure(config.log_level, config.log_format)
    require(OF_DAEMON)
    for sentence in unknown_variables():
        log.warning("%s", sentence)
    hand_down(config.log_level, config.log_format)
    _record(config)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    raise_limit()
    return_large_buffers()
    manager = Notifier.from_environment()
    daemon = Daemon(config)
    daemon.start()
    # Not before: a plug-in that hangs while it opens can be interrupted.
    daemon.ending.on_signals(*ending_signals())
    load_all()
    gc.collect()
    gc.freeze()  # what is there now stays: no collection, and so no open that falls into one, walks it again
    daemon.endpoint.start()
    manager.ready(f"serving at {config.runtime_dir}; endpoint: {daemon.endpoint.off() or daemon.endpoint.where()}")
    daemon.wait()
    manager.stopping("ending once requests that run are done")
    daemon.stop()
    spans.stop()
    if daemon.died is not None:
        sys.exit(f"trims: the attach door died: {type(daemon.died).__name__}: {daemon.died}")
