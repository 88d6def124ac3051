"""Reading ahead: the kernel is asked for every page once, until the replica goes or the daemon ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.core.place import FILE
from trims.memory.pages import Pages
from trims.tiers import reading
from trims.tiers.base import Extent
from trims.tiers.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def extent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Extent]:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 4096)
    (tmp_path / "file").write_bytes(bytes(20_000))
    fds = [os.open(tmp_path / "file", os.O_RDONLY) for _ in range(3)]
    pages = (Pages(fds[1], 4096, 9000, 0), Pages(fds[2], 16384, 4096, 8192))
    made = Extent("k", FILE, 20480, "", fds[0], "file", pages=pages)
    yield made
    made.close()


def advised(
    monkeypatch: pytest.MonkeyPatch, cached: tuple[int, ...] = (), devices: Path = Path("/nowhere")
) -> list[tuple[int, int, int]]:
    told: list[tuple[int, int, int]] = []
    monkeypatch.setattr(reading, "is_cached", lambda fd, offset, nbytes, untold: offset in cached)
    monkeypatch.setattr(reading, "_DEVICES", devices)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *what: told.append(what))
    return told


def test_every_part_is_read_in_pieces(extent: Extent, monkeypatch: pytest.MonkeyPatch) -> None:
    told = advised(monkeypatch)
    read_ahead(extent, threading.Event())
    assert [(at, length) for at, length, _ in told] == [(0, 4096), (4096, 4096), (8192, 808), (8192, 4096)]
    assert {what for _, _, what in told} == {os.POSIX_FADV_WILLNEED}


def test_what_the_kernel_has_is_not_asked_for(extent: Extent, monkeypatch: pytest.MonkeyPatch) -> None:
    told = advised(monkeypatch, cached=(4096, 8192))
    read_ahead(extent, threading.Event())
    assert [at for at, _, _ in told] == [0]


@pytest.mark.parametrize(("kib", "far"), [("128\n", False), ("1023\n", False), ("1024\n", True), ("many", False)])
def test_of_a_device_that_the_kernel_reads_far_ahead_only_the_beginning_is_read(
    extent: Extent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kib: str, far: bool
) -> None:
    device = os.stat(tmp_path).st_dev
    folder = tmp_path / "bdi" / f"{os.major(device)}:{os.minor(device)}"
    folder.mkdir(parents=True)
    (folder / "read_ahead_kb").write_text(kib)
    monkeypatch.setattr(reading, "_START_BYTES", 6000)
    told = advised(monkeypatch, devices=tmp_path / "bdi")
    read_ahead(extent, threading.Event())
    beginning = [(0, 4096), (4096, 1904)] if far else [(0, 4096), (4096, 4096), (8192, 808)]
    assert [(at, length) for at, length, _ in told] == [*beginning, (8192, 4096)]


def test_of_such_a_device_a_piece_is_there_before_the_next_is_asked_for(
    extent: Extent, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    monkeypatch.setattr(reading, "_reads_far", lambda fd: True)
    monkeypatch.setattr(reading, "is_cached", lambda fd, offset, nbytes, untold: False)
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, nbytes, what: steps.append((at, nbytes)))
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, at: steps.append(at))
    read_ahead(extent, threading.Event())
    assert steps == [(0, 4096), 4095, (4096, 4096), 8191, (8192, 808), 8999, (8192, 4096), 12287]


def test_it_ends_with_the_daemon_or_the_replica(extent: Extent, monkeypatch: pytest.MonkeyPatch) -> None:
    told, cancelled = advised(monkeypatch), threading.Event()
    cancelled.set()
    read_ahead(extent, cancelled)
    extent.close()
    assert extent.closed
    read_ahead(extent, threading.Event())
    assert told == []


def test_a_file_system_that_cannot_read_ahead_harms_nothing(extent: Extent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, *what: int) -> None:
        raise OSError(22, "Invalid argument")

    advised(monkeypatch)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    read_ahead(extent, threading.Event())
