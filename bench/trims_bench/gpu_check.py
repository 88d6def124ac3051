"""`make gpu-check`: what a machine with a GPU says of the GPU tier, in one JSON file.

    python -m trims_bench.gpu_check --out bench/results/gpu.json

runs the tests marked `gpu` and the experiments below on the first device, through the same code that the keeper and its
borrowers use. With `--cuda fake:FOLDER` the experiments run without a device, to see that they work.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims.keeper.mover import Mover
from trims.memory.cuda.api import connect
from trims.memory.cuda.drivers import Export
from trims.testing.device_borrower import Borrower
from trims.testing.device_memory import CONTENT, Owner
from trims_bench.machine import commit, machine, versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DRIVERS = ("vmm", "ipc")
_REPEATS = 5


class Bench:
    """One device under examination.

    Attributes:
        kind: For `trims.memory.cuda.api.connect`.
        most_bytes: The largest allocation to make.
    """

    def __init__(self, kind: str, most_bytes: int) -> None:
        self.kind = kind
        self.most_bytes = most_bytes

    @contextlib.contextmanager
    def owner(self, driver: str) -> Any:
        """An owner, ended after the block."""
        made = Owner(self.kind, driver)
        try:
            yield made
        finally:
            made.end()

    def sizes(self, smallest: int = 64 << 20) -> list[int]:
        """Doubling twice each, up to what fits twice."""
        found, size = [], min(smallest, self.most_bytes)
        while size <= self.most_bytes:
            found.append(size)
            size *= 4
        return found


def open_cost(bench: Bench) -> dict[str, Any]:
    """Nanoseconds to open an allocation in another process that has a context: the first time and again, by size."""
    found: dict[str, Any] = {}
    for driver in _DRIVERS:
        with bench.owner(driver) as owner:
            for size in bench.sizes():
                made = owner.sealed(CONTENT, nbytes=size)
                with owner.borrower() as borrower:
                    taken = []
                    for _ in range(_REPEATS):
                        taken.append(borrower.open(owner.memory.export(made)))
                        borrower.close()
                found[f"{driver} {size}"] = taken
                owner.memory.free(made)
    return found


def write_to_read_only(bench: Bench) -> dict[str, Any]:
    """What happens to a borrower that writes, and to everybody else's bytes."""
    found: dict[str, Any] = {}
    for driver in _DRIVERS:
        with bench.owner(driver) as owner, owner.borrower() as offender:
            made = owner.sealed()
            offender.open(owner.memory.export(made))
            try:
                offender.write(0, b"\xff" * 16)
                outcome = "it was not stopped"
            except TrimsError as error:
                outcome = str(error)
            found[driver] = {"offender": outcome, "bytes_intact": owner.read(made) == CONTENT}
            offender.kill()
            owner.memory.free(made)
    return found


def parked_descriptor(bench: Bench) -> dict[str, Any]:
    """Whether a descriptor alone keeps memory alive after its owner has given it up."""
    with bench.owner("vmm") as owner:
        made = owner.sealed()
        exported = owner.memory.export(made)
        parked = Export(exported.driver, exported.device, exported.size_bytes, fd=os.dup(exported.fd))
        exported.close()
        owner.memory.free(made)
        with owner.borrower() as borrower:
            borrower.open(parked)
            intact = borrower.read(0, 256) == CONTENT[:256]
            borrower.close()
    return {"bytes_intact": intact}


def pid_namespaces(bench: Bench) -> dict[str, Any]:
    """Whether a borrower with process ids of its own can open it."""
    found: dict[str, Any] = {}
    for driver in _DRIVERS:
        with bench.owner(driver) as owner:
            made = owner.sealed()
            prefix = ("unshare", "--pid", "--fork", "--kill-child")
            with Borrower(bench.kind, owner.device.uuid, driver, prefix=prefix) as stranger:
                try:
                    stranger.open(owner.memory.export(made))
                    found[driver] = "opened"
                except TrimsError as error:
                    found[driver] = str(error)
            owner.memory.free(made)
    return found


