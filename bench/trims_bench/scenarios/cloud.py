"""Speed of addresses: a file of a server into shared memory, over TLS, a pushed image to its first tensor, resumed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.memory.shm import SHM_FOLDER
from trims_bench.child import call, environment
from trims_bench.file_servers import nginx
from trims_bench.measuring import Bar, Comparison, Figure, Samples, faster, measure, share
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable, Iterator

    from trims.tiers.base import Draft
    from trims.tiers.cpu import CpuTier
    from trims_bench.file_servers import FileServer
    from trims_bench.scenarios.base import Setup

_WIRE = "a file of 2 GB from a server to new shared memory, verified, against plain ranged reads into the same"
_TLS = "the same with TLS"
_FIRST = "a pushed image in the cloud to its first tensor, over the transfer alone"
_RESUMED = "1 GB whose fetching process is killed 20 times, and what the server sent in all"
_NAME, _BUCKET = "one.bin", "bucket"
_PART_BYTES = 64 << 20
_CONNECTIONS = 4
#: Seconds after which the bytes that an open has brought were hashed behind it: that slows neither side.
_RESTS_S = 3.0
_SHM = SHM_FOLDER


@contextmanager
def _served(setup: Setup, nbytes: int) -> Iterator[tuple[FileServer, Path]]:
    """A server over a folder in memory with one file of so many bytes; yields the folder, too."""
    with setup.scratch() as folder:
        root = _SHM / f"trims-bench-{os.getpid()}"
        (root / _BUCKET).mkdir(parents=True)
        try:
            chance, left = random.Random(3), nbytes  # noqa: S311 - the same bytes each time, no secret
            with (root / _BUCKET / _NAME).open("wb") as file:
                while left > 0:
                    left -= file.write(chance.randbytes(min(left, 64 << 20)))
            with nginx(root, folder / "nginx") as server:
                yield server, root
        finally:
            for path in sorted(root.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            root.rmdir()


# -- a file into shared memory -------------------------------------------------------------------------------------


def wire(setup: Setup) -> Figure:
    """Take turns between trims, plain ranged reads, obstore and Run:ai's streamer, each into new memory of one kind."""
    nbytes = setup.size(2 << 30, 8 << 20)
    with _served(setup, nbytes) as (server, _):
        given = {"port": server.port, "nbytes": nbytes, "count": setup.repeats(9), "tls": ""}
        found = call(transfers, given)
    bars = {"plain": Bar(">=", 0.8), "obstore": Bar(">=", 1.3), "runai": Bar(">=", 2.0)}
    return _compared("wire", _WIRE, found, nbytes, bars=bars, cpu=Bar("<=", 0.65))


def tls(setup: Setup) -> Figure:
    """Take turns between trims and plain ranged reads, both through TLS."""
    nbytes = setup.size(1 << 30, 8 << 20)
    with _served(setup, nbytes) as (server, _):
        given = {"port": server.tls_port, "nbytes": nbytes, "count": setup.repeats(9), "tls": server.certificate}
        found = call(transfers, given, env={**environment(), "SSL_CERT_FILE": server.certificate})
    return _compared("wire-tls", _TLS, found, nbytes, bars={"plain": Bar(">=", 0.9)}, cpu=None)


def _compared(
    name: str,
    title: str,
    found: dict[str, dict[str, list[int]]],
    nbytes: int,
    *,
    bars: dict[str, Bar],
    cpu: Bar | None,
) -> Figure:
    ours = Samples("trims", found["times"]["trims"])
    compared = [
        faster(f"over {rival}", ours, Samples(rival, found["times"][rival]), bar)
        for rival, bar in bars.items()
        if rival in found["times"]
    ]
    spent = Samples("trims", found["cpu"]["trims"])
    seconds = spent.median / 1e9 / (nbytes / (1 << 30))
    others = [Samples(rival, found["cpu"][rival]) for rival in bars if rival in found["cpu"]]
    compared.append(Comparison("processor time for each GiB", seconds, "s", cpu, (spent, *others)))
    speeds = {of: f"{nbytes / Samples(of, each).median:.2f} GB/s" for of, each in found["times"].items()}
    missing = [rival for rival in bars if rival not in found["times"]]
    notes = [
        (
            f"Medians: {'; '.join(f'{of} {speed}' for of, speed in speeds.items())}. The server is nginx on the same "
            f"{os.cpu_count()} processors, {_CONNECTIONS} connections, 64 MiB a request; memory is new each time."
        ),
        (
            "trims: through its process for transfers, with a look at the address, CRC64NVME of each piece and of the "
            "whole. The others check nothing."
        ),
    ]
    return Figure(name, title, compared, notes + [f"{each} is not installed here." for each in missing])


