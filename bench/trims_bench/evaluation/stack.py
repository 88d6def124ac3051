"""The stack that an evaluation ran on: what its figures depend on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from trims_bench.repository import ROOT

_LIBRARIES = ("trims", "numpy", "torch", "onnxruntime", "mxnet", "transformers", "safetensors", "uvloop")
_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD",
    "MALLOC_ARENA_MAX", "PYTHONOPTIMIZE", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip


def stack() -> dict[str, Any]:
    """Return facts about processor, memory, kernel, libraries and environment of this process."""
    return {
        "processor": _first("/proc/cpuinfo", "model name"),
        "processors": len(os.sched_getaffinity(0)),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "large_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "container": os.path.exists("/.dockerenv") or Path("/run/.containerenv").exists(),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


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


def differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    """Return a line for each fact in which two stacks differ."""
    found = []
    for name in sorted(one.keys() | other.keys()):
        before, after = one.get(name), other.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            was, now = ("-" if each is None else each for each in (before, after))
            found.append(f"{prefix}{name}: {was} -> {now}")
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _first(path: str, key: str) -> str:
    for line in _text(path).splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return ""
