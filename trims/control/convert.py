"""Converting without a daemon: `trims convert`, and the child process of a client that may fall back.

    python -m trims.control.convert SOURCE DESCRIPTOR

writes the image to an inherited descriptor. What goes wrong is said on standard error, and the exit status is 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trims.control.artifacts import manifest_for
from trims.core.errors import TrimsError
from trims.daemon.config import build_config
from trims.environments.environment_store import EnvironmentStore
from trims.formats.base import Limits
from trims.formats.conversion.conversion import start_conversion
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.process.inherited import take_defaults
from trims.registry.base import read_manifest
from trims.registry.opening import open_registry
from trims.registry.sqlite import SqliteRegistry
from trims.store.catalog import Catalog
from trims.store.resolve.resolver import Resolver

if TYPE_CHECKING:
    from trims.daemon.config import Config
    from trims.registry.base import Registry


def convert(source: str, fd: int) -> int:
    """Plan, size the file, write.

    Args:
        source: A registered model, a manifest, or an artifact.
        fd: Readable and writable; the image begins at its start.

    Returns:
        The image's length in bytes.

    Raises:
        TrimsError: The source is unknown or cannot be converted.
        OSError: The file cannot be written.
    """
    config = build_config({})
    limits = Limits(memory_bytes=config.converter_memory_bytes, time_s=config.converter_time_s)
    with tempfile.TemporaryDirectory(prefix="trims-convert-") as scratch:
        registry, name = _registry_with(source, Path(scratch), config)
        catalog = Catalog(Path(scratch) / "catalog.db")
        try:
            picker = InterpreterSelection(config.environments, EnvironmentStore(config.environments_dir))
            resolver = Resolver(registry, catalog, picker, config.state_dir / "artifacts", limits)
            resolved = resolver.resolve(name)
            with start_conversion(resolved.artifact, python=resolved.python, limits=limits) as conversion:
                nbytes = conversion.plan()
                os.posix_fallocate(fd, 0, nbytes)
                conversion.write(fd)
            return nbytes
        finally:
            catalog.close()
            registry.close()


def _registry_with(source: str, scratch: Path, config: Config) -> tuple[Registry, str]:
    """Return a registry that has the source, and the name it has there."""
    path = Path(source)
    if not path.is_file():
        return open_registry(config.registry, config.state_dir), source
    is_manifest = path.suffix in (".yaml", ".yml")
    raw, origin = read_manifest(path) if is_manifest else (manifest_for(path, "artifact"), "")
    registry = SqliteRegistry(scratch / "registry.db")
    return registry, registry.put(raw, origin).name


def main(arguments: list[str]) -> int:
    """Run as a child process; returns the exit status."""
    source, fd = arguments
    take_defaults()
    try:
        convert(source, int(fd))
    except (TrimsError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
