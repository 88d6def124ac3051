"""Notices to sessions: to the door, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.lease import Lease
from trims.core.place import CPU
from trims.store.session_notices import SessionNotices

if TYPE_CHECKING:
    import pytest

LEASE = Lease(7, 3, "key", CPU, 1)


def test_notices_reach_the_door_that_has_subscribed() -> None:
    notices, told = SessionNotices(), []
    notices.subscribe_to_losses(lambda *given: told.append(given))
    notices.subscribe_to_upgrades(lambda *given: told.append(given))
    notices.lost(LEASE, "its keeper has ended")
    notices.upgraded(3, "key")
    assert told == [(LEASE, "its keeper has ended"), (3, "key")]


def test_a_loss_without_a_door_is_logged_with_session_and_lease(caplog: pytest.LogCaptureFixture) -> None:
    notices = SessionNotices()
    notices.lost(LEASE, "its keeper has ended")
    notices.upgraded(3, "key")
    assert [record.args for record in caplog.records] == [(3, 7, "its keeper has ended")]
