"""Commands that start Python programs of ours without the working folder on their import path.

`python -m` and `python -c` put the working folder first on the import path. A daemon may be started in any folder, such
as /tmp, where every user can put a `queue.py`: the child would run it with the rights of the daemon's user. Isolated
mode (`-I`) is no remedy: it ignores PYTHONPATH and the user's own site-packages, from which trims may be imported.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: First line of every program that is given as text. `sys` is built in, so nothing is looked for before it has run.
WITHOUT_WORKING_FOLDER = "import sys; sys.path[:] = [path for path in sys.path if path]\n"
_RUN_MODULE = (
    WITHOUT_WORKING_FOLDER
    + "import runpy; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
#: Function for programs that are given as text: it loads packages from their own folders, whatever else lies beside
#: them, so that a process of another environment sees them and that environment's packages, and none of this one.
LOAD_PACKAGES = """
import importlib.util
def load_packages(folders):
    for name, folder in folders.items():
        spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py",
                                                      submodule_search_locations=[folder])
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
"""
_RUN_OURS = (
    LOAD_PACKAGES
    + """
import importlib, json
load_packages(json.loads(sys.argv[1]))
del sys.argv[:2]
importlib.import_module(sys.argv[0]).main()
"""
)
_TRIMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run_ours(
    module: str,
    *arguments: str,
    packages: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] = "",
    flags: Iterable[str] = (),
) -> list[str]:
    """Return the command that calls `main` of a module of ours, in any environment.

    Args:
        module: Dotted name.
        arguments: Rest of `sys.argv`, from index 1 on.
        packages: Folders of our packages by name, the first first; None for trims alone.
        python: Interpreter; empty for this one.
        flags: Given to the interpreter.
    """
    folders = json.dumps(dict(packages or {"trims": _TRIMS}))
    return run_code(_RUN_OURS, folders, module, *arguments, python=python, flags=flags)


def run_module(
    module: str, *arguments: str, python: str | os.PathLike[str] = "", flags: Iterable[str] = ()
) -> list[str]:
    """Return the command that runs a module as `python -m` does, but without the working folder.

    Args:
        module: Dotted name.
        arguments: Given to the module.
        python: Interpreter; empty for this one.
        flags: Given to the interpreter.
    """
    return [os.fspath(python) or sys.executable, *flags, "-c", _RUN_MODULE, module, *arguments]


def run_code(code: str, *arguments: str, python: str | os.PathLike[str] = "", flags: Iterable[str] = ()) -> list[str]:
    """Return the command that runs source text as `python -c` does, but without the working folder.

    Args:
        code: Statements; none may be a `from __future__ import`.
        arguments: Rest of `sys.argv`, from index 1 on.
        python: Interpreter; empty for this one.
        flags: Given to the interpreter.
    """
    return [os.fspath(python) or sys.executable, *flags, "-c", WITHOUT_WORKING_FOLDER + code, *arguments]


def variables_for(python: str | os.PathLike[str] = "", given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return environment variables for a child.

    Args:
        python: Interpreter of the child; empty for this one. Variables that would lead another one to the packages of
            this environment are left out.
        given: The variables of the parent; None for this process's.
    """
    found = dict(os.environ if given is None else given)
    if python:
        for ours in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
            found.pop(ours, None)
    return found
