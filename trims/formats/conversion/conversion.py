"""Turning an artifact into an image: one interface, whether it happens here or in a child.

The store calls `plan`, makes room, calls `write`; minutes may lie between. A converter that runs foreign code gets a
child with limits (`trims.formats.conversion.child_process`), and so does an artifact with more to parse than other
threads can wait for; one that only copies bytes runs in the calling thread. The image is validated before it is sealed,
not here. `recipe` says what besides the artifact's bytes decides the image.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from trims.background.task import Order, SourceFailedError, Task
from trims.core.errors import ArtifactError, ConversionError, ImageError, InternalError
from trims.formats.base import is_measurable
from trims.formats.conversion.child_process import LimitedChild
from trims.formats.plugins import converter, detect, naming_foreign
from trims.formats.torch.state import SKELETON_VERSION
from trims.image.copy_plan import as_order, is_carriable, stamp
from trims.image.host import cpu_features
from trims.image.modules_beside import builder_facts
from trims.image.peek import PARSE_HERE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from trims.formats.base import Artifact, Converter, Limits
    from trims.formats.conversion.environments import Environment
    from trims.image.plan import ImagePlan

    #: Function that does a task and reports the bytes done so far; returns the digests by name, or None when a request
    #: starts waiting.
    CopyPlanBy = Callable[[Order, Callable[[int], None]], dict[str, str] | None]

log = logging.getLogger(__name__)
#: Warnings of one child that are logged at most: its output is not trusted to be short.
_MAX_WARNINGS = 20
#: Reason why most conversions are stopped.
NOT_NEEDED = "no request waits for it any more"
_CLOSED = "it was closed before its end"

__all__ = ["NOT_NEEDED", "Conversion", "builder_of_options", "converter", "detect", "recipe", "start_conversion"]


class Conversion(ABC):
    """One artifact on its way to an image. A context manager; `plan` once, then `write` once, from any thread."""

    @abstractmethod
    def plan(self) -> int:
        """Plan the conversion. Return the length of the image in bytes.

        Raises ArtifactError for what is wrong with the files, ConversionError for a converter that died, was
        stopped or broke a limit, NotSupportedError for an environment that lacks something, CapacityError where no
        descriptor is left to open a file or start a child.
        """

    @abstractmethod
    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        """Write the image; afterwards only the caller can reach the descriptor's memory.

        Args:
            fd: Read-write, of exactly the planned size, allocated and zeroed. The caller keeps it.
            on_progress: Called in this thread with the bytes of weights written so far.

        Raises: as `plan`.
        """

    @property
    def is_carriable(self) -> bool:
        """Return whether, once planned, all of the image lies in files, so that `carry` can have it put together."""
        return False

    def carry(self, by: CopyPlanBy, fd: int, *, large_pages: bool) -> str | None:
        """Have another process put the image together, in place of `write`. For an image that `is_carriable`.

        Args:
            by: Does a task.
            fd: Read-write, of exactly the planned size, zeroed. The caller keeps it.
            large_pages: Whether it is memory that may be had in large pages.

        Returns:
            blake3 of the image, hex; None when a request starts waiting: the caller then calls `write`.

        Raises: as `plan`; OSError if the target cannot be written.
        """
        raise InternalError(f"{by}, {fd}, {large_pages}: an image that is not carriable was to be carried")

    def give_way(self, *, yes: bool) -> None:  # noqa: B027 - most conversions have no process of their own
        """Have a converter process take a tenth of what other programs do while these compute, or as much again.

        From any thread, returns at once. What is converted in this process goes on as it does.
        """

    @abstractmethod
    def cancel(self, why: str = NOT_NEEDED) -> None:
        """Make `plan` and `write`, running or to come, raise ConversionError. From any thread, returns at once.

        Args:
            why: The end of the sentence "its conversion was stopped: ". The first reason given stays.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop what still runs and give everything back. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_conversion(
    artifact: Artifact, *, python: Path | None = None, limits: Limits, extra_paths: Sequence[Path] = ()
) -> Conversion:
    """Choose how to convert; nothing is read or started before `plan`.

    Args:
        python: Interpreter of the environment its framework lives in; None for this one.
        limits: Memory and time of a child; the time holds without a child as well.
        extra_paths: Folders put in front of a child's `sys.path`: the manifest's own, for its module builders.

    Raises:
        NotSupportedError: No converter has the artifact's format.
    """
    chosen = converter(artifact.format)
    if chosen.needs_child(artifact.options):
        return _ChildConversion(chosen, artifact, python, limits, extra_paths)
    return _ConversionBySize(chosen, artifact, limits)


def is_large(chosen: Converter, artifact: Artifact) -> bool:
    """Return whether planning parses more than this process may while others wait.

    Raises ArtifactError, CapacityError.
    """
    return is_measurable(chosen) and chosen.described_bytes(artifact) > PARSE_HERE_BYTES


