"""Backup of a daemon's databases, also while it runs and changes them."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.registry.database import explain, open_database

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def back_up(files: Iterable[Path], folder: Path) -> list[Path]:
    """Write whole copies of files into a folder, which is made; files that are not there are left out.

    Args:
        files: Databases (`.db`), each copied as of one moment with its log, and files that are replaced whole.
        folder: It must have none of these names yet.

    Returns the copies.

    Raises:
        ConfigError: A copy is there already or cannot be written, or a database lacks its log or is damaged.
        CapacityError: The disk is full.
    """
    pairs = [(path, folder / path.name) for path in files if path.exists()]
    if there := [str(copy) for _, copy in pairs if copy.exists()]:
        raise ConfigError(f"{', '.join(there)} is there already; choose a folder without it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, copy in pairs:
            if path.suffix == ".db":
                _copy(path, copy)
            else:
                shutil.copyfile(path, copy)
    except OSError as error:
        raise ConfigError(f"the backup in {folder} cannot be written: {error}") from error
    return [copy for _, copy in pairs]


def _copy(path: Path, copy: Path) -> None:
    with closing(open_database(path, "")) as source:
        try:
            with closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except sqlite3.Error as error:
            raise explain(error, copy) from error
