"""Fixtures of the store's tests: a catalog and a registry in the test's own folder, and a session without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from looking import Asker

from trims.registry.sqlite import SqliteRegistry
from trims.store.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon


@pytest.fixture
def catalog(folder: Path) -> Iterator[Catalog]:
    made = Catalog(folder / "state" / "catalog.db")
    yield made
    made.close()


@pytest.fixture
def registry(folder: Path) -> Iterator[SqliteRegistry]:
    made = SqliteRegistry(folder / "state" / "registry.db")
    yield made
    made.close()


@pytest.fixture
def asker(daemon: Daemon) -> Iterator[Asker]:
    """A session of that daemon's store; it ends with the test, so that the daemon's memory can be freed."""
    made = Asker(daemon)
    yield made
    made.end()


@pytest.fixture
def model(daemon: Daemon, checkpoint: Callable[..., Path]) -> Callable[..., str]:
    """Register a checkpoint under a name."""

    def register(name: str = "m", file: str = "a", *, nbytes: int = 4096, **residency: object) -> str:
        path = checkpoint(file, nbytes=nbytes)
        daemon.registry.put({"name": name, "artifact": {"path": str(path)}, "residency": residency}, "")
        return name

    return register
