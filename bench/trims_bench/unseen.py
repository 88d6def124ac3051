"""A daemon that knows a model by its manifest and has never read a byte of it."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trims.registry.base import read_manifest
from trims_bench.daemon import DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def daemon_that_never_saw(manifest: Path, artifact: Path, mxnet: Path | None) -> Iterator[DaemonProcess]:
    """A daemon of its own, for the length of a `with` block. Its manifest asks for no copy.

    Args:
        manifest: Of the model; its builder and its wishes are left out.
        artifact: The published file.
        mxnet: Interpreter of the MXNet environment, if there is one.
    """
    raw, _ = read_manifest(manifest)
    source = {key: value for key, value in raw["artifact"].items() if key in ("format", "options")}
    settings = {"environments": f"mxnet={mxnet}"} if mxnet else {}
    with tempfile.TemporaryDirectory(prefix="trims-demo-") as folder, DaemonProcess(Path(folder), **settings) as daemon:
        daemon.register(
            {"name": raw["name"], "framework": raw["framework"], "artifact": {**source, "path": str(artifact)}}
        )
        yield daemon
