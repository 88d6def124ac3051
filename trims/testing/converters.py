"""Running conversions in tests, also those of third-party formats: an artifact becomes an image file and Weights.

Not covered: asserting anything about the weights.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from trims.formats.base import Artifact, Limits
from trims.formats.conversion import converter, detect, start_conversion
from trims.image.check import check_image
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Enough for any framework's import, little enough that a test that hangs is noticed.
LIMITS = Limits(memory_bytes=8 << 30, time_s=100.0)


def artifact_at(main: Path, *, format: str | None = None, **options: Any) -> Artifact:  # noqa: A002 - the manifest's word
    """The artifact whose main file this is; its format is detected unless given."""
    chosen = converter(format) if format else detect(main)
    return Artifact(chosen.format, chosen.files(main, options), options)


def convert(
    artifact: Artifact, target: Path, *, limits: Limits = LIMITS, on_progress: Callable[[int], None] | None = None
) -> Path:
    """Convert as the store does: plan, allocate, write, validate. Returns the target, an image file."""
    with start_conversion(artifact, limits=limits) as conversion:
        nbytes = conversion.plan()
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            conversion.write(fd, on_progress)
        finally:
            os.close(fd)
    check_image(ImageView(memoryview(target.read_bytes())))
    return target


def write_plugin(folder: Path, module: str, source: str, **formats: str) -> None:
    """Put a package with `trims.formats` entry points into a folder, as an installer would.

    Args:
        folder: To be put on `sys.path` by the caller.
        module: Name of the module and of the distribution.
        source: Its Python text.
        formats: Format name -> name of the class in the module.
    """
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{attribute}" for name, attribute in formats.items()]
    (info / "entry_points.txt").write_text("\n".join(["[trims.formats]", *lines, ""]))
