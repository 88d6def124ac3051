"""A daemon in a real control group with little memory: it keeps to the limit of each group, and is not killed."""

# fault (capacity): a control group's limit is smaller, or shrinks -> the same; a sixteenth of the limit stays free

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import WAIT_S, wait_until
from safetensors.numpy import save_file
from trims_client import connect

from trims.control import admin
from trims.core.errors import CapacityError, TrimsError
from trims.memory.control_groups import groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_client import Session

pytestmark = pytest.mark.mounts
MIB = 1 << 20
LIMIT, IMAGE = 512 * MIB, 64 * MIB


class Group:
    """A control group below this process's own, whose parent has the limit."""

    def __init__(self, folder: Path, version: int) -> None:
        self._outer, self.inner = folder, folder / "inner"
        self._limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        self.inner.mkdir(parents=True)
        try:
            if version == 2:
                (folder / "cgroup.subtree_control").write_text("+memory")
            self.allow(LIMIT)
        except OSError:
            self.remove()
            raise

    def allow(self, nbytes: int) -> None:
        (self._outer / self._limit).write_text(str(nbytes))

    def used(self) -> int:
        """Return what the group's processes use, page cache not counted."""
        names = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
        used = int((self._outer / names[self._limit]).read_text())
        told = dict(line.split() for line in (self._outer / "memory.stat").read_text().splitlines())
        prefix = "total_" if "total_inactive_file" in told else ""
        return used - int(told[f"{prefix}inactive_file"]) - int(told[f"{prefix}active_file"])

    def remove(self) -> None:
        for folder in (self.inner, self._outer):
            wait_until(lambda folder=folder: _removed(folder), f"{folder} is not empty")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def group() -> Iterator[Group]:
    """A control group of this test's own, or a skip that says why there is none."""
    for folder, version in groups("memory", Path("/")):
        try:
            made = Group(folder / f"trims-t-{os.getpid()}", version)
        except OSError as error:
            why = str(error)
            continue
        yield made
        made.remove()
        return
    pytest.skip(f"no control group for memory can be made: {why}")


@pytest.fixture
def serve_in(group: Group, folder: Path) -> Iterator[Callable[..., None]]:
    """Return a function that starts a daemon in the group and waits until it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*flags: str) -> None:
        serve = [sys.executable, "-m", "trims.cli.main", "serve", "--runtime-dir", str(folder / "run")]
        serve += ["--state-dir", str(folder / "state"), "--gpus", "none", "--trust", "verified", *flags]
        enter = f'echo $$ > {group.inner}/cgroup.procs && exec "$@"'
        running.append(subprocess.Popen(["sh", "-c", enter, "sh", *serve]))
        wait_until(lambda: _answers(folder / "run"), "the daemon does not answer")

    yield start
    for process in running:
        with admin(folder / "run") as daemon:
            daemon.shutdown(purge=True)
        assert process.wait(WAIT_S) == 0


def _answers(runtime_dir: Path) -> bool:
    try:
        with admin(runtime_dir) as daemon:
            daemon.status()
    except TrimsError:
        return False
    return True


def models(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number}.safetensors" for number in range(count)]
    for number, path in enumerate(paths):
        save_file({"weight": np.full(IMAGE // 8, number, np.int64)}, path)
    return paths


def in_memory(folder: Path) -> tuple[int, int]:
    """Return what images hold in memory, and what they may."""
    with admin(folder / "run") as daemon:
        tier = next(tier for tier in daemon.status().stats.tiers if tier.place == "cpu")
    return tier.charged_bytes, tier.capacity_bytes


def read_all(folder: Path, paths: list[Path]) -> None:
    with connect(folder / "run") as session:
        for number, path in enumerate(paths):
            with session.open_file(path, place="cpu") as weights:
                assert (weights["weight"][:: 1 << 16] == number).all()


def test_the_default_capacity_is_half_of_what_the_outer_group_allows(
    serve_in: Callable[..., None], folder: Path
) -> None:
    serve_in()
    assert in_memory(folder)[1] == LIMIT // 2
    read_all(folder, models(folder, 6))
    assert 2 * IMAGE < in_memory(folder)[0] <= LIMIT // 2


@pytest.mark.parametrize("kind", ["shm", "memfd"])
def test_loads_beyond_the_limit_evict_idle_images_and_page_cache_does_not_count(
    kind: str, group: Group, serve_in: Callable[..., None], folder: Path
) -> None:
    paths = models(folder, 10)
    serve_in("--cpu-capacity-bytes", "8GiB", "--cpu-memory", kind)
    filled = f"echo $$ > {group.inner}/cgroup.procs && head -c {LIMIT} /dev/zero > {folder}/cached"
    subprocess.run(["sh", "-c", filled], check=True)  # its pages are the group's, and fill it
    read_all(folder, paths)
    assert 3 * IMAGE <= in_memory(folder)[0] < LIMIT


def test_idle_images_leave_and_loads_are_refused_when_the_limit_shrinks(
    group: Group, serve_in: Callable[..., None], folder: Path
) -> None:
    first, *others = models(folder, 5)
    serve_in("--cpu-capacity-bytes", "8GiB")
    read_all(folder, [first, *others[:2]])
    held, _ = in_memory(folder)
    group.allow(group.used() + 12 * MIB)
    wait_until(lambda: in_memory(folder)[0] < held, "no image leaves although the limit has shrunk")
    with connect(folder / "run") as session, ExitStack() as held_open:
        most = "its control group allows .* for all of its processes: raise it"
        with pytest.raises(CapacityError, match=most):
            hold_all(held_open, session, [first, *others])
    read_all(folder, [first, *others])


def hold_all(held_open: ExitStack, session: Session, paths: list[Path]) -> None:
    for path in paths:
        held_open.enter_context(session.open_file(path, place="cpu"))