class _ConversionBySize(Conversion):
    """A conversion here or in a child of this environment, by how much there is to parse: chosen when it is planned."""

    def __init__(self, chosen: Converter, artifact: Artifact, limits: Limits) -> None:
        self._converter = chosen
        self._artifact = artifact
        self._limits = limits
        self._chosen: Conversion | None = None
        self._gives_way = False
        self._why: str | None = None
        self._lock = threading.Lock()

    def plan(self) -> int:
        if self._why is not None:
            raise _stopped(self._artifact, self._why)
        with naming_foreign(self._artifact.format, self._artifact.files):
            large = is_large(self._converter, self._artifact)
        return self._choose(large=large).plan()

    def _choose(self, *, large: bool) -> Conversion:
        with self._lock:
            if self._chosen is not None:
                raise InternalError("plan() twice")
            if large:
                self._chosen = _ChildConversion(self._converter, self._artifact, None, self._limits, ())
            else:
                self._chosen = _LocalConversion(self._converter, self._artifact, self._limits)
            self._chosen.give_way(yes=self._gives_way)
            if self._why is not None:
                self._chosen.cancel(self._why)
            return self._chosen

    def give_way(self, *, yes: bool) -> None:
        with self._lock:
            self._gives_way = yes
            if self._chosen is not None:
                self._chosen.give_way(yes=yes)

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        with self._lock:
            chosen = self._chosen
        if chosen is None:
            raise _stopped(self._artifact, self._why) if self._why else InternalError("write() before plan()")
        chosen.write(fd, on_progress)

    @property
    def is_carriable(self) -> bool:
        return self._chosen is not None and self._chosen.is_carriable

    def carry(self, by: CopyPlanBy, fd: int, *, large_pages: bool) -> str | None:
        with self._lock:
            chosen = self._chosen
        if chosen is None:
            raise _stopped(self._artifact, self._why) if self._why else InternalError("carry() before plan()")
        return chosen.carry(by, fd, large_pages=large_pages)

    def cancel(self, why: str = NOT_NEEDED) -> None:
        with self._lock:
            self._why = self._why or why
            if self._chosen is not None:
                self._chosen.cancel(why)

    def close(self) -> None:
        self.cancel(_CLOSED)
        if self._chosen is not None:
            self._chosen.close()


def _stopped(artifact: Artifact, why: str) -> ConversionError:
    return ConversionError(f"{artifact.files[0]}: its conversion was stopped: {why}")


def broken(artifact: Artifact, error: ImageError) -> ArtifactError:
    """Return the error for an artifact that holds what no image may have."""
    return ArtifactError(f"{artifact.files[0]}: {error}; publish the file again")


class _LocalConversion(Conversion):
    """A conversion in the calling thread; stopped between pieces of a few MiB."""

    def __init__(self, chosen: Converter, artifact: Artifact, limits: Limits) -> None:
        self._converter = chosen
        self._artifact = artifact
        self._limits = limits
        self._left_s = limits.time_s
        self._plan: ImagePlan | None = None
        self._why: str | None = None

    def plan(self) -> int:
        self._check(0.0)
        began = time.monotonic()
        try:
            with naming_foreign(self._artifact.format, self._artifact.files):
                self._plan = self._converter.plan(self._artifact)
        except ImageError as error:
            raise broken(self._artifact, error) from error
        self._left_s -= time.monotonic() - began
        self._check(0.0)
        return self._plan.nbytes

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        plan, self._plan = self._plan, None
        self._check(0.0)
        if plan is None:
            raise InternalError("write() before plan(), or twice")
        began = time.monotonic()

        def tick(done_bytes: int) -> None:
            self._check(time.monotonic() - began)
            if on_progress is not None:
                on_progress(done_bytes)

        plan.write(fd, tick)

    @property
    def is_carriable(self) -> bool:
        plan = self._plan
        return plan is not None and is_carriable(plan)

    def carry(self, by: CopyPlanBy, fd: int, *, large_pages: bool) -> str | None:
        plan = self._plan
        self._check(0.0)
        if plan is None:
            raise InternalError("carry() before plan(), or after its end")
        with as_order(plan, fd, large_pages=large_pages) as carried:
            try:
                found = by(carried.order, lambda _: self._check(0.0))
            except SourceFailedError as error:
                raise carried.explain(error) from error
            if found is None:
                return None
            carried.check()
        stamp(plan, fd, found["checksum"])
        try:
            digests = by(Order(Task.of_file(plan.nbytes), [fd]), lambda _: self._check(0.0))
        except SourceFailedError as error:
            raise ImageError(str(error)) from error
        if digests is None:
            return None
        self._plan = None
        return digests["blake3"]

    def _check(self, running_s: float) -> None:
        if self._why is not None:
            raise _stopped(self._artifact, self._why)
        if running_s > self._left_s:
            limit = f"the time limit of {self._limits.time_s:g} s"
            raise ConversionError(f"{self._artifact.files[0]}: not done within {limit}")

    def cancel(self, why: str = NOT_NEEDED) -> None:
        self._why = self._why or why

    def close(self) -> None:
        self.cancel(_CLOSED)
        self._plan = None


