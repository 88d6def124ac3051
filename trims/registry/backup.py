"""Backup of a daemon's databases, also while it runs and changes them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.registry.database import explain, open_database
from trims.registry.generation import beside

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: Files that sqlite writes or removes beside a database, by what it adds to the name.
_OF_SQLITE = ("-wal", "-shm", "-journal")


def back_up(files: Iterable[Path], folder: Path) -> list[Path]:
    """Write whole copies of files into a folder; files that are not there are left out.

    The folder is made for this user alone, and so are the copies in one that is there: manifests may have secrets.

    Args:
        files: Databases (`.db`), each copied as of one moment with its log, and files that are replaced whole.
        folder: Folder that has none of these names yet, nor files that belong to a database of such a name.

    Returns the copies.

    Raises:
        ConfigError: A copy is there already or cannot be written, or a database lacks its log or is damaged.
        CapacityError: The disk is full.
    """
    pairs = [(path, folder / path.name) for path in files if path.exists()]
    if there := [str(each) for _, copy in pairs for each in _names(copy) if os.path.lexists(each)]:
        raise ConfigError(f"{', '.join(there)} is there already; choose a folder without it")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, copy in pairs:
            with open(copy, "xb", opener=_for_this_user) as made:
                if path.suffix != ".db":
                    with path.open("rb") as source:
                        shutil.copyfileobj(source, made)
                    continue
            _copy(path, copy)
    except OSError as error:
        raise ConfigError(f"the backup in {folder} cannot be written: {error}") from error
    return [copy for _, copy in pairs]


def _names(copy: Path) -> list[Path]:
    """Return a copy's path and those of files that would belong to it."""
    if copy.suffix != ".db":
        return [copy]
    return [copy, beside(copy), *(copy.with_name(copy.name + each) for each in _OF_SQLITE)]


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _copy(path: Path, copy: Path) -> None:
    with closing(open_database(path, "")) as source:
        try:
            with closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except sqlite3.Error as error:
            raise explain(error, copy) from error
