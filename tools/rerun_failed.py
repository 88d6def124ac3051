"""Run the tests that failed once more, alone: `python tools/rerun_failed.py`, behind a run of pytest in this folder.

A test that passes then is unsteady: it is printed under "unsteady", to be mended, and does not fail the check. Exit
status: 0 if all pass, 1 if one fails again, if too many failed for chance, or if the run broke off or named no test.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: What pytest's cache provider writes; its node ids.
_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
#: What `tests/support/exit_status.py` keeps: pytest's exit status, nothing of a run that was killed.
_EXIT_STATUS = Path(".pytest_cache/v/trims/exit_status")
#: More than these have one cause, which running them again would hide.
MOST_FAILED = 10
#: Exit statuses of pytest: all tests passed; all ran, and some failed.
_PASSED, _FAILED = 0, 1


def main() -> int:
    """Run each failed test in a process of its own."""
    status = json.loads(_EXIT_STATUS.read_text()) if _EXIT_STATUS.exists() else None
    if status != _FAILED:
        print(f"the run did not end with all tests run (exit status {status}): none is run again", file=sys.stderr)
        return 1
    failed = sorted(json.loads(_LAST_FAILED.read_text())) if _LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MOST_FAILED:
        print(f"{len(failed)} tests are known to have failed; 1 to {MOST_FAILED} are run again", file=sys.stderr)
        return 1
    unsteady = [test for test in failed if _passes(test)]
    for test in unsteady:
        print(f"unsteady: {test}")
    return int(len(unsteady) < len(failed))


def _passes(test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", test]
    return subprocess.run(command, check=False).returncode == _PASSED


if __name__ == "__main__":
    sys.exit(main())
