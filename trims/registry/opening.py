"""Registries that are available, and opening the one that the setting `registry` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.plugins import Kind
from trims.registry.base import ManifestRegistry, Registry, RegistrySettings
from trims.registry.one_version import OneVersion
from trims.registry.sqlite import file_of, open_sqlite
from trims.registry.time_limit import time_limited

if TYPE_CHECKING:
    from pathlib import Path

    from trims.plugins import Choice

#: Members of a `ManifestRegistry`; a registry that lacks others of `Registry` keeps one version of each model.
_MEMBERS = ("put", "get", "raw", "names", "remove", "close", "changes_outside")


def open_registry(choice: Choice, state_dir: Path) -> Registry:
    """Open the registry of a daemon, or of a command that does without. Calls of a plug-in's have a time limit.

    Raises ConfigError, also with the plug-in's name and the cause if that cannot be opened.
    """
    opened = KIND.open(choice, RegistrySettings(state_dir, choice.argument))
    part = opened.part
    registry = part if isinstance(part, Registry) else OneVersion(part, opened.where or str(choice))
    return time_limited(registry, opened.where) if opened.where else registry


def file_of_registry(choice: Choice, state_dir: Path) -> Path | None:
    """Return the registry's database; None for a registry of a plug-in. Raises ConfigError."""
    return file_of(RegistrySettings(state_dir, choice.argument)) if choice.name == "sqlite" else None


def find_plugin(choice: Choice) -> str:
    """Return the module and function of a plug-in's registry; nothing is imported.

    Raises ConfigError if there is none.
    """
    return KIND.find(choice).value


def _wrong(part: object, settings: RegistrySettings) -> str:
    del settings
    lacking = [name for name in _MEMBERS if not hasattr(part, name)]
    return f"returned no Registry: {type(part).__name__} has no {', '.join(lacking)}" if lacking else ""


GROUP = "trims.registries"
KIND: Kind[RegistrySettings, ManifestRegistry] = Kind(GROUP, "registry", {"sqlite": open_sqlite}, _wrong)
