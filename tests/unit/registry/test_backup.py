"""A backup has whole files as of one moment, and overwrites nothing."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from registries import manifest, rows

from trims.core.errors import ConfigError
from trims.registry.backup import back_up
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from pathlib import Path


def test_a_backup_of_a_database_in_use_has_what_is_in_its_log_and_is_one_file(path: Path, tmp_path: Path) -> None:
    rows(path, 2)
    folder = tmp_path / "new" / "backup"
    (tmp_path / "trims.lock").write_text("locked")
    with closing(SqliteRegistry(path)) as registry:
        registry.put(manifest("late"), "")
        written = back_up([path, tmp_path / "none.db", tmp_path / "trims.lock"], folder)
    assert written == [folder / "registry.db", folder / "trims.lock"]
    assert sorted(each.name for each in folder.iterdir()) == ["registry.db", "trims.lock"]
    with closing(SqliteRegistry(written[0])) as again:
        assert again.names() == ["late", "m0", "m1"]


def test_a_backup_that_is_there_already_is_not_overwritten(path: Path, tmp_path: Path) -> None:
    rows(path, 1)
    back_up([path], tmp_path / "backup")
    before = (tmp_path / "backup" / "registry.db").read_bytes()
    with pytest.raises(ConfigError, match=r"backup/registry\.db is there already"):
        back_up([path], tmp_path / "backup")
    assert (tmp_path / "backup" / "registry.db").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["registry.db-wal", "registry.db-shm", "registry.db-journal", "registry.db-generation", "trims.lock"]
)
def test_a_name_that_belongs_to_a_copy_is_neither_removed_nor_written(path: Path, tmp_path: Path, name: str) -> None:
    rows(path, 1)
    (tmp_path / "trims.lock").touch()
    folder = tmp_path / "backup"
    folder.mkdir()
    (folder / name).symlink_to("nowhere")
    with pytest.raises(ConfigError, match=f"backup/{name} is there already"):
        back_up([path, tmp_path / "trims.lock"], folder)
    assert [(each.name, os.readlink(each)) for each in folder.iterdir()] == [(name, "nowhere")]


def test_a_backup_is_for_its_user_alone(path: Path, tmp_path: Path) -> None:
    rows(path, 1)
    (tmp_path / "trims.lock").touch(0o644)
    folder = tmp_path / "backup"
    before = os.umask(0)
    try:
        written = back_up([path, tmp_path / "trims.lock"], folder)
    finally:
        os.umask(before)
    assert [each.stat().st_mode & 0o777 for each in (folder, *written)] == [0o700, 0o600, 0o600]


def test_a_folder_that_cannot_be_made_is_named(path: Path, tmp_path: Path) -> None:
    rows(path, 1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        back_up([path], tmp_path / "file" / "backup")
