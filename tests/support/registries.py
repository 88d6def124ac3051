"""Registries of so many models, and the log that one leaves when its process is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from pathlib import Path


def manifest(name: str = "m", **more: object) -> dict[str, Any]:
    return {"name": name, "artifact": {"path": "m.npz"}, **more}


def rows(path: Path, count: int) -> None:
    """A registry of so many models, closed in order."""
    made = SqliteRegistry(path)
    for number in range(count):
        made.put(manifest(f"m{number}", description="x" * 500), "")
    made.close()


def left_log(path: Path, count: int) -> bytes:
    """The log that a registry of so many models leaves when its process is killed after it changed some."""
    rows(path, count)
    made = SqliteRegistry(path)
    for number in range(0, count, 30):
        made.put(manifest(f"m{number}", description="y" * 500), "", replace=True)
    log = path.with_name(f"{path.name}-wal").read_bytes()
    made.close()
    return log
