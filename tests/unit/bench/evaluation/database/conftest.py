"""A PostgreSQL server for the folder's tests."""

from __future__ import annotations

import os
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


def _lack() -> None:
    """Skip for want of a server, which `TRIMS_REQUIRE=postgresql` makes a failure."""
    if "postgresql" in os.environ.get("TRIMS_REQUIRE", "").split(","):
        pytest.fail(why_not())
    pytest.skip(why_not())


@pytest.fixture
def server(_started: Server | None) -> Server:
    if _started is None:
        _lack()
    assert _started is not None
    return _started


@pytest.fixture
def postgresql_url(server: Server) -> str:
    server.execute("DROP SCHEMA public CASCADE")
    server.execute("CREATE SCHEMA public")
    return server.url


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Serve a database to a test that ends its server."""
    if why_not():
        _lack()
    with postgresql() as made:
        yield made
