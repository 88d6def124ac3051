"""One part of the check, in a process of its own: `python -m trims_bench.gpu.part KEY RIG FD`.

What it finds is written to the descriptor as JSON lines, each as soon as it is there: `{"line": ...}` for a line of a
figure, `{"test": ...}` for a test, `{"result": ...}` at the end, with what went wrong, if something did.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_bench.gpu.lines import UNAVAILABLE
from trims_bench.gpu.parts import PARTS
from trims_bench.gpu.rig import Rig, Sizes, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable


def rig_as_text(rig: Rig) -> str:
    """Return the rig as a text for the command line."""
    return json.dumps({"kind": rig.kind, "work": str(rig.work), "sizes": dataclasses.asdict(rig.sizes)})


def rig_of(text: str) -> Rig:
    """Make the rig from the command line's text."""
    given = json.loads(text)
    return Rig(given["kind"], Sizes(**given["sizes"]), Path(given["work"]))


def take(run: Callable[[Rig], Any], rig: Rig, tell: Callable[[dict[str, Any]], None]) -> None:
    """Run a part, and report everything that it finds."""
    result: dict[str, Any] = {}
    try:
        found = run(rig)
        if isinstance(found, dict):
            result = found
        else:
            for item in found:
                tell({"test": item} if "outcome" in item else {"line": item})
    except UnavailableError as error:
        result[UNAVAILABLE] = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
        result["error"] = f"{type(error).__name__}: {error}"
    tell({"result": result})


def main() -> None:
    """Run the part that the command line names, and write its reports to the given descriptor."""
    key, rig, fd = sys.argv[1:]

    def tell(message: dict[str, Any]) -> None:
        os.write(int(fd), (json.dumps(message) + "\n").encode())

    take(PARTS[key].run, rig_of(rig), tell)


if __name__ == "__main__":
    main()
