"""Modules that a predictor had to import for its model, so that templates can import them before the next fork.

Only modules that are new are touched. In a fork, a reference to one of the others' names copies the page that it lies
in, and a framework has thousands of them.
"""

from __future__ import annotations

import itertools
import sys

from trims.process.messages import MOST_BYTES

#: Letters of the names in one message, at most. Their commas and quotes count, and leave room for the other fields.
_MOST_LETTERS = MOST_BYTES // 2


def count_of_modules() -> int:
    """Return how many modules this process has imported."""
    return len(sys.modules)


def importable_since(count: int, folder: str = "") -> list[str]:
    """Return modules imported since there were so many, the last one first; not those that no other process can import.

    These are made of source text in a manifest. As many are listed as a message surely holds: a later predictor reports
    the rest.

    Args:
        folder: Folder whose modules are left out, with those below, because they may be edited; empty for none.
    """
    found, letters = [], 0
    for name in itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - count)):
        spec = getattr(sys.modules[name], "__spec__", None)
        if spec is None or (folder and str(spec.origin).startswith(f"{folder}/")):
            continue
        letters += len(name) + 3
        if letters > _MOST_LETTERS:
            break
        found.append(name)
    return found