def transfers(port: int, nbytes: int, count: int, tls: str) -> dict[str, dict[str, list[int]]]:
    """Nanoseconds, and nanoseconds of processor time, of each way."""
    from trims.memory.shm import SHM_FOLDER, PosixShm
    from trims.sources.process.fetcher import Fetcher, FetchSettings
    from trims.tiers.cpu import CpuTier

    scheme = "https" if tls else "http"
    url = f"{scheme}://127.0.0.1:{port}/{_BUCKET}/{_NAME}"
    tier = CpuTier(PosixShm(f"trims-bench-{os.getpid()}", SHM_FOLDER), 4 * nbytes, large_pages=True)
    fetcher = Fetcher(FetchSettings("/nonexistent", each=_CONNECTIONS))
    fetcher.do("look", {"address": url, "named": True})

    def ours() -> None:
        with _draft(tier, nbytes, allocate=False) as draft:
            order = {"address": url, "named": True, "nbytes": nbytes, "checksums": {},
                     "large_pages": draft.pages is not None}  # fmt: skip
            fetcher.do("image", order, fds=[draft.fd])

    ways: dict[str, Callable[[], None]] = {"trims": ours}
    for name, way in (("plain", _plain), ("obstore", _obstore), ("runai", _runai)):
        made = way(port, nbytes, tls)
        if made is not None:
            ways[name] = _into_new_memory(tier, nbytes, made)
    spent: dict[str, list[int]] = {name: [] for name in ways}

    def timed(name: str, way: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            began = _cpu_ns(fetcher.pid)
            way()
            spent[name].append(_cpu_ns(fetcher.pid) - began)

        return run

    try:
        times = measure({name: timed(name, way) for name, way in ways.items()}, count)
    finally:
        fetcher.close()
        tier.close()
    return {"times": times, "cpu": {name: each[-count:] for name, each in spent.items()}}


def _cpu_ns(pid: int | None) -> int:
    """Processor time of this process and of one other."""
    other = 0 if pid is None else time.clock_gettime_ns((~pid << 3) | 2)
    return time.process_time_ns() + other


@contextmanager
def _draft(tier: CpuTier, nbytes: int, *, allocate: bool) -> Iterator[Draft]:
    draft = tier.create("c" * 64, time.monotonic_ns() % 1_000_000_007, nbytes, allocate=allocate)
    try:
        yield draft
    finally:
        tier.abort(draft)


def _into_new_memory(tier: CpuTier, nbytes: int, way: Callable[[memoryview], None]) -> Callable[[], None]:
    from trims.memory.mapping import FileMapping

    def run() -> None:
        with _draft(tier, nbytes, allocate=True) as draft:
            mapping = FileMapping(draft.fd, nbytes, write=True, align=True)
            with mapping.view() as view:
                way(view)
            mapping.close()

    return run


def _each_part(nbytes: int, connections: int, read: Callable[[Iterator[int]], None]) -> None:
    begins, lock = iter(range(0, nbytes, _PART_BYTES)), threading.Lock()

    def mine() -> Iterator[int]:
        while True:
            with lock:
                begin = next(begins, None)
            if begin is None:
                return
            yield begin

    threads = [threading.Thread(target=read, args=(mine(),)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _plain(port: int, nbytes: int, tls: str, name: str = _NAME) -> Callable[[memoryview], None]:
    """Ranged requests of the standard library, each read into place."""
    import http.client
    import ssl

    def connect() -> http.client.HTTPConnection:
        if tls:
            return http.client.HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cafile=tls))
        return http.client.HTTPConnection("127.0.0.1", port)

    def way(room: memoryview) -> None:
        def read(begins: Iterator[int]) -> None:
            connection = connect()
            for begin in begins:
                end = min(begin + _PART_BYTES, nbytes)
                connection.request("GET", f"/{_BUCKET}/{name}", headers={"Range": f"bytes={begin}-{end - 1}"})
                _read_into(connection.getresponse(), room[begin:end])
            connection.close()

        _each_part(nbytes, _CONNECTIONS, read)

    return way


def _read_into(response: http.client.HTTPResponse, room: memoryview) -> None:
    done = 0
    while done < len(room):
        done += response.readinto(room[done:])
    response.read()


def _obstore(port: int, nbytes: int, tls: str) -> Callable[[memoryview], None] | None:
    """Ranges of obstore, copied into place: it hands out memory of its own."""
    if tls:
        return None
    import obstore

    store: Any = obstore.store.HTTPStore(f"http://127.0.0.1:{port}/{_BUCKET}", client_options={"allow_http": True})
    part = 16 << 20

    def way(room: memoryview) -> None:
        begins, lock = iter(range(0, nbytes, part)), threading.Lock()

        def read() -> None:
            while True:
                with lock:
                    begin = next(begins, None)
                if begin is None:
                    return
                end = min(begin + part, nbytes)
                room[begin:end] = memoryview(obstore.get_range(store, _NAME, start=begin, end=end))

        threads = [threading.Thread(target=read) for _ in range(_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return way


def _runai(port: int, nbytes: int, tls: str) -> Callable[[memoryview], None] | None:
    """Ranges of Run:ai's streamer, which reads buckets only: the server is one that asks for no signature."""
    if tls:
        return None
    os.environ |= {
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0", "RUNAI_STREAMER_CONCURRENCY": "8",
        "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    try:
        from runai_model_streamer.libstreamer import libstreamer as streamer
        from runai_model_streamer.s3_utils.s3_utils import S3Credentials
    except ImportError:
        return None
    import ctypes

    keys = S3Credentials("none", "none", None, "us-east-1", f"http://127.0.0.1:{port}")

    def way(room: memoryview) -> None:
        whole = (ctypes.c_char * nbytes).from_buffer(room)
        address = ctypes.addressof(whole)
        begins = list(range(0, nbytes, _PART_BYTES))
        sizes = [min(_PART_BYTES, nbytes - begin) for begin in begins]
        handle = streamer.runai_start()
        try:
            streamer.runai_set_credentials(handle, keys)
            path = f"s3://{_BUCKET}/{_NAME}"
            streamer.runai_request(handle, [path], [len(begins)], begins, sizes, [address + each for each in begins])
            for _ in begins:
                streamer.runai_response(handle)
        finally:
            streamer.runai_end(handle)
            del whole

    return way


# -- a pushed image ------------------------------------------------------------------------------------------------


def first(setup: Setup) -> Figure:
    """Open an image in the cloud that is nowhere else, in turns with the transfer of its bytes alone."""
    from trims.sources.descriptor import ImageDescription
    from trims_bench.checkpoints import write_checkpoint

    with _served(setup, 1) as (server, root), setup.scratch() as folder:
        path = write_checkpoint(folder / "model.safetensors", setup.size(2 << 30, 1 << 22), tensors=64)
        with setup.daemon(folder / "state", cpu_capacity_bytes="8GiB") as daemon:
            daemon.load(daemon.add({"name": "pushed", "artifact": {"path": str(path)}}))
            key, location = daemon.describe("pushed").key, daemon.location("pushed", "disk")
            digest = next(each.digest for each in daemon.describe("pushed").replicas if each.place == "disk")
        image = root / _BUCKET / f"{key[:16]}.{digest}.safetensors"
        with open(location, "rb") as source, image.open("wb") as target:
            shutil.copyfileobj(source, target, 16 << 20)
        nbytes = image.stat().st_size
        described = ImageDescription(
            "pushed", key, digest, nbytes, {"crc64nvme": call(crc_of, {"path": str(image)})}, image.name,
            "safetensors", {},
        )  # fmt: skip
        (root / _BUCKET / "trims.json").write_bytes(described.written())
        url = f"http://127.0.0.1:{server.port}/{_BUCKET}"
        with setup.daemon(folder / "other", cpu_capacity_bytes="8GiB") as daemon:
            daemon.register({"name": "pushed", "artifact": {"uri": url}, "residency": {"persist": "never"}})
            given = {"runtime_dir": str(daemon.runtime_dir), "port": server.port, "name": image.name,
                     "nbytes": nbytes, "count": setup.repeats(9)}  # fmt: skip
            found = call(opens, given)
    opened, alone = Samples("open to the first tensor", found["open"]), Samples("transfer alone", found["transfer"])
    notes = ["The transfer alone: plain ranged reads into equally new shared memory, which check nothing."]
    return Figure("first-tensor", _FIRST, [share("first tensor", opened, alone, Bar("<=", 1.15))], notes)


def crc_of(path: str) -> str:
    """CRC64NVME of a file, in hex."""
    from awscrt.checksums import crc64nvme

    return f"{crc64nvme(Path(path).read_bytes()):016x}"


def opens(runtime_dir: str, port: int, name: str, nbytes: int, count: int) -> dict[str, list[int]]:
    """Nanoseconds from the open to a sum of the first tensor, and of the transfer alone."""
    import numpy as np

    import trims
    from trims.memory.shm import SHM_FOLDER, PosixShm
    from trims.tiers.cpu import CpuTier

    tier = CpuTier(PosixShm(f"trims-bench-{os.getpid()}", SHM_FOLDER), 4 * nbytes, large_pages=True)
    plain = _plain(port, nbytes, "", name)
    with trims.admin(runtime_dir) as daemon, trims.connect(runtime_dir) as session:

        def open_it() -> Any:
            with session.open("pushed") as weights:
                return float(np.asarray(weights[next(iter(weights))]).reshape(-1)[:1024].sum())

        ways = {"open": open_it, "transfer": _into_new_memory(tier, nbytes, plain)}
        return measure(ways, count, keep=lambda *_: _evicted(daemon))


def _evicted(daemon: Any) -> None:
    until_s = time.monotonic() + 60.0
    while any(each.place in ("cpu", "disk") for each in daemon.show("pushed").replicas):
        try:
            daemon.evict("pushed", None)
        except Exception:  # noqa: BLE001 - its bytes are just being checked behind the reader
            assert time.monotonic() < until_s, "the image leaves"
        time.sleep(0.05)
    time.sleep(_RESTS_S)


# -- killed again and again ----------------------------------------------------------------------------------------


def resumed(setup: Setup) -> Figure:
    """Fetch one file over a server with a limit of bandwidth, and kill the fetching process at random moments."""
    nbytes, kills = setup.size(1 << 30, 16 << 20), setup.size(20, 3)
    with _served(setup, nbytes) as (server, root), setup.scratch() as folder:
        given = {"port": server.slow_port, "nbytes": nbytes, "kills": kills, "folder": str(folder / "downloads"),
                 "served": str(root / _BUCKET / _NAME)}  # fmt: skip
        found = call(killed, given)
        sent = sum(map(int, server.sent_log.read_text().split()))
    one = Samples("sent", [sent], "bytes")
    compared = [Comparison("sent by the server, over the file's length", sent / nbytes, "x", Bar("<=", 1.1), [one])]
    notes = [
        f"Killed {found['killed']} times at random moments; the file is identical, {found['left']} partial files left.",
        "The server limits each of 4 connections to 16 MiB/s; bytes are those that it logs.",
    ]
    return Figure("resumed", _RESUMED, compared, notes)


def killed(port: int, nbytes: int, kills: int, folder: str, served: str) -> dict[str, int]:
    """Return how often the process was killed, and how many partial files were left."""
    import hashlib

    from trims.sources.process.fetcher import Fetcher, FetchSettings, Moved

    chance = random.Random(5)  # noqa: S311 - the same moments each time, no secret
    at = sorted(chance.randrange(nbytes // 50, nbytes - nbytes // 50) for _ in range(kills))
    fetcher, done = Fetcher(FetchSettings(folder)), 0

    def kill(moved: Moved) -> None:
        nonlocal done
        pid = fetcher.pid
        if done < len(at) and moved.done_bytes >= at[done] and pid is not None:
            done += 1
            os.kill(pid, signal.SIGKILL)

    url = f"http://127.0.0.1:{port}/{_BUCKET}/{_NAME}"
    answer = fetcher.do("fetch", {"address": url, "named": True}, on_moved=kill)
    fetcher.close()
    path = Path(answer["files"][0]["path"])
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(Path(served).read_bytes()).digest(), "identical"
    left = [each for each in Path(folder).rglob("*") if each.is_file() and each != path and each.suffix != ".lock"]
    return {"killed": done, "left": len(left)}


PARTS = {
    "wire": Part(_WIRE, wire),
    "wire-tls": Part(_TLS, tls),
    "first-tensor": Part(_FIRST, first),
    "resumed": Part(_RESUMED, resumed),
}
