"""Rig of every part of the check: the device, how much to do, and processes that own memory on it.

The check's own process makes no context, so that it can report whatever dies.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.core.errors import LostPeerError, NotSupportedError, TrimsError
from trims.memory.cuda.connect import connect
from trims.memory.cuda.drivers import Export, export_message, export_of
from trims.memory.cuda.survey import survey
from trims.process import messages
from trims.process.python import run_module
from trims.testing.device_borrower import Borrower
from trims.testing.device_memory import CONTENT, Owner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims.memory.cuda.api import Device
    from trims.memory.cuda.drivers import Allocation

DRIVERS = ("vmm", "ipc")
_BEGIN_S = 60.0


class UnavailableError(Exception):
    """A part cannot run here; the message says why."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the check. The defaults are for a device of 100 GiB and more, and take minutes."""

    most_bytes: int = 32 << 30
    copy_bytes: int = 2 << 30
    small_bytes: int = 100 << 20
    large_bytes: int = 8 << 30
    predictor_bytes: int = 2 << 30
    linear_bytes: int = 256 << 20
    linears: int = 24
    predictors: int = 8
    processes: int = 5
    opens: int = 100
    loads: int = 3
    small_models: bool = False


#: Sizes to see that everything works, not how fast; for the fake.
TINY = Sizes(
    8 << 20, 4 << 20, small_bytes=1 << 20, large_bytes=8 << 20, predictor_bytes=4 << 20, linear_bytes=1 << 20,
    linears=2, predictors=2, processes=1, opens=2, loads=1, small_models=True,
)  # fmt: skip


@dataclass
class Rig:
    """One device under examination.

    Attributes:
        kind: Argument of `trims.memory.cuda.connect.connect`.
        work: A folder on a real disk.
    """

    kind: str
    sizes: Sizes
    work: Path

    @cached_property
    def device(self) -> Device:
        """The first one that CUDA sees. Raises UnavailableError."""
        try:
            return connect(self.kind).devices()[0]
        except IndexError:
            raise UnavailableError("CUDA sees no device") from None
        except NotSupportedError as error:
            raise UnavailableError(str(error)) from error

    def free_bytes(self) -> int:
        """Return the free bytes of the device, as its driver reports them to a process without a context."""
        uuid = self.device.uuid
        return next(found.free_bytes for found in survey(self.kind) if found.uuid == uuid)

    def drivers(self) -> list[str]:
        """Ways to share memory that this device has."""
        return [name for name in DRIVERS if getattr(self.device, name)]

    def allocations(self, smallest: int = 64 << 20) -> list[int]:
        """Sizes to allocate, four times as much each, up to what fits beside another of the same."""
        most = min(self.sizes.most_bytes, self.free_bytes() // 2)
        sizes = [size for size in (smallest << (2 * step) for step in range(16)) if size < most]
        return [*sizes, most - most % (2 << 20)]

    @contextlib.contextmanager
    def exporter(self, driver: str, nbytes: int = len(CONTENT)) -> Iterator[Exporter]:
        """A process that owns an allocation; gone after the block."""
        made = Exporter(self.kind, driver, nbytes)
        try:
            yield made
        finally:
            made.end()

    def borrower(self, driver: str, prefix: tuple[str, ...] = ()) -> Borrower:
        """A process that opens what is exported."""
        return Borrower(self.kind, self.device.uuid, driver, prefix=prefix)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of the part's own, removed after the block."""
        with tempfile.TemporaryDirectory(prefix="part-", dir=self.work) as made:
            yield Path(made)

    def require_torch(self) -> None:
        """Raises UnavailableError unless PyTorch can use the device."""
        if not self.kind.startswith("driver"):
            raise UnavailableError("PyTorch needs a real device")
        try:
            import torch
        except ImportError as error:
            raise UnavailableError(f"PyTorch is not installed: {error}") from error
        if not torch.cuda.is_available():
            raise UnavailableError(f"PyTorch {torch.__version__} cannot use a GPU here")


class Exporter:
    """A process that owns one sealed allocation, from outside: `python -m trims_bench.gpu.rig` is its inside."""

    def __init__(self, kind: str, driver: str, nbytes: int) -> None:
        self._sock, theirs = messages.pair()
        self._sock.settimeout(_BEGIN_S)
        with theirs:
            command = run_module(__name__, kind, driver, str(nbytes), str(theirs.fileno()))
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        try:
            self._ask({"op": "make"})
        except BaseException:
            self.end()
            raise

    def export(self) -> Export:
        """Let another process open it."""
        message, fds = self._ask({"op": "export"})
        return export_of(message, fds[0] if fds else -1)

    def intact(self) -> bool:
        """Return whether the owner itself still reads what it has written."""
        return bool(self._ask({"op": "read"})[0]["intact"])

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Have it free its memory and exit in good order. Idempotent."""
        self._sock.close()
        self.process.wait()

    def _ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        with contextlib.suppress(LostPeerError):  # then there is no answer
            messages.send(self._sock, message)
        received = messages.receive(self._sock)
        if received is None:
            raise LostPeerError(f"the exporter ended with status {self.process.wait()}")
        if "refused" in received[0]:
            raise NotSupportedError(received[0]["refused"])
        return received


def _own(kind: str, driver: str, nbytes: str, fd: str) -> None:
    """The inside of an `Exporter`."""
    with socket.socket(fileno=int(fd)) as sock:
        try:
            owner = Owner(kind, driver)
            made = owner.sealed(CONTENT[: int(nbytes)], nbytes=int(nbytes))
        except TrimsError as error:
            messages.send(sock, {"refused": str(error)})
            return
        with contextlib.suppress(LostPeerError):  # the asking side has given up
            _answer(sock, owner, made)
        owner.memory.free(made)
        owner.end()


def _answer(sock: socket.socket, owner: Owner, made: Allocation) -> None:
    """Answer requests until no more come."""
    while received := messages.receive(sock):
        fds: list[int] = []
        answer: dict[str, Any] = {}
        if received[0]["op"] == "export":
            export = owner.memory.export(made)
            answer, fds = export_message(export), [export.fd] if export.fd >= 0 else []
        elif received[0]["op"] == "read":
            count = min(len(CONTENT), made.nbytes)
            answer = {"intact": owner.read(made, count) == CONTENT[:count]}
        try:
            messages.send(sock, answer, fds)
        finally:
            messages.close_all(fds)


def ended(name: str, arguments: Sequence[str]) -> str:
    """Try a command; return why it cannot be used, empty if it can."""
    try:
        done = subprocess.run([name, *arguments], capture_output=True, text=True, check=False, timeout=_BEGIN_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name}: {error}"
    return "" if done.returncode == 0 else f"{name} {' '.join(arguments)}: {done.stderr.strip() or done.returncode}"


if __name__ == "__main__":
    _own(*sys.argv[1:])
