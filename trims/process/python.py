"""Commands that start Python programs of ours without the working folder on their import path.

`python -m` and `python -c` put the working folder first on the import path. A daemon may be started in any folder, such
as /tmp, where every user can put a `queue.py`: the child would run it with the rights of the daemon's user. Isolated
mode (`-I`) is no remedy: it ignores PYTHONPATH and the user's own site-packages, from which trims may be imported.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: First line of every program that is given as text. `sys` is built in, so nothing is looked for before it has run.
WITHOUT_WORKING_FOLDER = "import sys; sys.path[:] = [path for path in sys.path if path]\n"
_RUN_MODULE = (
    WITHOUT_WORKING_FOLDER
    + "import runpy; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


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
        arguments: In `sys.argv` from index 1 on.
        python: Interpreter; empty for this one.
        flags: Given to the interpreter.
    """
    return [os.fspath(python) or sys.executable, *flags, "-c", WITHOUT_WORKING_FOLDER + code, *arguments]
