"""The child's half of a conversion: what runs in the converter process.

Started by `trims.formats.conversion.child_process` in whatever environment a manifest asks for: standard library only
until the requested converter imports its framework. Requests come one at a time over a socket; the answer is
`{"error": code, "message": ...}` or the result. The process ends with its socket, or is killed, and all that it has
started ends with it.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.abc
import importlib.util
import json
import logging
import os
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError, ConversionError, NotSupportedError, TrimsError
from trims.formats.base import Artifact
from trims.image.descriptors import explain_descriptors
from trims.image.modules_beside import load_name
from trims.memory.shortage import lacks_memory
from trims.process import messages
from trims.process.forks import parent_only
from trims.process.lifeline import depend_on, end_group
from trims.process.packages import install_words
from trims.trace.children import Reporter
from trims.trace.spans import span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec

    from typing_extensions import Self

    from trims.image.plan import ImagePlan

#: Progress below this step is not worth a message.
_PROGRESS_STEP_BYTES = 4 << 20
#: Characters of an error: names out of an artifact may be of any length.
_MAX_MESSAGE = 10_000
#: Bytes of a request, which the daemon sends.
_MOST_BYTES = 1 << 30
_MAX_WARNINGS, _MAX_WARNING = 20, 1000

#: Names of spans, by what is asked.
_SPANS = {
    "plan": "convert plan", "write": "convert write", "names": "file names", "build": "convert build",
    "versions": "versions",
}  # fmt: skip


class Child:
    """Carries out requests until its socket ends."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._plan: ImagePlan | None = None
        self._told_bytes = 0
        self._subject = "the converter"
        self._own = os.getpid()
        self._spans = Reporter()

    def serve(self) -> None:
        """Answer requests until the parent hangs up."""
        while (request := self._next()) is not None:
            message, fds = request
            self._subject = str(message.get("call") or (message.get("files") or [self._subject])[0])
            try:
                with parent_only(self._own), self._spans.recorded(message), span(_SPANS[message["do"]]):
                    answer = self._carry_out(message, fds)
            except Exception as error:  # noqa: BLE001 - whatever a framework or an author's code raises is an answer
                answer = _refusal(error, self._subject)
            finally:
                for fd in fds:
                    os.close(fd)
            self._send(self._spans.add(message, answer))

    def _next(self) -> tuple[dict[str, Any], list[int]] | None:
        with parent_only(self._own):  # a handler of signals may fork while nothing is asked
            return messages.receive(self._door, long_bytes=_MOST_BYTES)

    def _carry_out(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        do: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]]
        do = {"plan": self._make_plan, "write": self._write, "names": _names, "build": _build, "versions": _versions}
        return do[message["do"]](message, fds)

    def _make_plan(self, message: dict[str, Any], _: list[int]) -> dict[str, Any]:
        files = tuple(Path(name) for name in message["files"])
        artifact = Artifact(message["format"], files, message["options"], message.get("origin", ""))
        with _Warnings() as warnings:
            self._plan = load_name(message["converter"], "the converter")().plan(artifact)
        return {"planned_bytes": self._plan.nbytes, "warnings": warnings.texts}

    def _write(self, _: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        assert self._plan is not None
        self._plan.write(fds[0], self._progress)
        return {"written": True}

    def _progress(self, done_bytes: int) -> None:
        if done_bytes - self._told_bytes >= _PROGRESS_STEP_BYTES:
            self._told_bytes = done_bytes
            self._send({"progress": done_bytes})

    def _send(self, message: dict[str, Any]) -> None:
        messages.send(self._door, message, long=True)


class _Lent(importlib.abc.MetaPathFinder):
    """Import finder that lends this process named packages of the parent's environment, and no others.

    The others would shadow those of this environment.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """See `importlib.abc`."""
        del path, target
        file = self._files.get(fullname)
        if file is None:
            return None
        folder = [str(Path(file).parent)] if Path(file).name == "__init__.py" else None
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=folder)


class _Warnings(logging.Handler):
    """Warnings of the block, for the parent to log: the child has no log of its own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if len(self.texts) < _MAX_WARNINGS:
            self.texts.append(record.getMessage()[:_MAX_WARNING])

    def __enter__(self) -> Self:
        logging.getLogger("trims").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("trims").removeHandler(self)


def _names(message: dict[str, Any], _: list[int]) -> dict[str, Any]:
    chosen = load_name(message["converter"], "the converter")()
    return {"names": chosen.names_here(Path(message["files"][0]), message["options"])}


def _build(message: dict[str, Any], _: list[int]) -> dict[str, Any]:
    function = load_name(message["call"], "the builder")
    main = function(Path(message["out_dir"]), **message["args"])
    if main is not None and not isinstance(main, str):
        raise ArtifactError(f"the builder {message['call']} returned {main!r:.100}; it must return a file name or None")
    return {"built": main}


def _versions(message: dict[str, Any], _: list[int]) -> dict[str, Any]:
    from trims.formats.conversion.environments import installed_versions

    return {"versions": installed_versions(message["names"], sys.path)}


def _refusal(error: Exception, what: str) -> dict[str, Any]:
    if isinstance(error, OSError):
        error = explain_descriptors(error)
    if isinstance(error, TrimsError):
        return {"error": error.code, "message": str(error)[:_MAX_MESSAGE]}
    if isinstance(error, ModuleNotFoundError):
        remedy = f"install it there: {install_words(str(error.name), sys.executable)}"
        return {"error": NotSupportedError.code, "message": f"{what}: {sys.prefix} has no {error.name!r}; {remedy}"}
    text = f"{what}: {type(error).__name__}{f': {error}' if str(error) else ''}"[:_MAX_MESSAGE]
    return {"error": ConversionError.code, "message": text, "memory": lacks_memory(error)}


def _limit_memory(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        memory_bytes = min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def main() -> None:
    """Entry of the child, which does not return. Arguments: those of its ties, limits as JSON."""
    door_fd, lifeline, config = int(sys.argv[2]), int(sys.argv[4]), json.loads(sys.argv[5])
    depend_on(lifeline)  # even a thread that is stuck in C ends with the daemon
    os.set_inheritable(lifeline, False)
    os.set_inheritable(door_fd, False)
    faulthandler.enable()
    sys.path[:0] = config["paths"]
    sys.meta_path.append(_Lent(config["lent"]))
    _limit_memory(config["memory_bytes"])
    with socket.socket(fileno=door_fd) as door:
        Child(door).serve()
    end_group()
