"""A PostgreSQL server for the module's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from postgresql import postgresql, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgresql import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with postgresql() as started:
        yield started


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
    with postgresql() as started:
        yield started
