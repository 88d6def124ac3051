"""Where a daemon is found: the runtime folder and the names of the sockets in it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTACH_SOCKET = "attach.sock"
CONTROL_SOCKET = "control.sock"
RUNTIME_VARIABLE = "TRIMS_RUNTIME_DIR"


def default_runtime_dir(environment: Mapping[str, str] | None = None) -> Path:
    """`$TRIMS_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/trims`, else a folder of this user under the temporary folder."""
    env = os.environ if environment is None else environment
    if env.get(RUNTIME_VARIABLE):
        return Path(env[RUNTIME_VARIABLE])
    if env.get("XDG_RUNTIME_DIR"):
        return Path(env["XDG_RUNTIME_DIR"]) / "trims"
    return Path(tempfile.gettempdir()) / f"trims-{os.getuid()}"