class _ChildConversion(Conversion):
    """A conversion in a child process, which lives from `plan` to the end of `write`."""

    def __init__(
        self, chosen: Converter, artifact: Artifact, python: Path | None, limits: Limits, paths: Sequence[Path]
    ) -> None:
        self._converter = chosen
        self._artifact = artifact
        self._python = python
        self._paths = paths
        self._limits = limits
        self._child: LimitedChild | None = None
        self._gives_way = False
        self._planned_bytes = 0
        self._why: str | None = None
        #: Guards `_child` and `_why`; `_busy` is held while a request runs, so that close waits for its end.
        self._lock = threading.Lock()
        self._busy = threading.Lock()

    def plan(self) -> int:
        artifact, kind = self._artifact, type(self._converter)
        message = {
            "do": "plan",
            "converter": f"{kind.__module__}:{kind.__qualname__}",
            "format": artifact.format,
            "files": [str(path) for path in artifact.files],
            "options": dict(artifact.options),
            "origin": artifact.origin,
        }
        with self._busy:
            child = self._start()
            try:
                with naming_foreign(artifact.format, artifact.files):
                    answer = child.request(message)
            except ImageError as error:
                raise broken(self._artifact, error) from error
            self._planned_bytes = child.size_of(answer, "planned_bytes")
        for warning in list(answer.get("warnings", ()))[:_MAX_WARNINGS]:
            log.warning("%s", warning)
        return self._planned_bytes

    def write(self, fd: int, on_progress: Callable[[int], None] | None = None) -> None:
        try:
            with self._busy:
                if self._child is None:
                    raise (
                        _stopped(self._artifact, self._why)
                        if self._why
                        else InternalError("write() before plan(), or twice")
                    )
                self._child.request({"do": "write"}, [fd], on_progress)
        finally:
            self._bury()  # it must not reach the image once the caller seals it

    def _start(self) -> LimitedChild:
        sizes = [path.stat().st_size for path in self._artifact.files if path.exists()]
        with self._lock:
            if self._why is not None:
                raise _stopped(self._artifact, self._why)
            if self._child is not None:
                raise InternalError("plan() twice")
            self._child = LimitedChild(
                str(self._artifact.files[0]),
                python=self._python,
                limits=self._limits,
                free_bytes=sum(sizes),
                extra_paths=self._paths,
                lent=self._packages(),
            )
            if self._gives_way:
                self._child.give_way(yes=True)
            return self._child

    def give_way(self, *, yes: bool) -> None:
        with self._lock:
            self._gives_way = yes
            if self._child is not None:
                self._child.give_way(yes=yes)

    def _packages(self) -> list[str]:
        """Return packages that the child must be able to import: those of the converter and the module builder."""
        names = [type(self._converter).__module__, str(self._artifact.options.get("module", "trims"))]
        return sorted({name.partition(":")[0].partition(".")[0] for name in names} - {"trims"})

    def _bury(self) -> None:
        with self._busy, self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def cancel(self, why: str = NOT_NEEDED) -> None:
        with self._lock:
            self._why = self._why or why
            if self._child is not None:
                self._child.cancel(self._why)

    def close(self) -> None:
        self.cancel(_CLOSED)
        self._bury()


def builder_of_options(artifact: Artifact) -> dict[str, str]:
    """Return the identity, as of now, of the module builder that an artifact's options name; empty without one."""
    call = artifact.options.get("module")
    return builder_facts(artifact.origin, call.partition(":")[0]) if isinstance(call, str) else {}


def recipe(chosen: Converter, artifact: Artifact, environment: Environment) -> dict[str, Any]:
    """Return what decides the image besides the artifact's bytes: the other half of the image key.

    Returns:
        JSON values that are equal when the images would be: format, the converter's version, versions of the
        frameworks found in the environment, the CPU's features where the image depends on them, the options, and
        what is to know of the file of a module builder (see `trims.image.modules_beside`).
    """
    found: dict[str, Any] = {
        "format": chosen.format,
        "converter": chosen.version,
        "options": json.loads(json.dumps(dict(artifact.options), sort_keys=True)),
    }
    if builder := builder_of_options(artifact):
        found["builder"] = builder
    if "module" in artifact.options:
        found["skeleton"] = SKELETON_VERSION
    names = chosen.frameworks(artifact.options)
    if names:
        found["frameworks"] = environment.versions(names)
    if chosen.host_specific:
        found["cpu"] = " ".join(cpu_features())
    return found
