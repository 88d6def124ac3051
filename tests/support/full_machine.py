"""A machine whose file systems are really full: `unshare -m python full_machine.py SCENARIO FOLDER`. Not a test itself.

Inside mounts of its own, a scenario puts a tmpfs of 2 MiB where the daemon keeps its images, runs daemon and client and
asserts. Whatever a full file system does to a process (SIGBUS, a dead thread) is seen in how this one ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from file_server import FileServer, file_server
from looking import WAIT_S, charged, extent_at, leases, nothing_is_left, states, wait_until
from safetensors.numpy import save_file
from trims_client import connect

from trims.control import admin
from trims.core.errors import CapacityError, TrimsError
from trims.core.place import CPU, DISK
from trims.daemon.config import build_config
from trims.daemon.main import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_client import Session

SMALL, BIG = 100_000, 4_000_000
#: Two of them fill the file system, but for a little.
HALF = 900_000
SIZE = "2m"


def mount(folder: Path, size: str = SIZE, *, again: bool = False) -> None:
    """A tmpfs of this size at a folder, or another size for the one that is there."""
    folder.mkdir(exist_ok=True)
    options = f"remount,size={size}" if again else f"size={size}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def model(folder: Path, name: str, nbytes: int) -> tuple[Path, np.ndarray]:
    """A checkpoint outside the full file system, and its one tensor."""
    expected = np.random.default_rng(len(name)).random(nbytes // 8)
    save_file({"weight": expected}, folder / f"{name}.safetensors")
    return folder / f"{name}.safetensors", expected


@contextmanager
def served(folder: Path) -> Iterator[tuple[Daemon, Session]]:
    """A daemon that was promised more than there is."""
    settings = {"runtime_dir": folder / "run", "state_dir": folder / "state", "verify": True, "trust": "verified",
                "cpu_capacity_bytes": "64MiB", "disk_capacity_bytes": "64MiB"}  # fmt: skip
    daemon = Daemon(build_config(settings, environment={}))
    daemon.start()
    try:
        with connect(folder / "run") as session:
            yield daemon, session
        wait_until(lambda: leases(daemon) == 0, "a lease lives on")
        nothing_is_left(daemon)
    finally:
        daemon.ask_to_end(purge=True)
        daemon.stop()


def refused(ask: Callable[[], object], *words: str) -> None:
    """Check that a call raises the declared error, with these words."""
    try:
        ask()
    except CapacityError as error:
        wrong = [word for word in words if word not in str(error)]
    except TrimsError as error:
        raise AssertionError(f"not the declared error: {type(error).__name__}: {error}") from error
    else:
        raise AssertionError("it fitted")
    assert not wrong, f"{wrong} not said"


def reads_true(session: Session, path: Path, expected: np.ndarray) -> None:
    with session.open_file(path) as weights:
        np.testing.assert_array_equal(weights["weight"], expected)


def fill_up(folder: Path) -> Path:
    """Another program takes all that is left."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    assert os.statvfs(folder).f_bavail == 0
    return filler


# -- scenarios -----------------------------------------------------------------------------------------------------


def memory_is_smaller_than_promised(folder: Path) -> None:
    mount(Path("/dev/shm"))
    (small, few), (other, others), (big, many) = (
        model(folder, name, size) for name, size in (("a", SMALL), ("bb", SMALL), ("ccc", BIG))
    )
    with served(folder) as (daemon, session), session.open_file(small) as held:
        refused(lambda: session.open_file(big), "/dev/shm is full", "of 2.0 MiB", "lower the cpu tier's capacity")
        np.testing.assert_array_equal(held["weight"], few)
        reads_true(session, other, others)
        assert charged(daemon, CPU) == sum(extent.nbytes for extent in daemon.store.runner.extents().values())
        nothing_is_left(daemon)
        mount(Path("/dev/shm"), "16m", again=True)
        reads_true(session, big, many)


def memory_is_full_when_an_image_comes_from_disk(folder: Path) -> None:
    mount(Path("/dev/shm"))
    (small, few), (big, many) = (model(folder, name, size) for name, size in (("a", SMALL), ("bb", BIG)))
    with served(folder) as (daemon, session):
        daemon.store.load(f"file:{big}", DISK).result(WAIT_S)
        refused(lambda: session.open_file(big, place="cpu"), "/dev/shm is full")
        reads_true(session, big, many)
        assert states(daemon) == {"disk": "sealed"}
        reads_true(session, small, few)
        mount(Path("/dev/shm"), "16m", again=True)
        reads_true(session, big, many)
        assert extent_at(daemon, DISK).nbytes


