"""Entry of the `trims` command. `trims exec` is taken before anything else is imported: a program waits for it."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; returns the exit status."""
    if sys.argv[1:2] == ["exec"]:
        from trims.cli.exec_command import launch

        status = launch(sys.argv[2:])
        if status is not None:
            return status
    from trims.cli import main as commands

    return commands.main()
