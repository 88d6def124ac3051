"""Output of predictors: passed on line by line, each with its process, and no more than a log can take.

Each process prints to a pipe of its own. A predictor that prints without end is slowed down by its own pipe, most of
its lines are left out, and one line says how many. Characters that would move a terminal's cursor are replaced.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from trims.logs import printed_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bytes that a process may print at once, and in each second after that.
BURST_BYTES = 64 << 10
BYTES_PER_S = 16 << 10
#: Bytes of a line, at most; longer lines are cut into pieces.
LINE_BYTES = 4096
#: Bytes that wait for a log whose reader is slow; more is left out.
WAITING_BYTES = 1 << 20
#: Seconds that the end waits for such a log.
_END_S = 1.0
#: Read in one turn of the event loop, and seconds until the next turn of a process that prints more.
_TURN_BYTES = 256 << 10
_TURN_S = 0.1
_READ_BYTES = 64 << 10


class Output:
    """Output of one process, until it and all that it started have ended.

    Args:
        whose: What stands before each line; empty to pass on all lines as they are.
        write: Takes lines, with their newlines.
        closed: Called once, when nothing more will come.
        line: Makes a line, without its newline, of whose it is, what it is about, and what was printed.

    Attributes:
        facts: What the process works on: the names of its `model` and its `request`, as far as they are known.
    """

    def __init__(
        self,
        whose: str,
        write: Callable[[str], object],
        clock: Callable[[], float],
        closed: Callable[[Output], object],
        line: Callable[[str, Mapping[str, str], str], str],
    ) -> None:
        self.whose = whose
        self.facts: dict[str, str] = {}
        self._line = line
        self._named = bool(whose)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._write = write
        self._clock = clock
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._begun = b""
        #: The end of what it printed since it was given its last work.
        self._last = b""
        self._left_out = 0
        self._lines: list[str] = []
        self._may_bytes, self._at_s = float(BURST_BYTES), clock()
        self._later: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._read_fd, self._readable)

    def fileno(self) -> int:
        """The end for the process that prints."""
        return self._write_fd

    def given(self) -> None:
        """The process has its end, or never will: close it here. Idempotent."""
        if self._write_fd >= 0:
            os.close(self._write_fd)
            self._write_fd = -1

    def _readable(self) -> None:
        left = self._read()
        if left is None:
            self.close()
        elif left:
            self._loop.remove_reader(self._read_fd)
            self._later = self._loop.call_later(_TURN_S, self._read_again)

    def _read(self) -> bool | None:
        """Read what is there, as much as one turn takes; whether more may be there, None at the end of all."""
        took = 0
        while took < _TURN_BYTES:
            try:
                data = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return None
            took += len(data)
            self._take(data)
        return True

    def _read_again(self) -> None:
        self._later = None
        self._loop.add_reader(self._read_fd, self._readable)

    def forget_last(self) -> None:
        """Forget its last words: what it prints from now on is of other work."""
        self._last = b""

    def last_words(self) -> str:
        """Return the end of what it has printed since `forget_last`, with what is still in its pipe."""
        if self._read_fd >= 0:
            self._read()
        return self._last.decode(errors="replace")

    def _take(self, data: bytes) -> None:
        self._last = (self._last + data[-LINE_BYTES:])[-LINE_BYTES:]
        if not self._named:
            self._write(self._decoder.decode(data))
            return
        now_s = self._clock()
        self._may_bytes = min(BURST_BYTES, self._may_bytes + (now_s - self._at_s) * BYTES_PER_S)
        self._at_s = now_s
        if self._may_bytes <= len(self._made("")):  # no line at all: they are counted, and not looked at one by one
            self._begun = data.rpartition(b"\n")[2][:LINE_BYTES]
            self._left_out += data.count(b"\n")
            return
        self._lines = []
        *lines, rest = (self._begun + data).split(b"\n")
        while len(rest) > LINE_BYTES:
            lines.append(rest[:LINE_BYTES])
            rest = rest[LINE_BYTES:]
        self._begun = rest
        for line in lines:
            for begin in range(0, max(1, len(line)), LINE_BYTES):
                self._add_line(line[begin : begin + LINE_BYTES])
        self._write("".join(self._lines))

    def _made(self, text: str) -> str:
        return f"{self._line(self.whose, self.facts, text)}\n"

    def _add_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r").replace("\t", "    ")
        made = self._made(text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text))
        if len(made) > self._may_bytes:
            self._left_out += 1
            return
        self._may_bytes -= len(made)
        self._add_left_out()
        self._lines.append(made)

    def _add_left_out(self) -> None:
        if self._left_out:
            rate = f"more than {BYTES_PER_S >> 10} KiB a second"
            self._lines.append(self._made(f"{self._left_out} lines are left out: it prints {rate}"))
            self._left_out = 0

    def close(self) -> None:
        """Pass on what is in the pipe, and close it. Idempotent."""
        self.given()
        if self._read_fd < 0:
            return
        self._read()
        self._lines = []
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        self._read_fd = -1
        if self._begun:
            self._add_line(self._begun)
            self._begun = b""
        self._add_left_out()
        self._write("".join(self._lines))
        self._closed(self)


class Writer:
    """Writes to a file in a thread of its own: one whose reader has stopped holds up no event loop.

    Args:
        fd: Open for writing; not closed here.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._waiting_bytes = 0
        self._lost = 0
        self._thread: threading.Thread | None = None
        self._closing = False

    def __call__(self, text: str) -> None:
        """Have it written soon. Left out, and counted, if much waits already."""
        if not text:
            return
        with self._changed:
            if self._waiting_bytes + len(text) > WAITING_BYTES:
                self._lost += text.count("\n")
                return
            if self._lost:
                why = f"{self._lost} lines are left out: this log is not read fast enough"
                text = f"{printed_line('predictors', {}, why)}\n{text}"
                self._lost = 0
            self._waiting.append(text)
            self._waiting_bytes += len(text)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="trims-outputs", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                text = "".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
            data = text.encode(errors="replace")
            with contextlib.suppress(OSError):  # a log that is closed takes nothing
                while data:
                    data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Wait a moment for what is still to be written. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_END_S)


class Outputs:
    """The pipes of all processes of one owner, used in its event loop.

    Args:
        write: Takes lines; None for this process's standard error.
        plain: Pass on all lines as they are: for a user who runs one program at a terminal.
    """

    def __init__(
        self,
        write: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        plain: bool = False,
        line: Callable[[str, Mapping[str, str], str], str] = printed_line,
    ) -> None:
        self._plain = plain
        self._line = line
        self._write = write or (_to_standard_error if plain else Writer(2))
        self._clock = clock
        self._open: set[Output] = set()

    def __len__(self) -> int:
        return len(self._open)

    def open(self, whose: str) -> Output:
        """A pipe for one process. Raises OSError without descriptors."""
        made = Output("" if self._plain else whose, self._write, self._clock, self._open.discard, self._line)
        self._open.add(made)
        return made

    def close(self) -> None:
        """Let go of all pipes, with what is in them. Idempotent."""
        for each in list(self._open):
            each.close()
        if isinstance(self._write, Writer):
            self._write.close()


def _to_standard_error(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
