"""The daemon that a command asks. Its client, with gRPC, is imported once there is something to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trims.control import Admin


def admin(runtime_dir: str | None) -> AbstractContextManager[Admin]:
    """Connect to the daemon of a runtime folder; None for the default one. See `trims.control.admin`."""
    from trims.control import admin as connect

    return connect(runtime_dir)
