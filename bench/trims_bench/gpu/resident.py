"""Figures (a), (b), (d) and (f): what a model costs that lies on the device, or in shared memory beside it.

All through a real daemon and keeper; clients need no framework, so that everything here runs on the fake as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from trims.core.units import align_up
from trims.keeper.client import KeeperConnection
from trims.keeper.launch import find_keeper
from trims.memory.cuda.connect import connect, connect_borrower
from trims.memory.cuda.drivers import borrowed_memory, device_memory
from trims.memory.shm import SHM_FOLDER
from trims.testing.device_borrower import Borrower
from trims_bench.checkpoints import write_checkpoint
from trims_bench.child import call, started
from trims_bench.daemon import DaemonProcess
from trims_bench.gpu.lines import Line, not_taken, taken
from trims_bench.measuring import Bar, Comparison, Samples, faster, measure, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_bench.gpu.rig import Rig

_FEW, _MANY = 30, 1346
_PLACE = "gpu:0"
_POLL_S = 0.01
_REST_S = 30.0
_END_S = 20.0
_BLOCK_BYTES = 2 << 20
_SPARE_BYTES = 64 << 20
_END_BYTES = 4096
#: Bytes that a driver may keep of a process that had a context: its own, not trims's.
_LEFT_BYTES = 32 << 20


@contextlib.contextmanager
def gpu_daemon(rig: Rig, state_dir: Path, cpu_bytes: int, driver: str = "auto") -> Iterator[DaemonProcess]:
    """A daemon with a tier on the device under examination, and so much room in shared memory.

    After the block its keeper has ended, too: nothing of it is counted by the next measurement.
    """
    held = os.statvfs(SHM_FOLDER)
    fits = held.f_bavail * held.f_frsize > cpu_bytes + _SPARE_BYTES
    daemon = DaemonProcess(
        state_dir,
        gpus=rig.device.uuid,
        cuda=rig.kind,
        gpu_driver=driver,
        gpu_reserve_bytes=min(1 << 30, rig.device.total_bytes // 16),
        cpu_capacity_bytes=cpu_bytes + _SPARE_BYTES,
        converter_memory_bytes=64 << 30,
        cpu_memory="shm" if fits else "memfd",  # containers often have a /dev/shm of 64 MiB
    )
    pid = 0
    try:
        with daemon:
            with KeeperConnection(daemon.runtime_dir / f"{rig.device.uuid}.sock") as keeper:
                pid = keeper.hello().pid
            yield daemon
    finally:
        await_end(pid)


def await_end(pid: int) -> None:
    """Wait until a process that is not a child of this one is gone; 0 is none."""
    with contextlib.suppress(ProcessLookupError):
        fd = os.pidfd_open(pid) if pid else os.open(os.devnull, os.O_RDONLY)
        try:
            select.select([fd], [], [], _END_S)
        finally:
            os.close(fd)


def evict(runtime_dir: str, name: str, *places: str) -> None:
    """Free a model at places; returns when it is gone from them."""
    from trims.control import admin

    with admin(runtime_dir) as daemon:
        for place in places:
            daemon.evict(name, place, drain=True)
        while {replica.place for replica in daemon.show(name).replicas} & set(places):
            time.sleep(_POLL_S)


def model(folder: Path, name: str, nbytes: int, tensors: int = _FEW) -> dict[str, Any]:
    """A manifest of a checkpoint, which is written."""
    path = write_checkpoint(folder / f"{name}.safetensors", nbytes, tensors=tensors, label=name)
    return {"name": name, "artifact": {"path": str(path)}}


# -- (a) -----------------------------------------------------------------------------------------------------------


def open_resident(rig: Rig) -> Iterator[Line]:
    """Opening a model that lies on the device, by each way to share it."""
    sizes = rig.sizes
    with rig.scratch() as folder:
        models = [
            model(folder, "few", sizes.small_bytes, _FEW),
            model(folder, "many", sizes.small_bytes, _MANY),
            model(folder, "large", sizes.large_bytes, _FEW),
        ]
        for driver in ("vmm", "ipc"):
            if driver not in rig.drivers():
                yield not_taken(f"{driver}: all", None, f"{rig.device.name} has no {driver}")
                continue
            room = 2 * sizes.small_bytes + sizes.large_bytes
            with gpu_daemon(rig, folder / driver, 2 * room, driver) as daemon:
                for each in models:
                    daemon.load(daemon.register(each), place=_PLACE)
                yield from _opens(rig, daemon, driver)


def _opens(rig: Rig, daemon: DaemonProcess, driver: str) -> list[Line]:
    given = {"runtime_dir": str(daemon.runtime_dir), "kind": rig.kind, "uuid": rig.device.uuid}
    first = [call(measure_first_open, {**given, "name": "few"}) for _ in range(rig.sizes.processes)]
    again = call(measure_opens, {**given, "count": rig.sizes.opens})
    few, many, large = (Samples(name, again[name]) for name in ("few", "many", "large"))
    split = call(measure_split, {**given, "driver": driver, "count": rig.sizes.opens})
    by_size = Bar("<=", 1.5) if driver == "vmm" else None  # legacy handles open the slower the larger, by design
    return [
        _milliseconds(f"{driver}: first open in a process that has a context, p50", Samples("first", first), 1.5),
        _milliseconds(f"{driver}: again, after it was closed, p50", few, 0.3),
        _milliseconds(f"{driver}: again, while it is open, p50", Samples("beside", again["beside"]), 0.3),
        taken(share(f"{driver}: {_MANY} layers / {_FEW} layers", many, few, Bar("<=", 1.2))),
        taken(share(f"{driver}: large / small ({rig.sizes.large_bytes} / {rig.sizes.small_bytes} bytes)", large, few,
                    by_size)),
        taken(_split(driver, split)),
    ]  # fmt: skip


def _split(driver: str, found: dict[str, list[int]]) -> Comparison:
    """An open in parts. Its value is what trims takes over the same driver calls from a bare interpreter."""
    sides = tuple(Samples(name, times) for name, times in found.items())
    by_name = {side.of: side for side in sides}
    own_ms = (by_name["open"].median - by_name["bare"].median) / 1e6
    return Comparison(f"{driver}: an open less its driver calls from a bare interpreter", own_ms, "ms", None, sides)


def _milliseconds(what: str, side: Samples, limit_ms: float) -> Line:
    return taken(Comparison(what, side.median / 1e6, "ms", Bar("<=", limit_ms), (side,)))


def measure_first_open(runtime_dir: str, kind: str, uuid: str, name: str) -> int:
    """Return nanoseconds to open a model in a fresh process that has a context and a session."""
    import trims

    connect_borrower(kind).retain(uuid)
    with trims.connect(runtime_dir) as session:
        began = time.perf_counter_ns()
        weights = session.open(name, place=_PLACE)
        ended = time.perf_counter_ns()
        weights.close()
    return ended - began


def measure_opens(runtime_dir: str, kind: str, uuid: str, count: int) -> dict[str, list[int]]:
    """Return nanoseconds to open each model after it was closed, and one that is open already, in one process."""
    import trims

    connect_borrower(kind).retain(uuid)
    with trims.connect(runtime_dir) as session:
        ways: dict[str, Callable[[], Any]] = {
            name: partial(session.open, name, place=_PLACE) for name in ("few", "many", "large")
        }
        found = measure(ways, count, keep=lambda _, weights: weights.close())
        with session.open("few", place=_PLACE):
            beside = measure({"beside": ways["few"]}, count, keep=lambda _, weights: weights.close())
    return {**found, **beside}


def measure_split(runtime_dir: str, kind: str, uuid: str, driver: str, count: int) -> dict[str, list[int]]:
    """Return nanoseconds of opens, of each driver call in them, and of these calls without a session; one process."""
    import trims

    cuda = connect_borrower(kind)
    memory = borrowed_memory(driver, cuda, cuda.retain(uuid))
    found: dict[str, list[int]] = {"open": [], "bare": []}
    with trims.connect(runtime_dir) as session:
        for _ in range(count):
            with _driver_calls(cuda, found):
                began = time.perf_counter_ns()
                weights = session.open("few", place=_PLACE)
                found["open"].append(time.perf_counter_ns() - began)
            weights.close()
    with KeeperConnection(Path(runtime_dir, f"{uuid}.sock")) as keeper, tempfile.TemporaryDirectory() as folder:
        number, _ = _put(keeper, _BLOCK_BYTES, Path(folder))
        for _ in range(count):
            exported, head_fd = keeper.export(number)
            os.close(head_fd)
            with cuda.bound():
                began = time.perf_counter_ns()
                opened = memory.open(exported)
                found["bare"].append(time.perf_counter_ns() - began)
                exported.close()
                memory.close(opened)
        keeper.free(number)
    cuda.leave()
    return found


@contextlib.contextmanager
def _driver_calls(cuda: Any, found: dict[str, list[int]]) -> Iterator[None]:
    """Within the block, time the calls that open memory: import, reserve, map and access apart on a real driver."""
    real = cuda.kind == "driver"
    owner: Any = type(cuda)
    names = ("_call",) if real else ("vmm_import", "vmm_map", "ipc_open")
    before = {name: getattr(owner, name) for name in names}

    def timed(name: str) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return before[name](*given, **named)
            finally:
                which = str(given[1]) if real else name
                found.setdefault(which, []).append(time.perf_counter_ns() - began)

        return ask

    for name in names:
        setattr(owner, name, timed(name))
    try:
        yield
    finally:
        for name, was in before.items():
            setattr(owner, name, was)


# -- (b) -----------------------------------------------------------------------------------------------------------


def host_to_device_rate(rig: Rig) -> list[Line]:
    """A model in shared memory to the device: through the keeper alone, through the daemon, by a pinned copy."""
    with rig.scratch() as folder, gpu_daemon(rig, folder / "state", 2 * rig.sizes.copy_bytes) as daemon:
        name = daemon.add(model(folder, "copied", rig.sizes.copy_bytes))
        nbytes = daemon.load(name, place="cpu").nbytes
        given = {
            "runtime_dir": str(daemon.runtime_dir), "kind": rig.kind, "uuid": rig.device.uuid, "name": name,
            "nbytes": nbytes, "segment": daemon.location(name), "image": daemon.location(name, "disk"),
            "driver": rig.drivers()[0], "count": rig.sizes.loads,
        }  # fmt: skip
        found = call(measure_copies, given)
    pinned = Samples("pinned copy", found["pinned"])
    lines = [taken(faster("keeper's rate / pinned copy's", Samples("keeper", found["keeper"]), pinned, Bar(">=", 0.9)))]
    if "daemon" in found:
        lines.append(taken(faster("daemon's rate / pinned copy's", Samples("daemon", found["daemon"]), pinned, None)))
    return lines


def measure_copies(
    *, runtime_dir: str, kind: str, uuid: str, name: str, nbytes: int, segment: str, image: str, driver: str, count: int
) -> dict[str, list[int]]:
    """Return nanoseconds for the bytes of an image by each way, in turns and in one process."""
    import trims

    cuda = connect(kind)
    memory = device_memory(driver, cuda, cuda.use(uuid))
    made = memory.allocate(nbytes)
    target = memory.reach(made, writable=True)
    stream, pinned = cuda.stream(), cuda.host_allocate(nbytes)

    def plain() -> None:
        cuda.copy_in(target.address, pinned, nbytes, stream)
        cuda.synchronize(stream)

    with KeeperConnection(Path(runtime_dir, f"{uuid}.sock")) as keeper, _opened(segment, image) as fd:
        draft = keeper.create(nbytes)
        ways: dict[str, Callable[[], Any]] = {"keeper": partial(keeper.fill, draft, fd), "pinned": plain}
        with trims.connect(runtime_dir) as session:
            if driver == "vmm":  # with ipc the replica stays until this process ends
                ways["daemon"] = partial(session.open, name, place=_PLACE)

            def keep(way: str, weights: Any) -> None:
                if way == "daemon":
                    weights.close()
                    session.open(name, place="cpu").close()  # given-up weights are reported with the next request
                    evict(runtime_dir, name, _PLACE)

            # The keeper tries each of its ways once before it chooses.
            found = measure(ways, count, warm_up=2, keep=keep)
        keeper.free(draft)
    cuda.host_free(pinned)
    cuda.end_stream(stream)
    memory.close(target)
    memory.free(made)
    cuda.leave()
    return found


@contextlib.contextmanager
def _opened(segment: str, image: str) -> Iterator[int]:
    """The segment if it has a name, else a copy of the image in memory of the same kind."""
    if (SHM_FOLDER / segment).exists():
        fd = os.open(SHM_FOLDER / segment, os.O_RDONLY | os.O_CLOEXEC)
    else:
        fd = os.memfd_create("trims-gpu-check")
        with open(image, "rb") as file:
            while os.sendfile(fd, file.fileno(), None, 1 << 30):
                pass
    try:
        yield fd
    finally:
        os.close(fd)


# -- (d) -----------------------------------------------------------------------------------------------------------


def predictors_share(rig: Rig) -> list[Line]:
    """Memory of the device for the weights of one model that many processes have open, their contexts apart."""
    count, nbytes = rig.sizes.predictors, rig.sizes.predictor_bytes
    with rig.scratch() as folder, gpu_daemon(rig, folder / "state", 2 * nbytes) as daemon:
        daemon.load(daemon.register(model(folder, "tiny", 1 << 16)), place=_PLACE)
        before = rig.free_bytes()
        daemon.load(daemon.register(model(folder, "shared", nbytes)), place=_PLACE)
        one_copy = before - rig.free_bytes()
        contexts, opened = (
            _steadily(rig, daemon, partial(_taken_by, rig, daemon, name, count)) for name in ("tiny", "shared")
        )
    weights = Samples("one copy + what it takes to open it", [one_copy + max(0, opened - contexts)], "bytes")
    copy = Samples("one copy", [one_copy], "bytes")
    each = Samples("context", [contexts // count], "bytes")
    return [
        taken(share(f"{count} processes, {nbytes} bytes: weights / one copy", weights, copy, Bar("<=", 1.05))),
        taken(Comparison("context of a process", each.median, "bytes", None, (each,))),
    ]


def _steadily(rig: Rig, daemon: DaemonProcess, measure: Callable[[], int]) -> int:
    """Again if the keeper has taken or given back its context meanwhile, which would be counted."""
    with KeeperConnection(daemon.runtime_dir / f"{rig.device.uuid}.sock") as keeper:
        while True:
            before, found = keeper.hello().awake, measure()
            if keeper.hello().awake == before:
                return found


def _taken_by(rig: Rig, daemon: DaemonProcess, name: str, count: int) -> int:
    """Bytes of the device that so many processes take which have a model open."""
    before = rig.free_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(started(hold, {"runtime_dir": str(daemon.runtime_dir), "name": name})).result()
        return before - rig.free_bytes()


def hold(runtime_dir: str, name: str) -> Iterator[str]:
    """Yield once a model is open, and once it is closed."""
    import trims

    with trims.connect(runtime_dir) as session, session.open(name, place=_PLACE):
        yield "open"
    yield "closed"


# -- (f) -----------------------------------------------------------------------------------------------------------


def keeper_itself(rig: Rig) -> list[Line]:
    """Memory of the device that a keeper takes beyond weights: idle, at work, and at rest with an image."""
    nbytes = _BLOCK_BYTES
    before = rig.free_bytes()
    with _keeper(rig) as (keeper, folder):
        driver = keeper.hello().driver
        idle = before - rig.free_bytes()
        number, content = _put(keeper, nbytes, folder)
        awake = before - rig.free_bytes() - nbytes
        _await_rest(keeper)
        resting = before - rig.free_bytes() - nbytes
        intact = _is_intact_across_rest(rig, keeper, number, content)
    bar = Bar("<=", float(_LEFT_BYTES))
    lines = [_bytes("without weights", idle, bar), _bytes("with its context, at work", awake, None)]
    sides = (Samples("intact", [int(intact)], "of 1"),)
    lines.append(taken(Comparison("bytes_intact_across_rest", float(intact), "of 1", Bar(">=", 1.0), sides)))
    if driver == "vmm":
        return [*lines, _bytes("at rest, beyond its weights", resting, bar)]
    return [*lines, not_taken("at rest, beyond its weights", bar, "ipc memory lives in the context, so it stays")]


@contextlib.contextmanager
def _keeper(rig: Rig) -> Iterator[tuple[KeeperConnection, Path]]:
    """A keeper without a daemon, and its folder; it has ended after the block, however that ends."""
    with tempfile.TemporaryDirectory(prefix="trims-run-") as made:  # short: it holds a socket
        path = find_keeper(Path(made), rig.device.uuid, cuda=rig.kind, idle_s=0.1)
        with KeeperConnection(path) as keeper:
            pid = keeper.hello().pid
            try:
                yield keeper, Path(made)
            finally:
                keeper.end()
                await_end(pid)


def _bytes(what: str, nbytes: int, bar: Bar | None) -> Line:
    return taken(Comparison(f"keeper {what}", float(nbytes), "bytes", bar, (Samples(what, [nbytes], "bytes"),)))


def _is_intact_across_rest(rig: Rig, keeper: KeeperConnection, number: int, content: bytes) -> bool:
    """Check the bytes after a rest: by the keeper, and by a borrower that lives from before to after the next one."""
    digest = blake3.blake3(content).hexdigest()
    by_keeper = keeper.digest(number) == digest
    with Borrower(rig.kind, rig.device.uuid, keeper.hello().driver) as borrower:
        exported, head_fd = keeper.export(number)
        os.close(head_fd)
        borrower.open(exported)
        _await_rest(keeper)
        ends = (0, len(content) - _END_BYTES)
        by_borrower = all(borrower.read(at, _END_BYTES) == content[at : at + _END_BYTES] for at in ends)
        borrower.close()
    return by_keeper and by_borrower and keeper.digest(number) == digest


def _put(keeper: KeeperConnection, nbytes: int, folder: Path) -> tuple[int, bytes]:
    """A sealed image that takes so many bytes of the device: its number and what it is."""
    from trims.testing.tiers import an_image

    path = folder / "image"
    content = an_image(nbytes // 2)
    path.write_bytes(content)
    assert align_up(path.stat().st_size, _BLOCK_BYTES) == nbytes, "one block of the device"
    with path.open("rb") as file:
        number = keeper.create(path.stat().st_size)
        keeper.fill(number, file.fileno())
    keeper.seal(number, "0" * 64, "0" * 64)
    return number, content


def _await_rest(keeper: KeeperConnection) -> None:
    """Wait until a keeper without work has given its context back; a keeper that never does is found by its bytes."""
    until_s = time.monotonic() + _REST_S
    while (state := keeper.hello()).awake and state.read_only and time.monotonic() < until_s:
        time.sleep(_POLL_S)
