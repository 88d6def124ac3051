"""One function in one fresh process: measuring must not share an interpreter with who drives it.

    python -m trims_bench.child trims_bench.scenarios.open:measure '{"runtime_dir": "..."}'

calls the function with the object's members and prints what it returns as one JSON line. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_ERROR_TAIL = 3000
_MARK = "result "


class ChildError(Exception):
    """A measuring process failed; the message carries its last words."""


def call(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Run a module's function in a fresh process.

    Args:
        function: Of a module that the process can import.
        given: Its arguments, JSON values.
        python: Interpreter; this one by default.
        env: All environment variables; `trims_bench.runs.environment()` by default.

    Raises:
        ChildError: It raised, or died.
    """
    from trims_bench.runs import environment

    name = f"{function.__module__}:{function.__name__}"
    done = subprocess.run(
        [str(python or sys.executable), "-m", "trims_bench.child", name, json.dumps(given)],
        capture_output=True,
        text=True,
        check=False,
        env=environment() if env is None else env,
    )
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    raise ChildError(f"{name} ended with status {done.returncode}: {done.stderr.strip()[-_ERROR_TAIL:]}")


def main() -> None:
    """Of the process."""
    module, _, function = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(sys.argv[2]))
    print(_MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
