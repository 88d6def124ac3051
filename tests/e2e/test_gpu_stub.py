"""The tests that need a device, run on a stand-in for the driver's C libraries: through NVIDIA's own Python packages.

No GPU is claimed by this: it shows that what we hand to those packages arrives in the driver as it should.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest
from repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cc


@pytest.fixture
def machine(folder: Path) -> dict[str, str]:
    """The environment of a process that finds the stand-in where it looks for the driver."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    libraries, memory = folder / "lib", folder / "memory"
    libraries.mkdir()
    memory.mkdir()
    built = libraries / "libcuda.so.1"
    source = ROOT / "tests" / "stub_driver" / "driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-lpthread"], check=True)
    shutil.copy(built, libraries / "libnvidia-ml.so.1")
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries), "CUDA_STUB_DRIVER": str(memory)}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_tests_for_a_device_pass_through_nvidias_packages(machine: dict[str, str], folder: Path) -> None:
    report = folder / "report.xml"
    # Run on a processor, the kernels of the checksum take a second for each MiB.
    (folder / "memory" / "fail.cuModuleLoadData").write_text("222")
    command = [sys.executable, "-m", "pytest", "-m", "gpu and not kernels", "-q", f"--junitxml={report}", "tests"]
    command.append("--ignore=tests/e2e/test_torch_architectures.py")  # a file that skips as a whole
    done = subprocess.run(
        command,
        cwd=ROOT,
        # What Python has freed is written over there: an address that is read too late shows.
        env={**machine, "TRIMS_REQUIRE": "gpu", "PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    assert int(suite.get("tests", 0)) > 20
    assert int(suite.get("skipped", 0)) == 0
    _assert_nobody_holds(folder / "memory")


def _assert_nobody_holds(memory: Path) -> None:
    """Files that a dead process left are removed at the next check; none may be in use."""
    for path in memory.iterdir():
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if a process holds it


def test_the_stand_in_knows_every_call_the_bindings_make() -> None:
    """Calls that are added later are found: else the package would report them as missing, and not look into them."""
    ways = (ROOT / "trims" / "memory" / "cuda" / name for name in ("bindings.py", "borrower.py"))
    calls = {call for way in ways for call in re.findall(r'"(cu[A-Z]\w+?)(?:_v2)?"', way.read_text())}
    known = set(re.findall(r"CALL\((\w+),", (ROOT / "tests" / "stub_driver" / "driver.c").read_text()))
    assert len(calls) > 30
    assert calls - known == set()


REFUSED = """
import os, sys, threading, time
from pathlib import Path

import blake3

from trims.core.errors import CapacityError
from trims.keeper.client import KeeperConnection
from trims.keeper.device_sums import WAYS, DeviceSums
from trims.keeper.keeper import Keeper
from trims.keeper.mover import Mover
from trims.keeper.server import KeeperServer
from trims.memory.cuda.connect import connect
from trims.memory.row_sums import part
from trims.testing.tiers import an_image

folder, memory = Path(sys.argv[1]), Path(os.environ["CUDA_STUB_DRIVER"])
data, fd = an_image(4 << 20), os.memfd_create("image")
os.write(fd, data)
digest = blake3.blake3(data).hexdigest()

cuda = connect("driver")
uuid = cuda.devices()[0].uuid
keeper = Keeper(cuda, uuid, "vmm", idle_s=0.0)
server = KeeperServer(keeper, folder / "keeper.sock")
thread = threading.Thread(target=server.serve)
thread.start()
while not (folder / "keeper.sock").exists():
    time.sleep(0.01)
with KeeperConnection(folder / "keeper.sock") as order:
    number = order.create(len(data))
    order.fill(number, fd)
    order.seal(number, "a" * 64, digest)
    while keeper.awake:
        time.sleep(0.01)
    for status in (46, 808, 809):
        (memory / "fail.cuDevicePrimaryCtxRetain").write_text(str(status))
        try:
            order.digest(number)
            raise AssertionError("it had a context")
        except CapacityError as error:
            assert "no context just now" in str(error), error
    (memory / "fail.cuDevicePrimaryCtxRetain").unlink()
    assert order.digest(number) == digest
    order.end()
thread.join()

mover = Mover(cuda, cuda.use(uuid))
(memory / "fail.cuMemHostRegister_v2").write_text("999")
target = cuda.allocate(len(data))
mover.copy_in(fd, len(data), target, way="registered")
assert mover.ways == ("staged",)
assert mover.digest(target, len(data)) == digest
mover.close()
sums = DeviceSums(cuda)
for way in WAYS:  # the kernels' own source, run on this processor
    assert sums.sum(target, 100_000, way=way) == (part(data[:100_000], 0), way)
sums.close()
cuda.free(target)
cuda.leave()
"""


def test_what_the_driver_refuses_for_now_ends_no_keeper_and_loses_nothing(
    machine: dict[str, str], folder: Path
) -> None:
    """No context to be had, three ways; and pages that it does not pin, for a reason it does not know."""
    environment = {**machine, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", REFUSED, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    _assert_nobody_holds(folder / "memory")


BORROWED = """
import ctypes, os, sys
from pathlib import Path

from trims.core.errors import TrimsError
from trims.memory.cuda.connect import connect, connect_borrower
from trims.memory.cuda.drivers import borrowed_memory
from trims.testing.device_memory import CONTENT, Owner

memory = Path(os.environ["CUDA_STUB_DRIVER"])
STATUSES = (1, 2, 46, 201, 304, 400, 700, 801, 999)
FUNCTIONS = ("cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuCtxSynchronize",
             "cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuIpcOpenMemHandle_v2",
             "cuStreamSynchronize")


def read(connected, owner, made):
    cuda = connected("driver")
    device = cuda.retain(owner.device.uuid)
    ways = borrowed_memory(owner.memory.name, cuda, device)
    export = owner.memory.export(made)
    try:
        with cuda.bound():
            opened = ways.open(export)
            try:
                stream, found = cuda.stream(), bytearray(len(CONTENT))
                place = (ctypes.c_ubyte * len(found)).from_buffer(found)
                cuda.copy_out(ctypes.addressof(place), opened.address, len(found), stream)
                cuda.synchronize(stream)
                cuda.end_stream(stream)
                cuda.wait()
                room = cuda.memory()
            finally:
                ways.close(opened)
        return bytes(found), cuda.dlpack_device(), device._replace(peers=()), cuda.kind, room
    finally:
        export.close()
        cuda.leave()


def outcome(connected, owner, made):
    try:
        return read(connected, owner, made)
    except TrimsError as error:
        return type(error).__name__, str(error)


owner = Owner("driver", "vmm")
made = owner.sealed()
assert outcome(connect, owner, made) == outcome(connect_borrower, owner, made)
assert outcome(connect_borrower, owner, made)[0] == CONTENT
told = set()
for function in FUNCTIONS:
    for status in STATUSES:
        (memory / f"fail.{function}").write_text(str(status))
        theirs, ours = outcome(connect, owner, made), outcome(connect_borrower, owner, made)
        assert theirs == ours, (function, status, theirs, ours)
        told.add(ours[0])
    (memory / f"fail.{function}").unlink()
    owner.cuda.bind()  # a push that was refused in `leave` has left this thread without a context
assert {"NoSpaceError", "CapacityError", "NotSupportedError", "DeviceLostError", "CudaError"} <= told, told
owner.memory.free(made)
owner.end()
for connected in (connect, connect_borrower):
    try:
        connected("driver").retain("GPU-none")
        raise AssertionError("it is there")
    except TrimsError as error:
        print(error)
"""


def test_both_ways_to_the_driver_show_the_same_devices_bytes_and_errors(machine: dict[str, str], folder: Path) -> None:
    """NVIDIA's package and the C library by ctypes, over the same library, which is made to fail in each function."""
    environment = {**machine, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BORROWED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    theirs, ours = done.stdout.splitlines()
    assert theirs == ours
    assert "which sees GPU-abcdef01-0203-0405-0607-08090a0b0c0d" in ours
    _assert_nobody_holds(folder / "memory")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_check_of_a_device_runs_through_nvidias_packages(machine: dict[str, str], folder: Path) -> None:
    """Experiments and figures that need no framework; no time is held against anything."""
    out = folder / "gpu.json"
    command = [sys.executable, "-m", "trims_bench.gpu.check", "--out", str(out), "--tiny", "--no-tests"]
    command += ["--only", "2,3,4,5,8,9,b,d,f"]
    done = subprocess.run(command, cwd=ROOT, env=machine, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    record = json.loads(out.read_text())
    parts = {**record["experiments"], **record["figures"]}
    assert len(parts) == 9
    assert {name: part for name, part in parts.items() if {"error", "unavailable"} & part.keys()} == {}
    assert record["cuda"] == "driver"
    _assert_nobody_holds(folder / "memory")