def memory_is_taken_by_somebody_else(folder: Path) -> None:
    mount(Path("/dev/shm"))
    (small, few), (other, others) = (model(folder, name, SMALL) for name in ("a", "bb"))
    with served(folder) as (_, session), session.open_file(small) as held:
        filler = fill_up(Path("/dev/shm"))
        refused(lambda: session.open_file(other), "/dev/shm is full", "0 B free of 2.0 MiB")
        np.testing.assert_array_equal(held["weight"], few)
        filler.unlink()
        reads_true(session, other, others)


def idle_images_leave_a_memory_that_is_smaller_than_promised(folder: Path) -> None:
    mount(Path("/dev/shm"))
    models = [model(folder, "m" * number, HALF) for number in range(1, 9)]
    with served(folder) as (daemon, session):
        for path, expected in models * 3:
            with session.open_file(path, place="cpu") as weights:
                np.testing.assert_array_equal(weights["weight"], expected)
        assert daemon.store.counters["full.cpu"]
        with session.open_file(models[0][0], place="cpu"), session.open_file(models[1][0], place="cpu"):
            refused(lambda: session.open_file(models[2][0], place="cpu"), "2.0 MiB", "of the 64.0 MiB")
            mount(Path("/dev/shm"), "16m", again=True)
            with session.open_file(models[2][0], place="cpu"):
                assert charged(daemon, CPU) > 2 << 20


def idle_images_leave_a_disk_that_is_smaller_than_promised(folder: Path) -> None:
    (folder / "state").mkdir()
    mount(folder / "state" / "images")
    models = [model(folder, "m" * number, HALF) for number in range(1, 9)]
    with served(folder) as (daemon, session):
        for path, expected in models * 2:
            daemon.store.load(f"file:{path}", DISK).result(WAIT_S)
            with session.open_file(path, place="disk") as weights:
                np.testing.assert_array_equal(weights["weight"], expected)
        assert daemon.store.counters["full.disk"]


def the_disk_is_smaller_than_promised(folder: Path) -> None:
    mount(folder / "state")
    (small, _), (big, many) = (model(folder, name, size) for name, size in (("a", SMALL), ("bb", BIG)))
    with served(folder) as (daemon, session):
        refused(lambda: daemon.store.load(f"file:{big}", DISK).result(WAIT_S), "the disk under", "is full")
        nothing_is_left(daemon)
        keep = {"name": "kept", "artifact": {"path": str(big)}, "residency": {"persist": "always"}}
        daemon.registry.put(keep, "")
        with session.open("kept") as weights:
            np.testing.assert_array_equal(weights["weight"], many)
        daemon.store.load(f"file:{small}", DISK).result(WAIT_S)
        mount(folder / "state", "16m", again=True)
        daemon.store.load(f"file:{big}", DISK).result(WAIT_S)


def the_disk_is_full_to_the_last_byte(folder: Path) -> None:
    """The catalog lies there too; what can be found out again must not depend on writing it."""
    mount(folder / "state")
    (small, few), (other, others) = (model(folder, name, SMALL) for name in ("a", "bb"))
    with served(folder) as (daemon, session), session.open_file(small) as held:
        pinned = {"name": "pinned", "artifact": {"path": str(other)}, "residency": {"pin": True}}
        daemon.registry.put(pinned, "")
        filler = fill_up(folder / "state")
        with session.open("pinned") as weights:
            np.testing.assert_array_equal(weights["weight"], others)
        reads_true(session, other, others)
        np.testing.assert_array_equal(held["weight"], few)
        manifest = {"name": "m", "artifact": {"path": str(other)}, "description": "d" * 100_000}
        refused(lambda: daemon.registry.put(manifest, ""), "the disk under", "is full")
        filler.unlink()
        daemon.registry.put(manifest, "")
        daemon.store.pin("m", CPU, pinned=True)
        with session.open("m") as weights:
            np.testing.assert_array_equal(weights["weight"], others)


def a_daemon_starts_on_a_full_disk(folder: Path) -> None:
    """Models that were registered or have an image are served; changes are refused with the remedy."""
    mount(folder / "state")
    (small, few), (other, others) = (model(folder, name, SMALL) for name in ("a", "bb"))
    with served(folder) as (daemon, _):
        daemon.registry.put({"name": "kept", "artifact": {"path": str(small)}}, "")
        daemon.store.load("kept", DISK).result(WAIT_S)
    filler = fill_up(folder / "state")
    manifest = {"name": "m", "artifact": {"path": str(other)}}
    for _ in range(2):
        with served(folder) as (daemon, session):
            with session.open("kept") as weights:
                np.testing.assert_array_equal(weights["weight"], few)
            reads_true(session, other, others)
            refused(lambda: daemon.registry.put(manifest, ""), "was full when the daemon started", "start the daemon")
            refused(lambda: daemon.store.pin("kept", CPU, pinned=True), "catalog.db takes no changes")
    filler.unlink()
    with served(folder) as (daemon, session):
        daemon.registry.put(manifest, "")
        with session.open("kept") as weights:
            np.testing.assert_array_equal(weights["weight"], few)


