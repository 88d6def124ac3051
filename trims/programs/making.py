"""The making of a program's template: from what its first run imports, then without what makes it unfit, or with more.

Modules that leave a process unfit to be forked are left out, one try after the other. Later programs may import more
than the first one did; then a further template is made, while the one before it is in use.
"""

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
from trims.programs.freshness import Files, site_files
from trims.programs.inside.observe import OLDEST
from trims.programs.inside.observed import MARKS, is_within, read_names
from trims.programs.inside.protocol import LONG_BYTES

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence

    from trims.wire.frames import Message

#: Seconds without a new import after which a program that still runs counts as started.
_QUIET_S = 2.0
#: Templates that are tried, each without the modules that have made the last unfit.
_MOST_ROUNDS = 24
#: Seconds that a template may take to import.
_IMPORT_S = 300.0
#: Times that a template is made again because its programs import more.
_MOST_RENEWALS = 16
#: Seconds before another try after one that has read files while they were written.
_TORN_PAUSE_S = 0.1
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


class UnfitError(Exception):
    """The program cannot have a template; the message says why."""


class TemplateProcess:
    """Template as its host sees it: a process in the program's interpreter that imports, and then forks.

    Args:
        plan: Plan of `host.Host`.
        modules: Notes of what the program imports, in this order (see `inside.observed`).
        banned: Modules that it does not import, nor those below them.

    Attributes:
        facts: What it reported when it had imported; None before.
        pending: What waits for the answers to forks, in their order.
        since_ns: When it was started, in nanoseconds since 1970.

    Raises OSError.
    """

    def __init__(self, plan: Message, modules: Sequence[str], banned: Sequence[str]) -> None:
        self.modules = list(modules)
        self.facts: Message | None = None
        self.pending: deque[Any] = deque()
        self.since_ns = time.time_ns()
        self._output = os.memfd_create("trims-template", os.MFD_CLOEXEC)
        self._progress = os.memfd_create("trims-template-progress", os.MFD_CLOEXEC)
        try:
            ties = Ties()
            numbers = [str(number) for number in (*ties.fds, self._output, self._progress)]
            folder = plan["working_folder"] if os.path.isdir(plan["working_folder"]) else "/"
            self.child = Child(
                run_code(_BOOT, _TRIMS, *numbers, python=plan["interpreter"], flags=plan["flags"]), ties,
                fds=[self._output, self._progress], leads=False, stdout=self._output, stderr=self._output,
                env={**_QUIET, **plan["environment"]}, cwd=folder,
            )  # fmt: skip
        except BaseException:
            os.close(self._output)
            os.close(self._progress)
            raise
        try:
            known = {key: plan[key] for key in ("own", "folder", "unread", "loaders")}
            message = {"op": "import", "modules": self.modules, "banned": list(banned), **known}
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


