"""Files of steps: beside the manifest, or inside an installed package."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping


def locate(stated: Mapping[str, Any], folder: str) -> str:
    """The path of a file that a step names.

    Args:
        stated: `path`, absolute or in the folder, or `package`: its import name and a path inside it.
        folder: Folder of the manifest; empty if it has none.

    Raises:
        NotSupportedError: There is no such package or file.
    """
    path = _in_package(*stated["package"]) if "package" in stated else os.path.join(folder, stated["path"])
    if not os.path.isabs(path):
        raise NotSupportedError(f"the manifest names the file {path!r}, but lies in no folder; write an absolute path")
    if os.path.isdir(path):
        raise NotSupportedError(f"a step of the manifest names {path}, which is a directory; name a file in it")
    if not os.path.isfile(path):
        raise NotSupportedError(f"the file {path} that a step of the manifest names is not there; put it there")
    return path


def _in_package(package: str, path: str) -> str:
    first, *rest = package.split(".")
    spec = importlib.util.find_spec(first)  # which does not import it
    if spec is None or not spec.submodule_search_locations:
        raise NotSupportedError(
            f"a step of the manifest needs the Python package {package!r}; install it in the predictor's environment"
        )
    return os.path.join(spec.submodule_search_locations[0], *rest, path)
