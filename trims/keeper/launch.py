"""Finding the keeper of a device, or having one started: no child of the daemon, so that it lives on when that ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from trims.core.errors import DaemonAwayError, DeviceLostError, NotSupportedError
from trims.keeper.client import KeeperConnection

if TYPE_CHECKING:
    from pathlib import Path

_START_S = 60.0
_SHOWN_BYTES = 2000


def find_keeper(folder: Path, uuid: str, *, cuda: str = "driver", driver: str = "auto", idle_s: float = 10.0) -> Path:
    """The socket of the device's keeper, which serves when this returns.

    Args:
        folder: For socket, lock and log; mode 0700.
        uuid: Of the device.
        cuda: For `trims.memory.cuda.api.connect`.
        driver: `auto`, `vmm` or `ipc`.
        idle_s: Seconds after which it gives an idle context back.

    Raises:
        NotSupportedError: It would not start; the message is what it said last.
    """
    path = folder / f"{uuid}.sock"
    if not _serves(path):
        _start(path, ["--device", uuid, "--cuda", cuda, "--driver", driver, "--idle-s", str(idle_s)])
    return path


def _serves(path: Path) -> bool:
    """One that answers: a connection alone may have been taken by a keeper that is just ending."""
    try:
        with KeeperConnection(path) as connection:
            connection.hello()
    except (DaemonAwayError, DeviceLostError):
        return False
    return True


def _start(path: Path, options: list[str]) -> None:
    log_path = path.with_suffix(".log")
    command = [sys.executable, "-m", "trims.keeper.main", "--socket", str(path), "--detach", str(log_path), *options]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_START_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotSupportedError(f"a keeper did not serve at {path} within {_START_S:.0f} s; see {log_path}") from None
    if ended.returncode != 0:
        said = log_path.read_bytes() if log_path.exists() else ended.stderr
        words = said[-_SHOWN_BYTES:].decode(errors="replace").strip() or "it said nothing"
        raise NotSupportedError(f"the keeper at {path} did not start: {words}")