def a_daemon_that_was_killed_starts_on_a_full_disk(folder: Path) -> None:
    """Changes that it had not written back lie in the logs beside its databases."""
    mount(folder / "state")
    (small, few), (other, others) = (model(folder, name, SMALL) for name in ("a", "bb"))
    command = [
        sys.executable,
        "-m",
        "trims.cli.main",
        "--runtime-dir",
        str(folder / "run"),
        "serve",
        "--gpus=none",
        "--trust=verified",
    ]
    command += [f"--state-dir={folder / 'state'}", "--cpu-capacity-bytes=64MiB", "--disk-capacity-bytes=64MiB"]
    process = subprocess.Popen(command)
    wait_until((folder / "run" / "control.sock").exists, "the control door, which opens last, is not there")
    with admin(folder / "run") as daemon:
        daemon.add({"name": "kept", "artifact": {"path": str(small)}})
        process.kill()
        process.wait()
    filler = fill_up(folder / "state")
    with served(folder) as (_, session):
        with session.open("kept") as weights:
            np.testing.assert_array_equal(weights["weight"], few)
        reads_true(session, other, others)
    filler.unlink()
    with served(folder) as (_, session), session.open("kept") as weights:
        np.testing.assert_array_equal(weights["weight"], few)


def left_below(folder: Path) -> list[str]:
    """Return the files of downloads that take room, but for locks, and what says the address of a set."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "address"]
    return sorted(path.name for path in files if path.stat().st_size)


def fetched(daemon: Daemon, server: FileServer, session: Session, name: str, path: Path, expected: np.ndarray) -> None:
    """Register a file of a server under a name, and read it."""
    server.serve(f"/{name}.safetensors", path.read_bytes(), etag=f'"{name}"')
    if name not in daemon.registry.names():
        daemon.registry.put({"name": name, "artifact": {"uri": f"{server.url}/{name}.safetensors"}}, "")
    with session.open(name) as weights:
        np.testing.assert_array_equal(weights["weight"], expected)


def a_download_does_not_fit(folder: Path) -> None:
    downloads = folder / "state" / "downloads"
    downloads.parent.mkdir()
    mount(downloads)
    (small, few), (big, many) = (model(folder, name, size) for name, size in (("a", SMALL), ("bb", BIG)))
    with file_server() as server, served(folder) as (daemon, session):
        refused(lambda: fetched(daemon, server, session, "big", big, many), "do not fit", "make room")
        assert left_below(downloads) == []
        server.wait_for(1, "/big.safetensors")
        assert server.sent["/big.safetensors"] == 1, "it was fetched all the same"
        fetched(daemon, server, session, "small", small, few)
        mount(downloads, "16m", again=True)
        fetched(daemon, server, session, "big", big, many)


def other_downloads_make_room_for_one(folder: Path) -> None:
    downloads = folder / "state" / "downloads"
    downloads.parent.mkdir()
    mount(downloads)
    models = [model(folder, "m" * number, HALF) for number in range(1, 5)]
    with file_server() as server, served(folder) as (daemon, session):
        for number, (path, expected) in enumerate(models):
            fetched(daemon, server, session, f"model-{number}", path, expected)
        assert len(left_below(downloads)) <= 2
        fetched(daemon, server, session, "model-0", *models[0])


def the_disk_is_filled_by_another_program_in_the_middle_of_a_download(folder: Path) -> None:
    downloads = folder / "state" / "downloads"
    downloads.parent.mkdir()
    mount(downloads, "8m")
    path, expected = model(folder, "bb", BIG)
    with file_server() as server, served(folder) as (daemon, session):
        slow = server.serve("/bb.safetensors", path.read_bytes(), stall_after=1 << 20)
        daemon.registry.put({"name": "bb", "artifact": {"uri": f"{server.url}/bb.safetensors"}}, "")
        pending = daemon.store.load("bb", CPU)
        server.wait_for(1 << 20, "/bb.safetensors")
        filler = fill_up(downloads)
        slow.stall_after = None
        slow.resume.set()
        pending.result(WAIT_S)
        with session.open("bb") as weights:
            np.testing.assert_array_equal(weights["weight"], expected)
        filler.unlink()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        memory_is_smaller_than_promised,
        memory_is_full_when_an_image_comes_from_disk,
        memory_is_taken_by_somebody_else,
        idle_images_leave_a_memory_that_is_smaller_than_promised,
        idle_images_leave_a_disk_that_is_smaller_than_promised,
        the_disk_is_smaller_than_promised,
        the_disk_is_full_to_the_last_byte,
        a_daemon_starts_on_a_full_disk,
        a_daemon_that_was_killed_starts_on_a_full_disk,
        a_download_does_not_fit,
        other_downloads_make_room_for_one,
        the_disk_is_filled_by_another_program_in_the_middle_of_a_download,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
