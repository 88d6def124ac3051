"""Public names of what lies in other packages: `trims.torch` and `import trims.torch` give one module.

Imported when such a name is first used. A package that is missing is named with how it comes into this environment.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def stand_for(name: str, home: str, package: str = "trims") -> None:
    """Have the import of `name`, which calls this, give the module `home`. Raises as `imported`."""
    sys.modules[name] = imported(name, home, package)


def imported(name: str, home: str, package: str = "trims") -> Any:
    """Return the module `home`, which the public name needs.

    Args:
        home: Full name of the module.
        package: What brings what it needs, as pip is given it.

    Raises ModuleNotFoundError that names what is missing, and the package that brings it.
    """
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing.startswith("trims"):
            raise
        from trims.process.packages import install_words

        raise ModuleNotFoundError(
            f"{name} needs {missing}, which is not installed here: {install_words(package)}", name=error.name
        ) from error
