"""Memory and disk that fail under a running daemon: the exact error to every waiter, and nothing left behind."""

# fault (capacity): memory runs full in a conversion or promotion -> `no_space`; a retry works
# fault (capacity): create, seal or free fails -> `capacity` or `internal` for each waiter; the next try works
# fault (damage): a disk image is damaged or gone -> nothing: retired, served from the artifact; counter `broken`
# fault (damage): a disk image is damaged and its artifact missing -> `bad_artifact`, `bad_image`

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING

import numpy as np
import pytest
from damages import DAMAGES
from looking import (
    WAIT_S,
    Asker,
    charged,
    error_of,
    extent_at,
    nothing_is_left,
    put_on_disk,
    restart,
    states,
    wait_until,
)
from safetensors.numpy import load_file
from trims_client import connect

from trims.core.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    CapacityError,
    ImageError,
    InternalError,
    NoSpaceError,
)
from trims.core.place import CPU, DISK, Place
from trims.daemon.budget import Budget
from trims.daemon.check import check_store
from trims.daemon.main import shm_prefix
from trims.formats.conversion.conversion import _LocalConversion
from trims.memory.large_pages import LargePages
from trims.testing.tiers import FaultyTier, SlowTier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon


def expected_of(path: Path) -> np.ndarray:
    """Return the file's one tensor, read without trims."""
    found: np.ndarray = load_file(path)["weight"]
    return found


def holds_true_bytes(daemon: Daemon, path: Path, expected: np.ndarray) -> None:
    with connect(daemon.config.runtime_dir) as session, session.open_file(path, place="cpu") as weights:
        np.testing.assert_array_equal(weights["weight"], expected)


# -- a tier that fails ---------------------------------------------------------------------------------------------

FAULTS = {
    "full at create": ("create", CapacityError("no room, 4096 needed"), CapacityError, "no room, 4096 needed"),
    "broken at create": ("create", OSError(errno.EIO, "Input/output error"), InternalError, "Input/output error"),
    "a bug at create": ("create", RuntimeError("off by one"), InternalError, "RuntimeError: off by one"),
    "full at seal": ("seal", OSError(errno.ENOSPC, "No space left on device"), NoSpaceError, "is full"),
    "broken at seal": ("seal", OSError(errno.EIO, "Input/output error"), InternalError, "Input/output error"),
    "a bug at seal": ("seal", RuntimeError("off by two"), InternalError, "RuntimeError: off by two"),
}


