"""Hooks of pytest that keep how a run ended, for `tools/rerun_failed.py`, which trusts no run that broke off."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

KEY = "trims/exit_status"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Forget how the last run ended: this one may be killed."""
    _keep(session, None)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep how the run ended."""
    _keep(session, int(exitstatus))


def _keep(session: pytest.Session, status: int | None) -> None:
    cache = getattr(session.config, "cache", None)  # a run may do without
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set(KEY, status)
