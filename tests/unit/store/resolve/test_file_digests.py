"""Digests of files: read once, trusted for as long as the file is certain to hold the same bytes."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import blake3
import pytest

from trims.core.errors import DigestMismatchError, ManifestError
from trims.manifests.manifest import parse_manifest
from trims.store.catalog import Catalog, identity_of
from trims.store.resolve import file_digests
from trims.store.resolve.file_digests import FileDigests
from trims.store.resolve.hashing import Digests, LongReadError, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def catalog(folder: Path) -> Iterator[Catalog]:
    made = Catalog(folder / "catalog.db")
    yield made
    made.close()


@pytest.fixture
def path(folder: Path) -> Path:
    (folder / "m.npz").write_bytes(b"weights")
    return folder / "m.npz"


def manifest(**sha256: str) -> Any:
    return parse_manifest({"name": "m", "artifact": {"path": "m.npz", "sha256": sha256}}, "/")


def read(made: FileDigests, path: Path, stated: Any = None, reading: Reading | None = None) -> list[Digests]:
    return made.read((path,), stated or manifest(), reading or Reading(), lambda: None)


def test_a_file_is_read_once_for_its_identity(catalog: Catalog, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = FileDigests(catalog, trusts=True, rest_s=lambda _: 0.0)
    assert made.known((path,), (identity_of(path),)) is None
    (found,) = read(made, path)
    assert (found.blake3, found.certain) == (blake3.blake3(b"weights").hexdigest(), True)
    monkeypatch.setattr(file_digests.hashing, "read_digests", None)
    assert read(made, path) == made.known((path,), (identity_of(path),)) == [found]


def test_a_file_that_may_still_be_written_is_read_and_not_certain(catalog: Catalog, path: Path) -> None:
    made = FileDigests(catalog, trusts=True, rest_s=lambda _: 1.0)
    assert [each.certain for each in read(made, path)] == [False]
    known = made.known((path,), (identity_of(path),))
    assert known is not None
    assert [each.certain for each in known] == [False]


def test_a_digest_that_the_manifest_states_must_be_the_files(catalog: Catalog, path: Path) -> None:
    made = FileDigests(catalog, trusts=True, rest_s=lambda _: 0.0)
    right = hashlib.sha256(b"weights").hexdigest()
    assert [each.sha256 for each in read(made, path, manifest(**{"m.npz": right}))] == [right]
    with pytest.raises(DigestMismatchError, match=right):
        read(made, path, manifest(**{"m.npz": "0" * 64}))
    with pytest.raises(ManifestError, match=r"'other\.npz', which is not a file of it"):
        read(made, path, manifest(**{"other.npz": right}))


def test_a_long_file_is_left_to_those_who_may_read_long(
    catalog: Catalog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_digests, "_HASH_HERE_BYTES", 3)
    made, checked = FileDigests(catalog, trusts=True, rest_s=lambda _: 0.0), []
    with pytest.raises(LongReadError):
        made.read((path,), manifest(), Reading(long=False), lambda: checked.append(1))
    assert checked == [1], "whether it is too large is asked before it is read"


@pytest.mark.parametrize(("age_s", "rests"), [(1.0, False), (2.5, True), (-5.0, True)])
def test_a_file_rests_two_seconds_after_its_times_unless_those_lie_in_the_future(
    age_s: float, rests: bool, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint("a")
    now_s = path.stat().st_ctime + age_s
    monkeypatch.setattr(file_digests.time, "time", lambda: now_s)
    os.utime(path, (now_s + 1000, now_s + 1000))
    assert (file_digests.rest_of(path) <= 0) is rests


def test_a_large_file_may_be_written_for_longer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "large").open("wb") as file:
        file.truncate(640 << 20)
    now_s = (folder / "large").stat().st_ctime
    monkeypatch.setattr(file_digests.time, "time", lambda: now_s)
    assert file_digests.rest_of(folder / "large") == pytest.approx(12.0)