@pytest.mark.parametrize("place", [CPU, DISK], ids=str)
@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_failing_tier_is_told_to_every_waiter_and_the_next_try_works(
    fault: str, place: Place, daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    method, raised, kind, words = FAULTS[fault]
    faulty = FaultyTier(daemon.store.tiers[place])
    slow = daemon.store.tiers[place] = SlowTier(faulty)
    faulty.faults[method] = raised
    path = checkpoint("m")
    pending = [asker.ask(path, place) for _ in range(3)]
    assert slow.entered.wait(WAIT_S)
    slow.go_on.set()
    for each in pending:
        error = error_of(each)
        assert type(error) is kind
        assert words in str(error)
    assert daemon.store.counters[f"fills.{place}"] == 1, "one load for all of them"
    assert charged(daemon, place) == 0
    nothing_is_left(daemon)
    granted = asker.open(path, place)
    assert granted.nbytes
    nothing_is_left(daemon)
    asker.end()


@pytest.mark.parametrize("place", [CPU, DISK], ids=str)
def test_memory_that_fills_up_in_the_middle_of_a_conversion_is_a_capacity_error(
    place: Place, daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("m")

    def half(conversion: _LocalConversion, fd: int, on_progress: object = None) -> None:
        os.pwrite(fd, b"x" * 100, 0)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(_LocalConversion, "write", half)
        assert isinstance(error_of(asker.ask(path, place)), CapacityError)
    nothing_is_left(daemon)
    assert asker.open(path, place).nbytes
    asker.end()


@pytest.mark.parametrize("large_pages", [True, False], ids=["large pages", "4 KiB pages"])
def test_memory_full_during_a_promotion_is_a_capacity_error_and_the_source_stays(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, large_pages: bool
) -> None:
    path = checkpoint("m", nbytes=20 << 20)
    put_on_disk(daemon, path)
    real_reserve, real_send, written = LargePages.reserve, os.sendfile, []

    def is_full(offset: int) -> None:
        written.append(offset)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    def reserve(pages: LargePages, begin: int, end: int) -> memoryview | None:
        if not large_pages:
            return None
        is_full(begin)
        return real_reserve(pages, begin, end)

    def send(target: int, source: int, offset: int, count: int) -> int:
        if not large_pages:
            is_full(offset)
        return real_send(target, source, offset, min(count, 1 << 20))

    with monkeypatch.context() as patched:
        patched.setattr(LargePages, "reserve", reserve)
        patched.setattr(os, "sendfile", send)
        error = error_of(asker.ask(path))
    assert len(written) > 2
    assert type(error) is NoSpaceError
    assert "/dev/shm is full" in str(error)
    assert states(daemon) == {"disk": "sealed"}
    nothing_is_left(daemon)
    assert asker.open(path).nbytes
    asker.end()


def test_a_tier_that_cannot_name_a_sealed_image_keeps_no_descriptor_and_no_file(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leak count round each test is the other half of this one."""
    path = checkpoint("m")
    for place, where in ((CPU, "pathlib.Path.rename"), (DISK, "trims.tiers.disk.os.rename")):

        def refuse(*names: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        with monkeypatch.context() as patched:
            patched.setattr(where, refuse)
            assert isinstance(error_of(asker.ask(path, place)), InternalError)
        nothing_is_left(daemon)


def test_a_disk_image_whose_folder_cannot_be_synced_is_not_left_uncounted(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tier: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("trims.tiers.disk.DiskTier._sync_folder", refuse)
        assert isinstance(error_of(asker.ask(checkpoint("m"), DISK)), InternalError)
    nothing_is_left(daemon)


def test_a_disk_that_is_full_does_not_hurt_the_open_that_wanted_it_kept(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    faulty = daemon.store.tiers[DISK] = FaultyTier(daemon.store.tiers[DISK])
    faulty.faults["create"] = CapacityError("the disk is full")
    keep = {"name": "m", "artifact": {"path": str(checkpoint("m"))}, "residency": {"persist": "always"}}
    daemon.registry.put(keep, "")
    with session.open("m") as weights:
        assert weights["weight"].size
    wait_until(lambda: "m is not kept on disk: the disk is full" in caplog.text, "it was not logged")
    assert daemon.store.counters["fills.disk"] == 1
    nothing_is_left(daemon)


# -- a disk image that is not what it was --------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["in this life", "found by the next daemon"])
@pytest.mark.parametrize("how", list(DAMAGES))
def test_a_damaged_disk_image_is_retired_and_the_open_is_served_from_the_artifact(
    how: str, moment: str, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=100_000)
    expected = np.random.default_rng(ord("m")).random(12_500)
    daemon = serve()
    DAMAGES[how](put_on_disk(daemon, path))
    if moment != "in this life":
        daemon = restart(daemon, serve)
    holds_true_bytes(daemon, path, expected)
    wait_until(lambda: charged(daemon, DISK) == 0, "the damaged image stays")
    nothing_is_left(daemon)
    put_on_disk(daemon, path)
    daemon.store.evict(f"file:{path}", CPU)
    holds_true_bytes(daemon, path, expected)
    nothing_is_left(daemon)


def test_a_disk_that_cannot_be_read_any_more_is_a_broken_image_not_a_bug(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("m", nbytes=100_000)
    label = put_on_disk(daemon, path).label
    sendfile, preadv = os.sendfile, os.preadv

    def check(source: int) -> None:
        if os.readlink(f"/proc/self/fd/{source}") == label:
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(
            os, "sendfile", lambda target, source, *more: (check(source), sendfile(target, source, *more))[1]
        )
        patched.setattr(os, "preadv", lambda source, *more: (check(source), preadv(source, *more))[1])
        holds_true_bytes(daemon, path, np.random.default_rng(ord("m")).random(12_500))
    assert daemon.store.counters["broken"] == 1
    nothing_is_left(daemon)


# fault (damage): the disk fails under an image being written -> nothing; the image in memory stays
def test_a_disk_that_cannot_be_written_is_not_held_against_the_image_in_memory(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("m", nbytes=100_000)
    granted = asker.open(path)

    def bad_disk(*anything: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "sendfile", bad_disk)
        assert "Input/output error" in str(error_of(asker.ask(path, DISK)))
    assert daemon.store.counters["broken"] == 0
    assert states(daemon) == {"cpu": "sealed"}
    assert asker.open(path).generation == granted.generation
    nothing_is_left(daemon)


def test_a_damaged_disk_image_without_its_artifact_is_told_by_the_missing_file(
    daemon: Daemon, asker: Asker, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    DAMAGES["a bit flipped"](put_on_disk(daemon, path))
    path.unlink()
    error = error_of(asker.ask(path))
    assert isinstance(error, ArtifactNotFoundError)
    assert f"{path} cannot be read" in str(error)
    assert charged(daemon, CPU) == 0


def test_an_unlinked_disk_image_is_read_by_descriptor_and_found_by_a_check(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=100_000)
    os.unlink(put_on_disk(daemon, path).label)
    holds_true_bytes(daemon, path, np.random.default_rng(ord("m")).random(12_500))
    assert daemon.store.counters["broken"] == 0
    (finding,) = check_store(daemon.store, verify=True).findings
    assert "was removed" in finding
    nothing_is_left(daemon)


# -- a segment that is not what it was -----------------------------------------------------------------------------


def test_an_unlinked_segment_serves_its_readers_and_is_replaced_once_noticed(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with session.open_file(path) as weights:
        expected = weights["weight"].copy()
        segment = extent_at(daemon, CPU)
        os.unlink(f"/dev/shm/{segment.label}")
        with session.open_file(path) as again:
            np.testing.assert_array_equal(again["weight"], expected)
        (finding,) = check_store(daemon.store, verify=False).findings
        assert "was removed" in finding
        np.testing.assert_array_equal(weights["weight"], expected)
    holds_true_bytes(daemon, path, expected)
    assert daemon.store.counters["fills.cpu"] == 2
    nothing_is_left(daemon)


# fault (damage): a segment is truncated or flipped -> `bad_image` before mapping, or `trims check --verify` names it;
# the next daemon hashes it first and loads again
def test_a_truncated_segment_is_refused_before_it_is_mapped(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=100_000)
    session.open_file(path).close()
    segment = extent_at(daemon, CPU)
    os.chmod(f"/dev/shm/{segment.label}", 0o600)
    os.truncate(f"/dev/shm/{segment.label}", 4096)
    with pytest.raises(ImageError, match="the segment has 4096 bytes"):
        session.open_file(path)
    assert session.open_file(checkpoint("other")).close() is None
    (finding,) = check_store(daemon.store, verify=True).findings
    assert "it has 4096 bytes" in finding
    holds_true_bytes(daemon, path, np.random.default_rng(ord("m")).random(12_500))
    nothing_is_left(daemon)


# -- an artifact that is not there any more ------------------------------------------------------------------------


# fault (damage): an artifact is missing, its image is not -> a warning; the image is served
def test_a_registered_model_whose_artifact_is_gone_is_served_from_its_disk_image(
    daemon: Daemon,
    session: Session,
    folder: Path,
    checkpoint: Callable[..., Path],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trims.store.resolve.resolver._TRUST_S", 0.0)
    path = checkpoint("m", nbytes=100_000)
    daemon.registry.put({"name": "m", "artifact": {"path": str(path)}}, "")
    daemon.store.load("m", DISK).result(WAIT_S)
    wait_until(lambda: daemon.store.catalog.image(extent_at(daemon, DISK).key), "the image is not remembered")
    path.rename(folder / "away")
    with session.open("m") as weights:
        np.testing.assert_array_equal(weights["weight"], np.random.default_rng(ord("m")).random(12_500))
    assert "m.safetensors is gone" in caplog.text
    daemon.store.evict("m")
    with pytest.raises(ArtifactError, match=r"m\.safetensors"):
        session.open("m")
    nothing_is_left(daemon)
    (folder / "away").rename(path)
    with session.open("m") as weights:
        assert weights["weight"].size


def test_a_new_manifest_with_a_missing_artifact_does_not_serve_the_old_image(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon.registry.put({"name": "m", "artifact": {"path": str(checkpoint("m"))}}, "")
    session.open("m").close()
    daemon.registry.put({"name": "m", "artifact": {"path": str(folder / "nowhere.npz")}}, "", replace=True)
    daemon.store.resolver.forget("m")
    with pytest.raises(ArtifactError, match=r"nowhere\.npz"):
        session.open("m")


def test_a_path_that_is_gone_is_an_error_even_if_its_image_is_there(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens a path means the file; a name stands for what it was given."""
    monkeypatch.setattr("trims.store.resolve.resolver._TRUST_S", 0.0)
    path = checkpoint("m")
    session.open_file(path).close()
    path.unlink()
    with pytest.raises(ArtifactError, match=r"m\.safetensors"):
        session.open_file(path)


# -- a catalog that fails ------------------------------------------------------------------------------------------


# fault (capacity): the catalog cannot record an image -> a line in the log; the image stays until the daemon ends
@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("image", sqlite3.OperationalError("disk I/O error")),
        ("remember_image", sqlite3.DatabaseError("database disk image is malformed")),
    ],
)
def test_an_image_that_cannot_be_remembered_is_granted_all_the_same(
    daemon: Daemon,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    error: Exception,
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(daemon.store.catalog, method, fails)
    path = checkpoint("m")
    daemon.store.load(f"file:{path}", CPU).result(WAIT_S)
    assert states(daemon)["cpu"] == "sealed"
    assert "is not remembered: the next daemon reads it again" in caplog.text
    assert str(error) in caplog.text


# -- few descriptors -----------------------------------------------------------------------------------------------


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many images a daemon may have open, of which it keeps eight to spare."""
    monkeypatch.setattr("trims.daemon.main.budget", lambda sessions: Budget(64, sessions, 12))
    return 12


# fault (capacity): more images than descriptors
def test_more_models_than_descriptors_are_served_one_after_the_other(
    few_images: int, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve()
    for number in range(2 * few_images):
        path = checkpoint(f"m{number}")
        holds_true_bytes(daemon, path, expected_of(path))
    wait_until(lambda: len(daemon.store.runner.extents()) <= few_images, "images were not given back")
    nothing_is_left(daemon)


def test_an_open_is_served_as_soon_as_one_of_all_images_is_idle(
    few_images: int, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve()
    paths = [checkpoint(f"m{number}") for number in range(few_images + 1)]
    with connect(daemon.config.runtime_dir) as session:
        opened = {path: session.open_file(path) for path in paths[:-1]}
        with pytest.raises(CapacityError, match="images are open"):
            session.open_file(paths[-1])
        for _ in range(40):
            waits = next(path for path in paths if path not in opened)
            closed = next(iter(opened))
            opened.pop(closed).close()
            opened[waits] = session.open_file(waits)
            np.testing.assert_array_equal(opened[waits]["weight"], expected_of(waits))
        for weights in opened.values():
            weights.close()
    nothing_is_left(daemon)


def test_a_purge_frees_also_what_the_daemon_left_alone(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = serve()
    for number in range(6):
        daemon.store.load(f"file:{checkpoint(f'm{number}')}", CPU).result(WAIT_S)
    monkeypatch.setattr("trims.daemon.main.budget", lambda sessions: Budget(64, sessions, 12))
    daemon = restart(daemon, serve)
    assert daemon.store.counters["adoption_skipped"] == 2
    prefix = shm_prefix(daemon.config.state_dir)
    assert sum(name.startswith(prefix) for name in os.listdir("/dev/shm")) == 6
    daemon.ask_to_end(purge=True)
    daemon.stop()
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def test_images_beyond_the_limit_are_left_for_a_daemon_with_more_descriptors(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = serve()
    paths = [checkpoint(f"m{number}") for number in range(6)]
    for path in paths:
        daemon.store.load(f"file:{path}", DISK).result(WAIT_S)
    with monkeypatch.context() as few:
        few.setattr("trims.daemon.main.budget", lambda sessions: Budget(64, sessions, 12))
        daemon = restart(daemon, serve)
        assert len(daemon.store.runner.extents()) + daemon.store.counters["adoption_skipped"] == len(paths)
        assert daemon.store.counters["adoption_skipped"] == 2
        holds_true_bytes(daemon, paths[0], expected_of(paths[0]))
    daemon = restart(daemon, serve)
    assert daemon.store.counters["adoption_skipped"] == 0
    assert len(list((daemon.config.state_dir / "images").iterdir())) >= len(paths) - 1
    holds_true_bytes(daemon, paths[5], expected_of(paths[5]))
