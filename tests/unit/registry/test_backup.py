"""A backup has whole files as of one moment, and overwrites nothing."""

from __future__ import annotations

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


def test_a_folder_that_cannot_be_made_is_named(path: Path, tmp_path: Path) -> None:
    rows(path, 1)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        back_up([path], tmp_path / "file" / "backup")
