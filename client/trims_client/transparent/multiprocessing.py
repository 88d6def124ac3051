"""Processes that `multiprocessing` starts by `spawn` or `forkserver` get the loaders of their parent; forks have them.

Such a process is a new interpreter whose `-c` says what it does for the parent: the installation goes in front of that.
Not covered: other interpreters, and processes that a program starts by itself (`subprocess`).
"""

from __future__ import annotations

import functools
import os
import sys

from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

#: Beginnings of what such processes are started with; not that of the tracker of resources, which loads nothing.
_CODES = ("from multiprocessing.spawn import", "from multiprocessing.forkserver import")
#: Program text in front of them. The packages may lie where no search finds them, as under `trims exec`.
_INSTALL = """\
try:
    import sys
    from importlib.util import module_from_spec, spec_from_file_location
    for name, folder in {folders!r}.items():
        if name not in sys.modules:
            spec = spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
    from trims_client.transparent import install
    install()
except Exception as error:
    sys.stderr.write(f"trims: the frameworks of a child load alone: {{error}}\\n")
"""


def adapt(util: ModuleType) -> Callable[[], None]:
    """Have `multiprocessing` install the loaders in what it starts. Return what undoes that."""
    original = util.spawnv_passfds

    @functools.wraps(original)
    def spawnv_passfds(path: Any, args: Sequence[Any], passfds: Any) -> Any:
        return original(path, _with_loaders(path, args), passfds)

    return replace([(util, "spawnv_passfds")], original, spawnv_passfds)


def _with_loaders(path: Any, args: Sequence[Any]) -> Sequence[Any]:
    words = list(args)
    if os.fsdecode(path) != sys.executable or "-c" not in words[:-1]:
        return args
    at = words.index("-c") + 1
    if not str(words[at]).startswith(_CODES):
        return args
    folders = {name: os.path.dirname(str(sys.modules[name].__file__)) for name in ("trims", "trims_client")}
    words[at] = f"exec({_INSTALL.format(folders=folders)!r}, {{}}); {words[at]}"
    return words
