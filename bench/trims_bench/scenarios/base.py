"""Setup of a scenario: how much to do, where to put files, and daemons of its own."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_bench.daemon import DaemonProcess


#: The daemon's default, for which the bars are, and for comparison memory as it is without it: `large_pages`.
MEMORIES = {"": True, "4 KiB pages, ": False}


@dataclass
class Setup:
    """Settings of one run of `trims bench`.

    Attributes:
        work: A folder on a real disk, with room for 10 GB; images made in it serve all scenarios of the run.
        quick: Tiny sizes and few repeats: to see that it works, not how fast.
        repeat: Repeats asked for; None for what the scenario thinks right.
        resident_bytes: What `restart` keeps in memory; None for what it thinks right.
        database: URL of the database that keeps what is measured; empty for a file in `work`.
    """

    work: Path
    quick: bool = False
    repeat: int | None = None
    resident_bytes: int | None = None
    database: str = ""

    def __post_init__(self) -> None:
        self.database = self.database or f"sqlite:///{self.work / 'evaluations.db'}"

    def repeats(self, full: int) -> int:
        """Return how often to repeat, if `full` is right for a real measurement."""
        return self.repeat or (1 if self.quick else full)

    @property
    def uncounted(self) -> int:
        """Turns before those, whose times do not count: what is needed for the first time comes late. None if quick."""
        return self.size(1, 0)

    def size(self, full: int, quick: int) -> int:
        """One of the two."""
        return quick if self.quick else full

    def seconds(self, full: float, quick: float) -> float:
        """One of the two."""
        return quick if self.quick else full

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of the scenario's own, removed after the block."""
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=self.work) as made:
            yield Path(made)

    @property
    def state_dir(self) -> Path:
        """Return the state folder of the daemons that share images."""
        return self.work / "state"

    def daemon(self, state_dir: Path | None = None, **settings: Any) -> DaemonProcess:
        """A daemon that knows the MXNet environment, if there is one; use it in a `with` block."""
        from trims_bench.daemon import DaemonProcess

        if self.has_mxnet:
            settings.setdefault("environments", f"mxnet={self.mxnet}")
        return DaemonProcess(state_dir or self.state_dir, **settings)

    @cached_property
    def mxnet(self) -> Path:
        """The interpreter of the MXNet environment. Raises MxnetMissingError."""
        from trims_bench.repository import mxnet_python

        return mxnet_python()

    @cached_property
    def has_mxnet(self) -> bool:
        """Return whether `mxnet` gives one."""
        from trims_bench.repository import MxnetMissingError

        try:
            return bool(self.mxnet)
        except MxnetMissingError:
            return False

    def environments(self) -> dict[str, Path]:
        """Return interpreters of frameworks that have an environment of their own."""
        return {"mxnet": self.mxnet} if self.has_mxnet else {}
