"""The registry protocol, and reading manifests from files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import yaml

from trims.core.errors import ManifestError
from trims.core.manifest import Manifest, parse_manifest

if TYPE_CHECKING:
    from pathlib import Path

_MAX_MANIFEST_BYTES = 1 << 20


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

    def names(self) -> list[str]:
        """All names, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Raises ModelNotFoundError."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Idempotent."""
        ...


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """Read a YAML file; returns the mapping and the folder its relative paths start from.

    Raises ManifestError naming the file, with line and column where YAML tells them.
    """
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path}: a manifest of more than {_MAX_MANIFEST_BYTES} bytes is refused")
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(f"{path}: is not YAML: {error}") from error
    origin = str(path.resolve().parent)
    try:
        parse_manifest(raw, origin)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error
    return dict(raw), origin
