"""A PostgreSQL server for the folder's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from postgresql import postgresql, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgresql import Server


@pytest.fixture(scope="session", autouse=True)
def _started() -> Iterator[Server | None]:
    """Start it before any test counts its processes."""
    if why_not():
        yield None
        return
    with postgresql() as made:
        yield made


@pytest.fixture
def server(_started: Server | None) -> Server:
    if _started is None:
        pytest.skip(why_not())
    return _started


@pytest.fixture
def postgresql_url(server: Server) -> str:
    server.execute("DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public")
    return server.url


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Serve a database to a test that ends its server."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with postgresql() as made:
        yield made
