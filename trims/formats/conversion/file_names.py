"""Finding an artifact's files in a child, where that takes parsing more than other threads can wait for."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConversionError
from trims.formats.base import Limits
from trims.formats.conversion.child_process import LimitedChild

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The largest index that is read takes some seconds and a few hundred MiB.
_LIMITS = Limits(memory_bytes=4 << 30, time_s=120.0, memory_setting="", time_setting="")


def names_apart(converter: type, main: Path, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the result of the converter's `names_here(main, options)`, called in a child of this environment.

    Raises as that does; ConversionError if the child died, CapacityError if it could not be started.
    """
    request = {
        "do": "names",
        "converter": f"{converter.__module__}:{converter.__qualname__}",
        "files": [os.fspath(main)],
        "options": dict(options),
    }
    child = LimitedChild(os.fspath(main), python=None, limits=_LIMITS)
    with contextlib.closing(child):
        names = child.request(request).get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConversionError(f"{main}: the child process did not say which files there are")
    return tuple(names)
