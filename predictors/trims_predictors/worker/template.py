"""The template's process: it has imported a framework, has one thread, and forks predictors in milliseconds.

Standard library only until a message names the modules to import. It touches no device and connects nowhere: its
socket to the supervisor is the only one. Messages are those of `fork_loop`. It begins with {"op": "here"} and pidfds of
itself and its guard; "imported" says which modules have `failed`, and why it is `unfit`, if it is; a fork gets three
descriptors: the predictor's socket, the lifeline and what it prints to.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from trims.core.errors import LostPeerError, NotSupportedError
from trims.process import messages, subreaper
from trims.process.inherited import favour_none
from trims.process.lifeline import depend_on
from trims.templates import reaper
from trims.templates.fork_loop import ForkLoop, freeze
from trims.templates.randomness import reseed
from trims.trace.children import BEGINS
from trims_predictors.frameworks import threads
from trims_predictors.sandbox.landlock import restrict
from trims_predictors.worker import worker
from trims_predictors.worker.start import begin

if TYPE_CHECKING:
    from collections.abc import Collection

    from trims.templates.randomness import Reseeder
    from trims.wire.frames import Message

#: Seconds between the end of a predictor and the look for what it has left, so that forks do not wait for it.
_SWEEP_S = 0.1


class Template(ForkLoop):
    """Template of predictors.

    Args:
        runtime_dir: Folder of the daemon's sockets, for its predictors.
        told: Reports to the guard.
        writable: The one folder that predictors may write to; empty if each has its user's rights.
    """

    def __init__(
        self, sock: socket.socket, lifeline: int, runtime_dir: str, reports: reaper.Reports, writable: str = ""
    ) -> None:
        super().__init__(sock, lifeline)
        self._reports = reports
        self._runtime_dir = runtime_dir
        self._writable = writable
        #: Folder in which predictors have folders of their own; asked for now, because it takes room to find out.
        self._temporary = tempfile.gettempdir() if writable else ""
        #: Functions by which plug-ins seed each predictor. `_repeats`: why forks would repeat random numbers, or None.
        self._reseeders: list[Reseeder] = []
        self._repeats: str | None = None
        #: Processes that modules have started, such as multiprocessing's tracker of resources.
        self._helpers: set[int] = set()
        #: Moment of the next look for what predictors have left; None if none has ended since.
        self._sweep_s: float | None = None

    def serve(self) -> None:
        """Carry out messages and bury predictors until the supervisor lets go."""
        own = os.pidfd_open(os.getpid())  # the supervisor may be in another namespace, where numbers are others
        guarding = os.pidfd_open(os.getppid())
        messages.send(self._sock, {"op": "here"}, [own, guarding])
        messages.close_all([own, guarding])
        super().serve()

    def _import(self, message: Message) -> Message:
        failed = {}
        for module in message["modules"]:
            try:
                importlib.import_module(module)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever one does, the others are wanted still
                failed[module] = f"{type(error).__name__}: {error}"[:200]
        threads.warm_up_template(message["modules"])
        for pid in set(subreaper.children()) - set(self._children.values()) - self._helpers:
            self._helpers.add(pid)
            self._reports.report(reaper.HELPS, pid)
        try:
            self._reseeders, self._repeats = freeze(), None
        except NotSupportedError as error:
            self._repeats = str(error)
        return {"op": "imported", "failed": failed, "unfit": self._blocker(())}

    def _blocker(self, own: Collection[int]) -> str | None:
        return self._repeats or super()._blocker(own)

    def _fork(self, message: Message, fds: list[int]) -> tuple[int, Message]:
        del message
        began_ns = time.monotonic_ns()
        pid = os.fork()
        if pid == 0:
            self._be_predictor(*fds)
        self._reports.report(reaper.BEGUN, pid)
        return pid, {"stages": {"fork_s": (time.monotonic_ns() - began_ns) / 1e9}, BEGINS: [began_ns]}

    def _be_predictor(self, theirs: int, lifeline: int, output: int) -> None:
        """Run a predictor in the child; never returns into the template's code."""
        status = 70
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            os.setsid()
            self._leave()
            self._reports.close()
            if self._writable:  # once more, which makes a border between this predictor and the others
                restrict([self._writable])
                _use_folder(self._folder_of(os.getpid()))
            reseed(self._reseeders)
            sock = socket.socket(fileno=theirs)
            worker.run(sock, lifeline, self._runtime_dir, confined=bool(self._writable))
            status = 0
        except BaseException:  # noqa: BLE001 - nothing may get back into the template's code
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _ended(self, pid: int) -> Message:
        self._reports.report(reaper.ENDED, pid)
        self._sweep_s = time.monotonic() + _SWEEP_S
        if self._writable:
            shutil.rmtree(self._folder_of(pid), ignore_errors=True)
        return {}

    def _folder_of(self, pid: int) -> str:
        """Return the folder of the temporary files of a predictor in a namespace."""
        return os.path.join(self._temporary, f"predictor-{pid}")

    def _turn(self) -> float | None:
        """End what predictors have left behind: none but those that have ended hands anything to this process."""
        if self._sweep_s is not None and time.monotonic() >= self._sweep_s:
            left = subreaper.end_strays({*self._children.values(), *self._helpers})
            self._sweep_s = time.monotonic() + _SWEEP_S if left else None
        return None if self._sweep_s is None else _SWEEP_S * 1000


def _use_folder(folder: str) -> None:
    os.mkdir(folder, 0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def main() -> None:
    """Entry: the descriptors and the folder of the daemon's sockets are the arguments."""
    options = begin()
    favour_none()  # before the guard is another process
    reports = reaper.guarded(options.lifeline, options.socket)
    subreaper.adopt()
    depend_on(options.lifeline)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=options.socket)
    with contextlib.suppress(LostPeerError):
        Template(sock, options.lifeline, options.runtime_dir, reports, options.writable).serve()


if __name__ == "__main__":
    main()
