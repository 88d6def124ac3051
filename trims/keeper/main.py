"""`python -m trims.keeper.main`: the keeper of one device. It outlives the daemon that started it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from trims.core.errors import DaemonAwayError, TrimsError
from trims.keeper.client import KeeperConnection
from trims.keeper.keeper import Keeper
from trims.keeper.server import KeeperServer
from trims.logs import configure_child
from trims.memory.cuda.connect import connect
from trims.trace import spans

_LOOK_AGAIN_S = 0.02


def main(arguments: list[str] | None = None) -> int:
    """Serve until the order `end`. Return the exit status: 0, or 1 with a line on stderr if the keeper cannot start.

    With --detach a child process serves, and this returns 0 as soon as it does.
    """
    options = _parse(arguments)
    if options.detach is not None:
        # Fork before anything touches the driver, which does not survive a fork.
        child = os.fork()
        if child:
            return _await(child, options.socket)
        _detach(options.detach)
    configure_child()
    spans.configure_from_environment("keeper")
    try:
        keeper = Keeper(
            connect(options.cuda),
            options.device,
            options.driver,
            idle_s=options.idle_s,
            verify_fills=not options.trust_copies,
        )
        server = KeeperServer(keeper, options.socket)
    except TrimsError as error:
        print(f"trims-keeper: {error}", file=sys.stderr)  # noqa: T201 - `launch` reads this
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end())
    if not server.serve():
        spans.stop()
        os._exit(1)  # a normal exit would wait for threads that hang in the driver
    spans.stop()
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trims-keeper", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="where to serve")
    parser.add_argument("--device", required=True, help="UUID of the GPU")
    parser.add_argument("--driver", default="auto", help="how to share its memory: auto, vmm or ipc")
    parser.add_argument("--cuda", default="driver", help="`driver`, or a fake")
    parser.add_argument("--idle-s", type=float, default=10.0, help="seconds after which an idle mover ends")
    parser.add_argument("--trust-copies", action="store_true", help="do not verify what is copied to the device")
    parser.add_argument("--detach", type=Path, metavar="LOG", help="go on in the background and write to this file")
    return parser.parse_args(arguments)


def _detach(log_path: Path) -> None:
    """Start a new session, so that no signal to the daemon's group ends the keeper. Its output goes to the log."""
    os.setsid()
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for source, target in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)


def _await(child: int, path: Path) -> int:
    """Return 0 once the child serves, else the child's exit status, or 1 if that is 0."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) or 1
        try:
            KeeperConnection(path).close()
        except DaemonAwayError:
            time.sleep(_LOOK_AGAIN_S)
        else:
            return 0


if __name__ == "__main__":
    sys.exit(main())
