"""Commit of what is measured. Facts about the machine: see `trims_bench.evaluation.stack`."""

from __future__ import annotations

import subprocess

from trims_bench.repository import ROOT


def commit() -> str:
    """Return the commit of the checkout, with a `+` if files differ from it; empty outside of one."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
