"""Functions: the forms in which a handler gets its model, and an exception of other people's code as facts.

Wherever a handler runs (`trims.faas`, `trims call`, the endpoint), what it raises is reported by these facts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

#: Forms in which a handler may get its model.
FORMS = ("weights", "torch", "onnxruntime", "mxnet")
#: Packages of trims: frames of their modules say nothing of a user's code.
_OURS = frozenset({"trims", "trims_client", "trims_predictors", "trims_bench"})
#: Part of the paths of installed packages and of the standard library.
_INSTALLED = re.compile(r"/(lib(64)?/python\d[^/]*|site-packages|dist-packages)/")
#: Characters of an exception's message.
_MOST_LETTERS = 2000


class Raised(NamedTuple):
    """An exception, and where it was raised.

    Attributes:
        message: Text of the exception; empty if it has none, or if making one fails.
        file: Path of the file; empty if no frame has one.
        line: Number of the line, from 1; 0 without a file.
        function: Name of the function; `<module>` for code of an import.
    """

    type: str
    message: str
    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def place(self) -> str:
        """Return `file:line in function`, the file without its folder; empty without a file."""
        return f"{self.file_name}:{self.line} in {self.function}" if self.file else ""

    @property
    def file_name(self) -> str:
        """Return the name of the file, without the folder that it lies in."""
        return self.file.rpartition("/")[2]

    def facts(self) -> dict[str, str | int]:
        """Return what a client learns of the exception: of the file its name, and not in which folder it lies."""
        return {**self._asdict(), "file": self.file_name}

    def __str__(self) -> str:
        """Return type, message and place in one text."""
        what = f"{self.type}: {self.message}" if self.message else self.type
        return f"{what} ({self.place})" if self.place else what


def raised(error: BaseException) -> Raised:
    """Return the facts of an exception: its place is the last line of the user's own code, else of any code."""
    frames = list(_frames(error.__traceback__))
    chosen = [each for each in frames if each[3]] or frames
    kind, message = type(error).__name__, _message(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Raised(kind, error.msg or message, error.filename, error.lineno, "<module>")
    return Raised(kind, message, *chosen[-1][:3]) if chosen else Raised(kind, message)


def raised_of(facts: object) -> Raised | None:
    """Return what another process reports of an exception; None for what is no such report."""
    if not isinstance(facts, (list, tuple)) or len(facts) != len(Raised._fields):
        return None
    kind, message, file, line, function = facts
    texts = (kind, message, file, function)
    if not all(isinstance(each, str) for each in texts) or isinstance(line, bool) or not isinstance(line, int):
        return None
    kind, message, file, function = (each.encode("utf-8", "replace").decode() for each in texts)
    return Raised(kind, message, file, line, function)


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int, str, bool]]:
    """Yield file, line and function of each frame that is not of trims, and whether it is the user's own."""
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        file = code.co_filename
        if module.partition(".")[0] not in _OURS and not file.startswith("<frozen"):
            yield file, trace.tb_lineno, code.co_name, _is_own(file)
        trace = trace.tb_next


def _is_own(file: str) -> bool:
    """Return whether a file is neither of the standard library nor of an installed package."""
    return _INSTALLED.search(file) is None


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the class of an exception may be a user's, with a method that is broken
        return ""
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
