"""Named shared memory: a segment's name says what it should be, and it belongs to one user and one daemon."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.core.errors import CapacityError, ConfigError, ImageError
from trims.memory.shm import (
    PosixShm,
    check_folder,
    file_system_of,
    names,
    parse_name,
    unlink,
    unopened_segments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX, OTHER = "trims-0123456789ab", "trims-ba9876543210"
KEY, DIGEST = "a" * 64, "b" * 64


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on a tmpfs, which must be empty afterwards."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="trims-t-") as made:
        yield Path(made)
        assert os.listdir(made) == []


@pytest.fixture
def driver(shm: Path) -> PosixShm:
    return PosixShm(PREFIX, shm)


def test_a_sealed_segment_is_found_by_its_name_with_key_and_digest(driver: PosixShm, shm: Path) -> None:
    draft = driver.create("7", 4096)
    assert list(driver.names()) == [f"{PREFIX}.filling.7"]
    driver.allocate(draft)
    os.pwrite(draft.fd, b"abc", 0)
    sealed = driver.seal(draft, KEY, DIGEST)
    assert draft.fd == -1
    assert list(driver.names()) == [sealed.name] == [f"{PREFIX}.{KEY}.{DIGEST}"]
    found, key, digest = driver.open(sealed.name)
    assert (key, digest, found.nbytes) == (KEY, DIGEST, 4096)
    assert os.pread(found.fd, 3, 0) == b"abc"
    assert stat.S_IMODE((shm / sealed.name).stat().st_mode) == 0o400
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(found.fd, b"x", 0)
    for each in (sealed, found):
        each.close()
    driver.remove(sealed.name)
    driver.remove(sealed.name)


def test_an_unfinished_segment_is_not_opened_and_leaves_nothing_when_it_is_discarded(driver: PosixShm) -> None:
    draft = driver.create("7", 4096)
    with pytest.raises(ImageError, match="it was never finished"):
        driver.open(draft.name)
    with pytest.raises(FileExistsError):
        driver.create("7", 4096)
    driver.discard(draft)
    assert list(driver.names()) == []


def test_a_segment_larger_than_the_room_is_refused_before_it_is_made(driver: PosixShm, shm: Path) -> None:
    with pytest.raises(CapacityError, match=rf"{shm} is full: .*\({1 << 60} bytes\) needed, .* lower the cpu tier's"):
        driver.create("7", 1 << 60)
    assert os.listdir(shm) == []


def test_only_full_memory_is_a_lack_of_room(driver: PosixShm) -> None:
    assert isinstance(driver.explain(OSError(errno.ENOSPC, "full"), 1), CapacityError)
    other = OSError(errno.EIO, "broken")
    assert driver.explain(other, 1) is other


def test_a_segment_that_cannot_be_sealed_is_removed(
    driver: PosixShm, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> object:
        raise PermissionError(errno.EPERM, "refused")

    draft = driver.create("7", 4096)
    monkeypatch.setattr(driver, "_open", refuse)
    with pytest.raises(PermissionError, match="refused"):
        driver.seal(draft, KEY, DIGEST)
    assert draft.fd == -1
    assert os.listdir(shm) == []


def test_another_users_segment_and_a_link_are_not_opened(
    driver: PosixShm, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{PREFIX}.{KEY}.{DIGEST}"
    (shm / "target").write_bytes(b"x")
    (shm / name).symlink_to(shm / "target")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        driver.open(name)
    (shm / name).unlink()
    (shm / "target").rename(shm / name)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(PermissionError, match=f"it belongs to user {os.getuid()}"):
            driver.open(name)
    unlink(name, shm)


def test_daemons_do_not_see_each_others_segments(driver: PosixShm, shm: Path) -> None:
    other = PosixShm(OTHER, shm)
    drafts = [driver.create("1", 1), other.create("1", 1)]
    assert list(names(PREFIX, shm)) == [f"{PREFIX}.filling.1"]
    assert list(names("trims-01234", shm)) == []
    driver.discard(drafts[0])
    other.discard(drafts[1])


def test_segments_that_no_process_has_open_are_told_by_prefix(driver: PosixShm, shm: Path) -> None:
    held = driver.create("1", 1)
    loose = [f"{PREFIX}.x.y", f"{OTHER}.b.c", f"{OTHER}.a.b"]
    for name in [*loose, f"{OTHER}", "trims-short.a.b", "something.else", f"{OTHER}."]:
        (shm / name).write_bytes(b"")
    assert unopened_segments(shm) == {OTHER: [f"{OTHER}.a.b", f"{OTHER}.b.c"]}
    held.close()
    assert list(unopened_segments(shm)) == sorted([PREFIX, OTHER])
    for name in os.listdir(shm):
        (shm / name).unlink()


@given(st.text("abcdef0123456789", min_size=1), st.text("abcdef0123456789", min_size=1))
def test_a_name_states_the_key_and_the_digest_it_was_made_of(key: str, digest: str) -> None:
    assert parse_name(PREFIX, f"{PREFIX}.{key}.{digest}") == (key, digest)


@pytest.mark.parametrize("rest", ["filling.7", "a", "a.b.c", ""])
def test_a_name_that_states_nothing_is_of_no_sealed_segment(rest: str) -> None:
    assert parse_name(PREFIX, f"{PREFIX}.{rest}") is None


def test_a_folder_must_be_on_a_tmpfs_and_writable(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_folder(shm)
    assert (file_system_of(shm), file_system_of(Path("/proc"))) == ("tmpfs", "proc")
    with pytest.raises(ConfigError, match=r"/proc is not on a tmpfs: .*mount -t tmpfs .* /proc`"):
        check_folder(Path("/proc"))
    with pytest.raises(ConfigError, match=r"nowhere is not there: .*--cpu-memory memfd"):
        check_folder(shm / "nowhere")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match=f"cannot be written by this user; mount it with uid={os.geteuid()}"):
        check_folder(shm)
