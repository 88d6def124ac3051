"""`trims.lock`: kept, read again, and refused where it is damaged or of a later version."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ConfigError, ManifestError, NoSpaceError
from trims.sources import lock
from trims.sources.lock import LockFile

if TYPE_CHECKING:
    from pathlib import Path

FILE = {"name": "m", "nbytes": 3, "version": "v", "checksums": {"sha256": "00"}, "found": {"blake3": "11"}}
ENTRY = {"pinned": "http://h/m", "folder": "/d", "files": [FILE]}
IMAGE = {
    "pinned": "",
    "image": {
        "name": "m", "key": "a" * 64, "digest": "b" * 64, "nbytes": 9, "checksums": {"crc64nvme": "0" * 16},
        "file": "m.safetensors", "format": "torch", "recipe": {"format": "torch"}, "manifest": {}, "signature": "",
        "cost_s": 1.0,
    },
}  # fmt: skip


def test_what_was_found_is_there_for_the_next_daemon(tmp_path: Path) -> None:
    path = tmp_path / "trims.lock"
    first = LockFile(path)
    assert first.get("http://h/m") is None
    first.put("http://h/m", ENTRY)
    first.put("s3://b/m", IMAGE)
    assert LockFile(path).entries() == {"http://h/m": ENTRY, "s3://b/m": IMAGE}
    first.forget("http://h/m")
    first.forget("http://h/m")
    assert LockFile(path).get("http://h/m") is None
    assert [each.name for each in tmp_path.iterdir()] == ["trims.lock"]


def test_what_is_written_is_in_one_order_and_without_paths_where_it_is_to_travel(tmp_path: Path) -> None:
    assert lock.written({"b": ENTRY, "a": IMAGE}) == lock.written({"a": IMAGE, "b": ENTRY})
    carried = lock.portable(ENTRY)
    assert carried == {"pinned": "http://h/m", "files": [FILE]}
    (tmp_path / "trims.lock").write_bytes(lock.written({"http://h/m": carried}))
    assert lock.beside(str(tmp_path)) == {"http://h/m": carried}


def damaged(entry: Any) -> bytes:
    return json.dumps({"trims_lock": 1, "addresses": {"http://h/m": entry}}).encode()


DAMAGES = {
    "cut": lock.written({"http://h/m": ENTRY})[:-20],
    "empty": b"",
    "text": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "list": b"[]",
    "no version": b'{"addresses": {}}',
    "version is text": b'{"trims_lock": "1", "addresses": {}}',
    "no addresses": b'{"trims_lock": 1}',
    "entry is text": damaged("x"),
    "no files": damaged({"pinned": "x"}),
    "file is text": damaged({"pinned": "x", "files": ["m"]}),
    "file without length": damaged({"pinned": "x", "files": [{**FILE, "nbytes": "3"}]}),
    "digest is no text": damaged({"pinned": "x", "files": [{**FILE, "checksums": {"sha256": 1}}]}),
    "folder is a number": damaged({**ENTRY, "folder": 7}),
    "image is text": damaged({"image": "x"}),
    "image without key": damaged({"image": {**IMAGE["image"], "key": "zz"}}),  # type: ignore[dict-item]
    "image with more": damaged({"image": {**IMAGE["image"], "more": 1}}),  # type: ignore[dict-item]
    "pinned is a number": damaged({**ENTRY, "pinned": 7}),
}


@pytest.mark.parametrize("data", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named_and_kept(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trims.lock"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"trims\.lock.*move it away"):
        LockFile(path)
    with pytest.raises(ManifestError, match=r"trims\.lock"):
        lock.beside(str(tmp_path))
    assert path.read_bytes() == data


def test_a_file_of_a_later_version_says_so(tmp_path: Path) -> None:
    (tmp_path / "trims.lock").write_bytes(b'{"trims_lock": 2, "places": []}')
    with pytest.raises(ManifestError, match=r"version 2.*update trims"):
        lock.read(tmp_path / "trims.lock")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "trims.lock").open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(ManifestError, match="64 MiB"):
        lock.read(tmp_path / "trims.lock")


def test_a_file_beside_a_manifest_is_read_again_when_it_changed_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trims.lock"
    assert lock.beside("") == lock.beside(str(tmp_path)) == {}
    path.write_bytes(lock.written({"a": IMAGE}))
    real, reads = lock.read, list[object]()
    monkeypatch.setattr(lock, "read", lambda where: reads.append(where) or real(where))
    assert lock.beside(str(tmp_path)) == lock.beside(str(tmp_path)) == {"a": IMAGE}
    assert reads == [path]
    path.write_bytes(lock.written({"b": IMAGE}))
    assert lock.beside(str(tmp_path)) == {"b": IMAGE}


# fault (sources): `trims.lock` cannot be written -> `no_space`, `bad_config`
def test_a_full_disk_leaves_what_was_known_and_says_no_space(tmp_path: Path) -> None:
    made = LockFile(tmp_path / "trims.lock")
    made.put("http://h/m", ENTRY)
    real = os.fsync

    def full(fd: int) -> None:
        del fd
        raise OSError(28, "No space left on device")

    os.fsync = full
    try:
        with pytest.raises(NoSpaceError, match=r"trims\.lock"):
            made.put("s3://b/m", IMAGE)
    finally:
        os.fsync = real
    assert made.entries() == LockFile(tmp_path / "trims.lock").entries() == {"http://h/m": ENTRY}
    assert [each.name for each in tmp_path.iterdir()] == ["trims.lock"]


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    made = LockFile(tmp_path / "gone" / "trims.lock")
    with pytest.raises(ConfigError, match="gone"):
        made.put("http://h/m", ENTRY)
    assert made.get("http://h/m") is None
