"""Registries that a package outside trims might bring: some that work, and openers that do not."""

from __future__ import annotations

import copy
import importlib.metadata
import sys
import threading
from typing import TYPE_CHECKING, Any

from trims.core.errors import ConfigError
from trims.registry.base import check_manifest, taken_name, unknown_model

if TYPE_CHECKING:
    import pytest

    from trims.manifests.manifest import Manifest
    from trims.registry.base import RegistrySettings


def declare(monkeypatch: pytest.MonkeyPatch, group: str, **functions: str) -> None:
    """Have the group's entry points be these functions of this module, in place of those that are installed."""
    real = importlib.metadata.entry_points

    def entry_points(**given: Any) -> Any:
        if given != {"group": group}:
            return real(**given)
        return [importlib.metadata.EntryPoint(name, f"own_parts:{value}", group) for name, value in functions.items()]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


class MemoryRegistry:
    """Manifests in a mapping; they go with the process."""

    changes_outside = False

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self.closed = 0
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[dict[str, Any], str]] = {}

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        manifest = check_manifest(raw, origin)
        with self._lock:
            if not replace and self._kept.get(manifest.name, (raw, origin)) != (raw, origin):
                raise taken_name(manifest.name)
            self._kept[manifest.name] = (copy.deepcopy(raw), origin)
        return manifest

    def get(self, name: str) -> Manifest:
        return check_manifest(*self._of(name))

    def raw(self, name: str) -> dict[str, Any]:
        return copy.deepcopy(self._of(name)[0])

    def names(self) -> list[str]:
        return sorted(self._kept)

    def remove(self, name: str) -> None:
        self._of(name)
        self._kept.pop(name)

    def close(self) -> None:
        self.closed += 1

    def _of(self, name: str) -> tuple[dict[str, Any], str]:
        if name not in self._kept:
            raise unknown_model(name, self._kept)
        return self._kept[name]


class Half:
    """Lacks most of what a part has, and knows whether it was closed."""

    made: list[Half] = []  # noqa: RUF012 - the tests look here

    def __init__(self, _: object) -> None:
        self.closed = False
        self.made.append(self)

    def close(self) -> None:
        self.closed = True


def fails(_: object) -> object:
    raise ValueError("the shelf is empty")


def refuses(_: object) -> object:
    raise ConfigError("/srv is not mounted; mount it")


def ends(_: object) -> object:
    sys.exit("no licence")


NOT_CALLABLE = 3