def host_to_device(bench: Bench) -> dict[str, Any]:
    """Bytes a second from shared memory to the device by each way, against one pinned copy of the same bytes."""
    size = min(bench.most_bytes, 2 << 30)
    with bench.owner("vmm") as owner:
        made = owner.memory.allocate(size)
        fd = os.memfd_create("trims-gpu-check")
        try:
            _fill(fd, size)
            mover = Mover(owner.cuda, owner.device)
            ways = {}
            for way in mover.ways:
                move = functools.partial(mover.copy_in, fd, size, made.address, way=way)
                ways[way] = _copy_rate(move, size)
            mover.close()
        finally:
            os.close(fd)
        pinned = owner.cuda.host_allocate(size)
        stream = owner.cuda.stream()

        def plain() -> None:
            owner.cuda.copy_in(made.address, pinned, size, stream)
            owner.cuda.synchronize(stream)

        ways["pinned copy"] = _copy_rate(plain, size)
        owner.cuda.end_stream(stream)
        owner.cuda.host_free(pinned)
        owner.memory.free(made)
    return {"nbytes": size, "bytes_per_s": ways}


def context_cost(bench: Bench) -> dict[str, Any]:
    """Bytes of the device that a context takes, which is all that a keeper without weights may ever hold."""
    watcher = connect(bench.kind)
    watcher.use(watcher.devices()[0].uuid)
    before = watcher.memory()[0]
    try:
        with bench.owner("vmm") as owner, owner.borrower() as borrower:
            made = owner.sealed()
            borrower.open(owner.memory.export(made))
            during = watcher.memory()[0]
            borrower.close()
            owner.memory.free(made)
    finally:
        watcher.leave()
    return {"bytes": before - during, "contexts": 1 if bench.kind == "driver" else 2}


EXPERIMENTS: Sequence[Callable[[Bench], dict[str, Any]]] = (
    open_cost, write_to_read_only, parked_descriptor, pid_namespaces, host_to_device, context_cost,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every experiment gave a result and every test passed, else 1; the file is written in any case."""
    parser = argparse.ArgumentParser(prog="trims_bench.gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--cuda", default="driver", help="`driver`, or `fake:FOLDER`")
    parser.add_argument("--most-bytes", type=int, default=8 << 30, help="largest allocation")
    parser.add_argument("--no-tests", action="store_true", help="experiments only")
    options = parser.parse_args(arguments)
    bench = Bench(options.cuda, options.most_bytes)
    record: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "nvidia_smi": _nvidia_smi(),
        "experiments": {run.__name__: _try(run, bench) for run in EXPERIMENTS},
    }
    if not options.no_tests:
        record["tests"] = _tests()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    failed = [name for name, result in record["experiments"].items() if "error" in result]
    for name in failed:
        print(f"{name}: {record['experiments'][name]['error']}")
    print(f"{options.out}: {len(EXPERIMENTS) - len(failed)} of {len(EXPERIMENTS)} experiments")
    return 1 if failed or record.get("tests", {}).get("failures") else 0


def _try(run: Callable[[Bench], dict[str, Any]], bench: Bench) -> dict[str, Any]:
    began = time.monotonic()
    try:
        return {**run(bench), "seconds": round(time.monotonic() - began, 3)}
    except (TrimsError, OSError, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _fill(fd: int, nbytes: int) -> None:
    os.ftruncate(fd, nbytes)
    with mmap.mmap(fd, nbytes) as mapped:
        for begin in range(0, nbytes, len(CONTENT)):
            mapped[begin : begin + len(CONTENT)] = CONTENT[: min(len(CONTENT), nbytes - begin)]


def _copy_rate(copy: Callable[[], object], nbytes: int) -> list[int]:
    taken = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        copy()
        taken.append(round(nbytes / (time.perf_counter() - began)))
    return taken


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout[:20_000]


def _tests() -> dict[str, Any]:
    """The tests marked `gpu`; a device that is not there is a failure here, not a skip."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", f"--junitxml={report}"]
        done = subprocess.run(
            command, env={**os.environ, "TRIMS_REQUIRE": "gpu"}, capture_output=True, text=True, check=False
        )
        if not report.exists():
            return {"failures": 1, "output": (done.stdout + done.stderr)[-4000:]}
        suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 - written by the line above
        assert suite is not None, "pytest writes one suite"
        counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        counts["failures"] += counts["errors"]
        return {**counts, "output": done.stdout[-4000:]}


if __name__ == "__main__":
    sys.exit(main())
