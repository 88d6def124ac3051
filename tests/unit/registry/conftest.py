"""A registry in a folder of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "registry.db"


@pytest.fixture
def registry(path: Path) -> Iterator[SqliteRegistry]:
    made = SqliteRegistry(path)
    yield made
    made.close()
