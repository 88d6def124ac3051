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
    """

    work: Path
    quick: bool = False
    repeat: int | None = None
    resident_bytes: int | None = None

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

    @property
    def vgg16(self) -> dict[str, Any]:
        """Manifest of VGG-16; a quick run gets one with an eighth of the filters."""
        from trims.registry.base import read_manifest
        from trims_bench.repository import MANIFESTS

        raw, _ = read_manifest(MANIFESTS / "vgg16.yaml")
        if self.quick:
            raw["name"] = "vgg16-slim"
            raw["artifact"]["builder"]["args"]["slim"] = 8
        return raw

    @property
    def resnet50_mxnet(self) -> dict[str, Any]:
        """Manifest of ResNet-50 in MXNet; a quick run gets ResNet-18."""
        name, layers = ("resnet18-mxnet", 18) if self.quick else ("resnet50-mxnet", 50)
        builder = {"call": "trims_bench.builders.resnet50_mxnet:build", "args": {"seed": 5, "layers": layers}}
        artifact = {"format": "mxnet", "builder": builder}
        return {"name": name, "framework": {"name": "mxnet", "version": ">=1.9,<2"}, "artifact": artifact}

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
