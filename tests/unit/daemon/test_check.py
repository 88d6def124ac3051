"""`trims check`: what it finds, what it does about it, and that a client that merely left is no finding."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from looking import extent_at, nothing_is_left, put_on_disk, states, wait_until

from trims.core.place import CPU, DISK
from trims.daemon.check import check_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.core.replica import ReplicaId
    from trims.daemon.main import Daemon
    from trims.tiers.base import Extent


def test_an_empty_store_is_fine(daemon: Daemon) -> None:
    report = check_store(daemon.store, verify=True)
    assert (report.findings, report.replicas, report.verified_bytes) == ([], 0, 0)


def test_a_sound_store_is_counted_and_verified_only_when_asked(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    put_on_disk(daemon, path)
    with session.open_file(path, place="cpu"):
        quick, whole = check_store(daemon.store, verify=False), check_store(daemon.store, verify=True)
    assert (quick.findings, quick.replicas, quick.verified_bytes) == ([], 2, 0)
    assert (whole.findings, whole.replicas) == ([], 2)
    assert whole.verified_bytes == extent_at(daemon, CPU).nbytes + extent_at(daemon, DISK).nbytes


def flip(path: str) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(-99, os.SEEK_END)
        file.write(b"\xff\x00\xff")


WRONG = {
    "a flipped bit": (flip, "hash to", True),
    "a changed length": (lambda path: (os.chmod(path, 0o600), os.truncate(path, 100)), "it has 100 bytes", False),
    "a removed name": (os.unlink, "was removed", False),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_what_is_wrong_on_disk_is_found_and_taken_out_of_service(
    what: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    damage, words, needs_verify = WRONG[what]
    damage(put_on_disk(daemon, checkpoint("m")).label)
    if needs_verify:
        assert check_store(daemon.store, verify=False).findings == []
    (finding,) = check_store(daemon.store, verify=needs_verify).findings
    assert words in finding
    assert "at disk" in finding
    assert "taken out of service" in finding
    wait_until(lambda: states(daemon) == {}, "it stays in service")
    nothing_is_left(daemon)


def test_what_is_wrong_under_a_reader_goes_with_its_last_lease(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    with session.open_file(checkpoint("m")) as weights:
        flip(f"/dev/shm/{extent_at(daemon, CPU).label}")
        assert len(check_store(daemon.store, verify=True).findings) == 1
        assert states(daemon) == {"cpu": "draining"}
        assert weights["weight"].size
    wait_until(lambda: states(daemon) == {}, "it stays")


def test_books_that_contradict_themselves_are_a_finding_not_an_exception(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    session.open_file(checkpoint("m")).close()
    daemon.store.residency.capacity.at[CPU].charged_bytes += 1
    findings = check_store(daemon.store, verify=False).findings
    daemon.store.residency.capacity.at[CPU].charged_bytes -= 1
    assert len(findings) == 1
    assert "bytes charged, the replicas have" in findings[0]


def test_a_replica_that_leaves_during_the_check_is_not_accused(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("m")
    session.open_file(path).close()
    real = daemon.store.read.extent

    def leaves_now(job: ReplicaId) -> Extent | None:
        found = real(job)
        daemon.store.evict(f"file:{path}")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(daemon.store.read, "extent", leaves_now)
        report = check_store(daemon.store, verify=True)
    assert report.findings == []
    assert daemon.store.counters["broken"] == 0
