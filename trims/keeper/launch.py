"""Finding the keeper of a device, or starting one. It is detached, not a child: it outlives the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import DaemonAwayError, DeviceLostError, NotSupportedError
from trims.keeper.client import KeeperConnection
from trims.process.child_environment import FRAMEWORKS, child_environment
from trims.process.oneshot import run
from trims.process.python import run_module

if TYPE_CHECKING:
    from pathlib import Path

_START_S = 60.0
_SHOWN_LETTERS = 2000


def find_keeper(
    folder: Path,
    uuid: str,
    *,
    cuda: str = "driver",
    driver: str = "auto",
    idle_s: float = 10.0,
    verify_fills: bool = True,
) -> Path:
    """Return the socket of the device's keeper, which serves when this returns; start a keeper if there is none.

    Args:
        folder: Holds socket, lock and log; mode 0700.
        cuda: Argument of `trims.memory.cuda.connect.connect`.
        driver: `auto`, `vmm` or `ipc`.
        idle_s: Seconds after which the keeper ends an idle mover, or gives an idle context back.
        verify_fills: Whether it checks what it has copied to the device.

    Raises:
        NotSupportedError: The keeper did not start; the message has the end of its log.
    """
    path = folder / f"{uuid}.sock"
    if not _serves(path):
        options = ["--device", uuid, "--cuda", cuda, "--driver", driver, "--idle-s", str(idle_s)]
        _start(path, options if verify_fills else [*options, "--trust-copies"])
    return path


def _serves(path: Path) -> bool:
    """Return whether a keeper answers there. A connection alone proves nothing: the keeper may be ending."""
    try:
        with KeeperConnection(path) as connection:
            connection.hello()
    except (DaemonAwayError, DeviceLostError):
        return False
    return True


def _start(path: Path, options: list[str]) -> None:
    log_path = path.with_suffix(".log")
    command = run_module("trims.keeper.main", "--socket", str(path), "--detach", str(log_path), *options)
    try:
        ended = run(command, seconds=_START_S, env=child_environment(FRAMEWORKS))
    except TimeoutError:
        raise NotSupportedError(f"a keeper did not serve at {path} within {_START_S:.0f} s; see {log_path}") from None
    if ended.status != 0:
        said = log_path.read_text(errors="replace") if log_path.exists() else ended.err
        words = said[-_SHOWN_LETTERS:].strip() or "it gave no reason"
        raise NotSupportedError(f"the keeper at {path} did not start: {words}")
