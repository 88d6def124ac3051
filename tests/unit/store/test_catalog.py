"""The catalog: what it remembers between lives, how it is written, and what it forgets."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from trims.store.catalog import Catalog, ImageRecord, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_digests_count_for_one_identity_only(catalog: Catalog) -> None:
    catalog.remember_digests("/a", "1:2:3", "b3", None)
    assert catalog.digests("/a", "1:2:3") == ("b3", None)
    assert catalog.digests("/a", "1:2:4") is None
    catalog.remember_digests("/a", "1:2:4", "b4", "sha")
    assert catalog.digests("/a", "1:2:3") is None
    assert catalog.digests("/a", "1:2:4") == ("b4", "sha")


def test_identity_is_device_inode_length_and_both_times(folder: Path) -> None:
    path = folder / "f"
    path.write_bytes(b"x")
    seen = {identity_of(path)}
    os.utime(path, ns=(5, 5))
    seen.add(identity_of(path))
    path.chmod(0o600)  # changes ctime only
    path.chmod(0o644)
    seen.add(identity_of(path))
    (folder / "g").write_bytes(b"x")
    seen.add(identity_of(folder / "g"))
    assert len(seen) == 4
    with pytest.raises(FileNotFoundError):
        identity_of(folder / "absent")


def test_names_pins_and_images_outlive_the_catalog(catalog: Catalog, folder: Path) -> None:
    record = ImageRecord("k", "m", {"format": "npz", "options": {"a": [1]}}, 123, 0.5)
    catalog.remember_image(record)
    catalog.remember_key("m", "k", "manifest one")
    catalog.remember_key("n", "k", "manifest two")
    catalog.pin("m", "cpu", pinned=True)
    catalog.pin("m", "cpu", pinned=True)
    catalog.close()
    again = Catalog(folder / "state" / "catalog.db")
    assert again.image("k") == record
    assert again.image("other") is None
    assert again.names_of("k") == ["m", "n"]
    assert again.key_under("m", "manifest one") == "k"
    assert again.key_under("m", "manifest two") is None
    assert again.pins() == [("m", "cpu")]
    again.forget("m")
    assert (again.key_of("m"), again.key_of("n"), again.pins()) == (None, "k", [])
    again.pin("n", "disk", pinned=True)
    again.pin("n", "disk", pinned=False)
    assert again.pins() == []
    again.close()


def test_a_catalog_of_another_version_is_emptied_and_said(
    catalog: Catalog, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.remember_key("m", "k", "text")
    catalog._db.execute("PRAGMA user_version = 1")
    catalog.close()
    again = Catalog(folder / "state" / "catalog.db")
    assert again.key_of("m") is None
    assert "is of another version" in caplog.text
    again.close()


# -- a catalog that is damaged, old, or held -----------------------------------------------------------------------


def test_a_damaged_catalog_is_moved_aside_and_made_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "state" / "catalog.db"
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    made = Catalog(path)
    made.remember_key("m", "a" * 64, "{}")
    made.close()
    assert [each.name.split("-")[0] for each in path.parent.glob("*.damaged-*")] == ["catalog.db.damaged"]
    assert "is moved to" in caplog.text
    again = Catalog(path)
    assert again.key_of("m") == "a" * 64
    again.close()


def test_a_catalog_of_the_version_before_keeps_its_pins_and_names(folder: Path) -> None:
    path = folder / "catalog.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute("CREATE TABLE names (name TEXT PRIMARY KEY, key TEXT NOT NULL, manifest TEXT NOT NULL) STRICT")
        old.execute("CREATE TABLE pins (name TEXT NOT NULL, place TEXT NOT NULL, PRIMARY KEY (name, place)) STRICT")
        old.execute("CREATE TABLE working (key TEXT PRIMARY KEY, nbytes INTEGER NOT NULL) STRICT")
        old.execute("INSERT INTO names VALUES ('m', 'k', '{}')")
        old.execute("INSERT INTO working VALUES ('k', 7)")
        old.execute("INSERT INTO pins VALUES ('m', 'cpu')")
        old.execute("PRAGMA user_version = 2")
    made = Catalog(path)
    assert (made.key_of("m"), made.pins(), made.workspaces()) == ("k", [("m", "cpu")], {"k": 7})
    made.pin("m", "cpu", pinned=False)
    made.close()
    again = Catalog(path)
    assert (again.pins(), again.pinned("m", "cpu")) == ([], False)
    again.close()


def test_what_is_learnt_counts_at_once_and_is_written_when_the_catalog_closes(folder: Path) -> None:
    path = folder / "catalog.db"
    first = Catalog(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        first.remember_digests("/a", "identity", "b3", None)
        first.remember_key("m", "k", "{}")
        assert first.digests("/a", "identity") == ("b3", None)
        assert first.names_of("k") == ["m"]
        other.execute("ROLLBACK")
    first.close()
    second = Catalog(path)
    assert second.digests("/a", "identity") == ("b3", None)
    assert second.digests("/a", "another") is None
    assert second.names_of("k") == ["m"]
    second.close()


class _NeverRuns:
    """Workers of a daemon that is killed before any of them runs."""

    def submit(self, work: Callable[[], object], tenant: str | None = None) -> bool:
        return True

    def stop(self, *, drop: bool = False, timeout_s: float | None = None) -> bool:
        return True


def test_a_pin_is_written_with_what_its_name_stands_for(folder: Path) -> None:
    """Without this a daemon that is killed a moment later leaves a pin without the image that it is for."""
    path = folder / "catalog.db"
    killed = Catalog(path, lambda *_, **__: _NeverRuns())
    killed.remember_key("m", "k", "{}")
    killed._unwritten.clear()  # what a flush that failed leaves behind
    killed.pin("m", "cpu", pinned=True)
    killed._db.close()
    killed._reader.close()
    following = Catalog(path)
    assert (following.key_of("m"), following.pins()) == ("k", [("m", "cpu")])
    following.close()


# -- what is forgotten ---------------------------------------------------------------------------------------------


def rows(catalog: Catalog, table: str) -> list[str]:
    catalog._write_behind()
    return [row[0] for row in catalog._rows(f"SELECT * FROM {table} ORDER BY rowid")]


def test_paths_are_forgotten_and_those_first_that_were_looked_at_least_recently(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("trims.store.catalog._MOST_PATHS", 3)
    for name in ("file:/a", "file:/b", "file:/c", "registered", "file:/a", "file:/d"):
        catalog.remember_key(name, "k", "{}")
    left = ["file:/a", "file:/c", "file:/d", "registered"]
    assert catalog.names_of("k") == left
    assert sorted(rows(catalog, "names")) == left
    catalog.close()
    again = Catalog(folder / "state" / "catalog.db")
    assert again.names_of("k") == left
    again.close()


def test_a_path_that_is_pinned_is_never_forgotten(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims.store.catalog._MOST_PATHS", 3)
    catalog.remember_key("file:/pinned", "k", "{}")
    catalog.pin("file:/pinned", "cpu", pinned=True)
    for name in "abcdefg":
        catalog.remember_key(f"file:/{name}", "k", "{}")
    assert "file:/pinned" in catalog.names_of("k")
    assert len(catalog.names_of("k")) <= 4


def test_files_and_images_are_cut_to_the_newest_now_and_then(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims.store.catalog._MOST_ROWS", 5)
    monkeypatch.setattr("trims.store.catalog._CUT_EVERY", 10)
    for number in range(40):
        catalog.remember_digests(f"/f{number}", "i", "b", None)
        catalog.remember_image(ImageRecord(f"k{number}", "m", {}, 1, 0.0))
        catalog._write_behind()
    for table, newest in (("digests", "/f39"), ("images", "k39")):
        left = rows(catalog, table)
        assert len(left) <= 5 + 10
        assert left[-1] == newest


def test_seals_of_segments_that_are_gone_are_forgotten(catalog: Catalog) -> None:
    for label in ("a", "b", "c"):
        catalog.remember_seal(label, "1:2")
    catalog._write_behind()
    catalog.forget_seals_except({"b"})
    assert [catalog.seal_of(label) for label in ("a", "b", "c")] == [None, "1:2", None]
    assert rows(catalog, "seals") == ["b"]


def test_a_catalog_gets_a_table_that_it_lacks_or_on_a_full_disk_does_without(
    catalog: Catalog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.remember_pin("m", "cpu")
    catalog.close()
    path = folder / "state" / "catalog.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE signatures")
    with monkeypatch.context() as patched:
        patched.setattr("trims.store.catalog_file.is_frozen", lambda db: True)
        full = Catalog(path)
        full.remember_signature("k", "text")
        full.remember_digests("/a", "1:2:3", "b3", None)
        assert (full.signature_of("k"), full.digests("/a", "1:2:3")) == (None, ("b3", None))
        full.close()
    again = Catalog(path)
    again.remember_signature("k", "text")
    again.close()
    last = Catalog(path)
    assert (last.signature_of("k"), last.digests("/a", "1:2:3"), last.pins()) == ("text", ("b3", None), [("m", "cpu")])
    last.close()


def test_what_is_known_of_a_name_is_kept_under_another_one_also_in_the_next_life(
    catalog: Catalog, folder: Path
) -> None:
    catalog.remember_key("m", "k", "{}")
    catalog.remember_key("m@1", "stale", "{}")
    catalog.pin("m", "cpu", pinned=True)
    catalog.rename("m", "m@1")
    catalog.rename("unknown", "m@2")
    assert (catalog.key_of("m"), catalog.key_of("m@1"), catalog.key_of("m@2")) == (None, "k", None)
    assert catalog.names_of("k") == ["m@1"]
    assert catalog.models() == {"m@1": "{}"}
    catalog.close()
    again = Catalog(folder / "state" / "catalog.db")
    assert (again.key_of("m"), again.key_of("m@1"), again.pins()) == (None, "k", [("m@1", "cpu")])
    again.close()
