"""A daemon is killed with models in shared memory: how soon the next one answers, and whether that grows with bytes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims_bench.checkpoints import write_checkpoint
from trims_bench.measuring import Bar, Comparison, Figure, Samples, share
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from pathlib import Path

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

_TITLE = "from the start of a daemon, after SIGKILL of the one before, to its first warm answer"
_BAR_GROWTH = Bar("<=", 1.2)
_BAR_ALIKE = Bar("<=", 1.5)
_FULL_BYTES = 8_000_000_000
_MODELS = 8
_LEVELS = (2, 4, 8)
#: Part of the memory that is free now: as much again lies in the page cache as the models' files.
_PART = 0.4
_WAIT_S = 300.0
_LOOK_S = 0.001
_STATS_S = 0.01


@dataclass(slots=True)
class _Level:
    """Level of resident models; nanoseconds since the process was started, for each restart.

    Attributes:
        empty: Greeting of a daemon that finds nothing, taken in turns with the others.
        greeted: Greeting.
        answered: First warm open.
        verified: All bytes are hashed again.
    """

    nbytes: int
    empty: list[int] = field(default_factory=list)
    greeted: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)


def restart(setup: Setup) -> Figure:
    """Measure with a quarter, half and all of the bytes; then with all, and no catalog that vouches for them."""
    from trims.core.units import format_bytes

    each = _bytes(setup) // _MODELS
    figure = Figure("restart", _TITLE, [], [])
    with (
        setup.scratch() as folder,
        setup.daemon(folder / "empty", cpu_capacity_bytes=1 << 20) as empty,
        setup.daemon(folder / "state", cpu_capacity_bytes=_MODELS * each * 5 // 4 + (1 << 20)) as daemon,
    ):
        levels: list[_Level] = []
        models: list[str] = []
        for count in _LEVELS:
            models += [_load(daemon, folder, number, each) for number in range(len(models), count)]
            levels.append(_Level(count * each))
            for _ in range(setup.repeats(5)):
                _restart(levels[-1], empty, daemon, models)
        unvouched = [_without_catalog(daemon, model) for model in models]
        hashed = [_hash(folder / f"{model}.safetensors") for model in models]
    figure.comparisons = [line for level in levels for line in _lines(level, format_bytes(level.nbytes))]
    figure.comparisons.append(_growth(levels))
    figure.comparisons += _unvouched(unvouched, hashed)
    figure.notes.append(
        f"{_MODELS} models of {format_bytes(each)}. Times from the start of the process (other side: of a daemon that "
        "finds nothing, to its greeting). Hashed again: until `unverified_bytes` of Stats is 0."
    )
    figure.notes.append(
        "No catalog: catalog.db is deleted before the start, and one model is opened, each in its turn. Its open needs "
        "two hashes: of its file, to know what the name stands for, and of its segment (other side: both, alone)."
    )
    return figure


def _bytes(setup: Setup) -> int:
    from trims.memory.available import available_bytes
    from trims.memory.shm import SHM_FOLDER

    wanted = setup.resident_bytes or setup.size(_FULL_BYTES, 64_000 * _MODELS)
    room = os.statvfs(SHM_FOLDER)
    return min(wanted, int(_PART * min(available_bytes(), room.f_bavail * room.f_frsize)))


def _load(daemon: DaemonProcess, folder: Path, number: int, nbytes: int) -> str:
    """Load a model into shared memory, and nowhere else: no image on disk."""
    name = f"model-{number}"
    path = write_checkpoint(folder / f"{name}.safetensors", nbytes, label=name)
    daemon.load(daemon.register({"name": name, "artifact": {"path": str(path)}}))
    return name


def _restart(level: _Level, empty: DaemonProcess, daemon: DaemonProcess, models: list[str]) -> None:
    level.empty.append(_first_answers(empty, None)[0])
    greeted, answered, warm = _first_answers(daemon, models[len(level.greeted) % len(models)])
    assert warm, "the catalog vouches for it"
    level.greeted.append(greeted)
    level.answered.append(answered)
    level.verified.append(_await_verified(daemon))


def _first_answers(daemon: DaemonProcess, model: str | None) -> tuple[int, int, bool]:
    """Kill the daemon and start one; nanoseconds from then to its greeting and to an open, and if that was warm."""
    from trims_bench.raw import HELLO

    daemon.kill()
    began = daemon.begin()
    until_s = time.monotonic() + _WAIT_S
    while True:
        try:
            with daemon.raw_client(timeout_s=_WAIT_S) as client:
                client.send(HELLO)
                client.receive()
                greeted = answered = time.monotonic_ns() - began
                answer = {}
                if model is not None:
                    client.send({"op": "open", "id": 1, "model": model})
                    answer = client.answer()
                    answered = time.monotonic_ns() - began
                    assert "lease" in answer, answer
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < until_s, "it does not start"
            time.sleep(_LOOK_S)
            continue
        daemon.await_health()
        return greeted, answered, bool(answer.get("warm"))


def _await_verified(daemon: DaemonProcess) -> int:
    """Nanoseconds from the start of the process until no byte is unverified."""
    with daemon.door() as door:
        while door.status().stats.unverified_bytes:
            time.sleep(_STATS_S)
    return time.monotonic_ns() - daemon.began_ns


def _without_catalog(daemon: DaemonProcess, model: str) -> int:
    """Nanoseconds from the start to the answer, if nothing vouches for what is found."""
    daemon.kill()
    for suffix in ("", "-wal", "-shm"):
        (daemon.state_dir / f"catalog.db{suffix}").unlink(missing_ok=True)
    return _first_answers(daemon, model)[1]


def _hash(path: Path) -> int:
    """Nanoseconds of hashing as many bytes twice, with nothing else running."""
    from trims.tiers.transfer import digest_by_reading

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        began = time.monotonic_ns()
        for _ in range(2):
            digest_by_reading(fd, os.fstat(fd).st_size)
        return time.monotonic_ns() - began
    finally:
        os.close(fd)


def _lines(level: _Level, size: str) -> list[Comparison]:
    empty, answered = Samples("empty daemon", level.empty), Samples("first warm answer", level.answered)
    greeted, verified = Samples("greeting", level.greeted), Samples("all hashed again", level.verified)
    return [
        Comparison(f"{size}: first warm answer", answered.median / 1e9, "s", None, (answered, empty)),
        share(f"{size}: times an empty daemon's", answered, empty, None),
        Comparison(f"{size}: greeting alone", greeted.median / 1e9, "s", None, (greeted, empty)),
        Comparison(f"{size}: all hashed again", verified.median / 1e9, "s", None, (verified,)),
    ]


def _growth(levels: list[_Level]) -> Comparison:
    first, last = (Samples("first warm answer", level.answered) for level in (levels[0], levels[-1]))
    return Comparison("first warm answer: all, times a quarter", last.median / first.median, "x", _BAR_GROWTH, ())


def _unvouched(answered: list[int], hashed: list[int]) -> list[Comparison]:
    sides = Samples("open without a catalog", answered), Samples("two hashes of it", hashed)
    alike = max(answered) / min(answered)
    return [
        Comparison("no catalog: open of one model, slowest", max(answered) / 1e9, "s", None, sides),
        Comparison("no catalog: slowest, times quickest", alike, "x", _BAR_ALIKE, ()),
    ]


PARTS = {"restart": Part(_TITLE, restart)}
