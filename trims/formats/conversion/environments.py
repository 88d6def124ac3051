"""Python environments converters and predictors run in, and what is installed in them.

Versions are read from the environment's own metadata files; the environment is only started when its layout is not
that of a virtual environment. Not covered: making environments.
"""

from __future__ import annotations

import importlib.metadata
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError, ConversionError
from trims.formats.base import Limits
from trims.formats.conversion.child_process import LimitedChild

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Environment:
    """One Python environment.

    Args:
        python: Interpreter, by the path it is started with (a virtual environment's `python` is a link, and
            must not be resolved). None for the environment of this process.
    """

    def __init__(self, python: Path | None = None) -> None:
        self.python = python if python is not None else Path(sys.executable)
        if not self.python.is_file():
            raise ConfigError(f"{self.python} is not a Python interpreter: no such file")

    def versions(self, distributions: Iterable[str]) -> dict[str, str]:
        """Return versions of those of the named distributions that are installed, sorted by name."""
        names = sorted(distributions)
        paths = self._paths
        return installed_versions(names, paths) if paths is not None else self._ask(names)

    @cached_property
    def _paths(self) -> Sequence[str] | None:
        """Return the folders of the environment's distributions; None if only the interpreter itself knows them."""
        if str(self.python) == sys.executable:
            return sys.path
        root = self.python.parent.parent
        config = root / "pyvenv.cfg"
        if not config.is_file() or "include-system-site-packages = true" in config.read_text().lower():
            return None
        return [str(path) for path in sorted(root.glob("lib*/python3*/site-packages"))]

    def _ask(self, names: Sequence[str]) -> dict[str, str]:
        child = LimitedChild(str(self.python), python=self.python, limits=Limits(time_s=60.0))
        try:
            found = child.request({"do": "versions", "names": list(names)}).get("versions")
        finally:
            child.close()
        if not isinstance(found, dict):
            raise ConversionError(f"{self.python} did not say what is installed in it")
        return {str(name): str(version) for name, version in found.items()}


def installed_versions(names: Iterable[str], paths: Sequence[str]) -> dict[str, str]:
    """Return versions of those of the named distributions that have metadata in these folders."""
    found: dict[str, str] = {}
    for name in names:
        for distribution in importlib.metadata.distributions(name=name, path=list(paths)):
            found.setdefault(name, distribution.version)
    return found
