"""A template as its host sees it: a process in the program's interpreter that imports, and then forks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from trims.core.errors import LostPeerError
from trims.process import messages
from trims.process.child import Child, Ties
from trims.process.python import LOAD_PACKAGES, run_code
from trims.programs.inside.observe import OLDEST
from trims.programs.inside.protocol import LONG_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.wire.frames import Message

#: Program text of the template: what is there before it counts as the interpreter's own.
_BOOT = f"""
before = set(sys.modules)
if sys.version_info < {OLDEST!r} or sys.implementation.name != "cpython":
    sys.exit("templates need CPython 3.10 or newer, and this is " + sys.version)
{LOAD_PACKAGES}
load_packages({{"trims": sys.argv[1]}})
from trims.programs.inside.template import main
main(before)
"""
_TRIMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Variables that a template starts with and its programs do not: libraries that report their use to their maker would
#: start a thread for it when they are imported.
_QUIET = {"ORT_DISABLE_TELEMETRY": "1"}


class TemplateProcess:
    """Template that was started. Raises OSError.

    Args:
        interpreter: Path.
        flags: Of the interpreter.
        environment: Variables of the program.
        modules: Notes of what the program imports, in this order (see `inside.observed`).
        banned: Modules that it does not import, nor those below them.
        own: Name of the module that the program is; empty for none.
        folder: The program's own, first on its `sys.path`.
        working_folder: While it imports.
        unread: Names of variables; it reports which of them an import reads.

    Attributes:
        child: The process.
        facts: What it reported when it had imported; None before.
        pending: What waits for the answers to forks, in their order.
        since_ns: When it was started, in nanoseconds since 1970.
    """

    def __init__(
        self, interpreter: str, flags: Sequence[str], environment: Mapping[str, str], modules: Sequence[str], *,
        banned: Sequence[str], own: str, folder: str, working_folder: str, unread: Sequence[str],
    ) -> None:  # fmt: skip
        self.modules = list(modules)
        self.facts: Message | None = None
        self.pending: deque[Any] = deque()
        self.since_ns = time.time_ns()
        self._output = os.memfd_create("trims-template", os.MFD_CLOEXEC)
        self._progress = os.memfd_create("trims-template-progress", os.MFD_CLOEXEC)
        try:
            ties = Ties()
            numbers = [str(number) for number in (*ties.fds, self._output, self._progress)]
            self.child = Child(
                run_code(_BOOT, _TRIMS, *numbers, python=interpreter, flags=flags), ties,
                fds=[self._output, self._progress], leads=False, stdout=self._output, stderr=self._output,
                env={**_QUIET, **environment}, cwd=working_folder if os.path.isdir(working_folder) else "/",
            )  # fmt: skip
        except BaseException:
            os.close(self._output)
            os.close(self._progress)
            raise
        try:
            message = {
                "op": "import", "modules": self.modules, "banned": list(banned), "own": own, "folder": folder,
                "unread": list(unread),
            }  # fmt: skip
            messages.send(self.child.socket, message, long=True)
            self.child.socket.setblocking(False)
        except LostPeerError:
            pass  # it has ended, which is heard next
        except BaseException:
            self.close()
            raise

    def receive(self) -> tuple[Message, list[int]] | None:
        """Return its next message; None once it is gone. Raises BlockingIOError if there is none yet."""
        return messages.receive(self.child.socket, long_bytes=LONG_BYTES)

    def last_module(self) -> str:
        """Return the module that it imported last, or was importing; empty text if it had not begun."""
        index = os.pread(self._progress, 8, 0)
        return self.modules[int.from_bytes(index, "little")] if index else ""

    def last_words(self) -> str:
        """Return the end of what it printed."""
        size = os.fstat(self._output).st_size
        return os.pread(self._output, 400, max(0, size - 400)).decode(errors="replace").strip()

    def memory_bytes(self) -> int:
        """Return the memory that it takes, shared pages in parts. Raises OSError."""
        with open(f"/proc/{self.child.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))

    def kill(self) -> None:
        """Kill it, and what its imports have started, and wait for its end. Its programs live on. Idempotent."""
        if self.child.status is None:
            with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.kill()
            self.child.wait()

    def close(self) -> None:
        """Kill it, and give back what it took here. Idempotent."""
        self.kill()
        self.child.close()
        for fd in (self._output, self._progress):
            if fd >= 0:
                os.close(fd)
        self._output = self._progress = -1
