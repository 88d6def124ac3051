"""Fixtures of the tests that run programs by `trims exec`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from programs import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.fixture
def programs(folder: Path, daemon: Daemon) -> Iterator[Programs]:
    """Programs in a folder that is empty at first; nothing of them may be left."""
    (folder / "work").mkdir()
    made = Programs(folder / "work", daemon.config.runtime_dir)
    yield made
    made.end()
