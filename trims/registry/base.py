"""The registry protocol, and reading manifests from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import yaml

from trims.core.errors import ManifestError
from trims.core.manifest import Manifest, parse_manifest
from trims.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

_MAX_MANIFEST_BYTES = 1 << 20
#: Values in a manifest once its aliases are written out: a few hundred bytes of aliases can stand for billions.
_MAX_VALUES = 20_000


@runtime_checkable
class Registry(Protocol):
    """Names to manifests. Safe to call from several threads."""

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """Check and keep a manifest. The same one twice is fine; another under a taken name needs `replace`.

        Raises ManifestError or ModelExistsError.
        """
        ...

    def get(self, name: str) -> Manifest:
        """Raises ModelNotFoundError with the nearest names."""
        ...

    def raw(self, name: str) -> dict[str, Any]:
        """The manifest as it was put, to be read or put again. Raises ModelNotFoundError."""
        ...

    def names(self) -> list[str]:
        """All names, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Raises ModelNotFoundError."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Idempotent."""
        ...


def parse_yaml(text: str) -> dict[str, Any]:
    """The mapping that a manifest's text is. Raises ManifestError, whose message lacks its subject: the manifest."""
    if len(text) > _MAX_MANIFEST_BYTES:
        raise ManifestError(f"has more than {format_bytes(_MAX_MANIFEST_BYTES)}; make it shorter")
    try:
        raw = yaml.safe_load(text)
    except RecursionError as error:
        raise ManifestError("is nested too deeply; write it flat") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ManifestError(f"is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ManifestError("must be a mapping")
    if _values_in(raw, {}) > _MAX_VALUES:
        raise ManifestError(f"has more than {_MAX_VALUES} values, aliases written out; make it shorter")
    return raw


def _values_in(value: object, counted: dict[int, float]) -> float:
    """How many values there are with all aliases written out. Each part is looked at once; a loop counts as endless."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in counted:
        counted[id(value)] = float("inf")  # until it is known: only a part that holds itself is asked for before that
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_values_in(part, counted) for part in parts)
    return counted[id(value)]


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """Read a YAML file; returns the mapping and the folder its relative paths start from.

    Raises ManifestError naming the file, with line and column where YAML tells them.
    """
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path}: a manifest of more than {format_bytes(_MAX_MANIFEST_BYTES)} is refused")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not YAML: {error}") from error
    origin = str(path.resolve().parent)
    try:
        raw = parse_yaml(text)
        parse_manifest(raw, origin)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error
    return raw, origin
