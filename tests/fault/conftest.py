"""Fixtures of the tests of faults: sessions of the store, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from looking import Asker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon


@pytest.fixture
def new_asker(serve: Callable[..., Daemon]) -> Iterator[Callable[[Daemon], Asker]]:
    """Makes sessions; they end after the test, before the daemons do."""
    made: list[Asker] = []

    def make(daemon: Daemon) -> Asker:
        made.append(Asker(daemon))
        return made[-1]

    yield make
    for asker in made:
        asker.end()


@pytest.fixture
def asker(daemon: Daemon, new_asker: Callable[[Daemon], Asker]) -> Asker:
    """A session of that daemon."""
    return new_asker(daemon)
