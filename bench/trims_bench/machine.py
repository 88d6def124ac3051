"""Machine of a measurement, in words that say nothing about whose machine it is."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from trims_bench.repository import ROOT

_PACKAGES = ("trims", "numpy", "torch", "onnxruntime", "safetensors", "transformers", "blake3", "grpcio")


def machine() -> dict[str, str | int]:
    """Processor, cores, memory, kernel."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of every package that matters here; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


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


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