class Making:
    """Making of the templates of one program.

    Args:
        plan: Plan of `host.Host`.
        names: Memory in which the first run notes what it imports.

    Attributes:
        coming: The template that is importing; None if there is none.
        left_out: Modules that no template has, and why.
        failed: Modules whose import failed, and why: templates do without them, too.
    """

    def __init__(self, plan: Message, names: mmap.mmap) -> None:
        self.coming: TemplateProcess | None = None
        self.left_out: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._plan = plan
        self._names = names
        self._learned: list[str] = []
        #: Modules of the top level that are the program's own.
        self._foreign: set[str] = set()
        self._rounds = 0
        self._renewals = 0
        self._seen = (0, time.monotonic())
        #: Modules that are left out because they import what no program was seen to import: these.
        self._otherwise: dict[str, set[str]] = {}
        #: End of the notes that a try was made of while the first run went on; 0 for a try of all its notes.
        self._tried = 0
        self._import_until_s = 0.0

    def begin(self) -> None:
        """Begin with what the first run has imported until now. Raises UnfitError."""
        self._learned = read_names(self._names)[0]
        self._tried = 0
        self._begin_template()

    def begin_when_quiet(self, now_s: float) -> None:
        """Begin if the first run has imported something, and nothing more for a while.

        It may be in the middle of an import: see `leave_out_culprit`. Raises UnfitError.
        """
        _, end = read_names(self._names, 0)
        if end != self._seen[0]:
            self._seen = (end, now_s)
        elif end > self._tried and now_s - self._seen[1] > _QUIET_S:
            self.begin()
            self._tried = end

    def read_first_run(self) -> None:
        """Learn what the first run has imported, now that it has ended. Raises UnfitError."""
        self.learn(read_names(self._names)[0])

    def learn(self, modules: Sequence[str]) -> None:
        """Begin once more if programs have imported modules that the template does not know. Raises UnfitError."""
        self._tried = 0
        seen = {*self._learned, *modules}
        as_seen = [name for name, others in self._otherwise.items() if name in modules and others <= seen]
        for name in as_seen:
            del self._otherwise[name], self.left_out[name]
        known = {*self._learned, *self.failed}
        others = [name for name in modules if name not in known and not is_within(name, self.left_out)]
        new = [name for name in others if name[0] not in MARKS and name.partition(".")[0] not in self._foreign]
        if (new or as_seen) and self.coming is None and self._renewals < _MOST_RENEWALS:
            self._renewals += 1
            self._learned += others
            self._begin_template()

    def take(self, facts: Message) -> tuple[TemplateProcess, Files] | None:
        """Return the template that has imported, and the files that it depends on.

        Args:
            facts: What it reports.

        Returns:
            None if another try has begun, because files were written while it read them.

        Raises:
            UnfitError: There is no other try.
        """
        template = self.coming
        assert template is not None
        template.facts = facts
        if facts["seconds"] < self._plan["least_saving_s"]:
            self.close()
            raise UnfitError(
                f"its imports take {facts['seconds'] * 1000:.1f} ms, and a template is worth its memory from "
                f"{self._plan['least_saving_s'] * 1000:g} ms on (--least-saving)"
            )
        paths = [*facts["files"], *site_files(facts["prefix"], facts["sites"])]
        files = Files(paths, [*facts["listed"], *facts["sites"]], facts["looked"], template.since_ns)
        if files.torn is not None:
            self.close()
            time.sleep(_TORN_PAUSE_S)
            self._begin_template()
            return None
        self._foreign.update(facts["own"])
        self.failed = facts["failed"]
        self.coming = None
        self._rounds = 0
        return template, files

    def leave_out_culprit(self, modules: Sequence[str], why: str, others: Sequence[str], *, runs: bool) -> None:
        """Begin once more, without modules that have made the template unfit. Raises UnfitError.

        Args:
            modules: Modules of which one is the culprit.
            others: What the last one imports and the program was not seen to import; empty for another cause.
            runs: The first run goes on, and may import that yet: then more of its notes are waited for.
        """
        if others and runs and self._tried:
            self.close()
            return
        if others:
            self._otherwise[modules[-1]] = set(others)
        self.leave_out(modules, why)

    def leave_out(self, modules: Sequence[str], why: str) -> None:
        """Begin once more, without modules that have made the template unfit, or killed it. Raises UnfitError."""
        self.close()
        new = [name for name in modules if name and not is_within(name, self.left_out)]
        if not new:
            raise UnfitError(why)
        self.left_out.update(dict.fromkeys(new, why))
        self._begin_template()

    def leave_out_last(self) -> None:
        """Begin once more, without the module whose import has ended the template. Raises UnfitError."""
        assert self.coming is not None
        words = self.coming.last_words()
        self.leave_out([self.coming.last_module()], f"the template ended while it imported it: {words[-200:]}")

    def leave_out_slow(self, now_s: float) -> None:
        """Begin once more, without a module whose import takes too long, if one does. Raises UnfitError."""
        if self.coming is not None and now_s > self._import_until_s:
            self.leave_out([self.coming.last_module()], f"it was not imported within {_IMPORT_S:g} s")

    def close(self) -> None:
        """End the template that is importing. Idempotent."""
        coming, self.coming = self.coming, None
        if coming is not None:
            coming.close()

    def _begin_template(self) -> None:
        self._rounds += 1
        if self._rounds > _MOST_ROUNDS:
            left = ", ".join(list(self.left_out)[:5])
            raise UnfitError(f"no template can be made of what it imports: {left} and others cannot be in one")
        try:
            self.coming = TemplateProcess(self._plan, self._learned, list(self.left_out))
        except OSError as error:
            raise UnfitError(f"{self._plan['interpreter']} cannot be started: {error}") from error
        self._import_until_s = time.monotonic() + _IMPORT_S
