"""What an operator asks, as messages of the control door: one place for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trims.control.artifacts import manifest_for
from trims.core.errors import CallerError
from trims.registry.base import read_manifest
from trims.wire import trims_pb2 as pb
from trims.wire.address import CONTROL_SOCKET, default_runtime_dir

if TYPE_CHECKING:
    import os

    #: A manifest, as a file or as a mapping; an artifact; a folder.
    Source = str | os.PathLike[str] | Mapping[str, Any]


def control_socket(runtime_dir: str | os.PathLike[str] | None) -> Path:
    """The control door of the daemon in that folder; None for the default of this user."""
    return Path(runtime_dir or default_runtime_dir()).absolute() / CONTROL_SOCKET


def register(source: Source, name: str | None, *, replace: bool) -> pb.RegisterRequest:
    """Register a manifest, an artifact, or the folder of a Hugging Face model. Raises CallerError, ManifestError."""
    raw, origin = (dict(source), "") if isinstance(source, Mapping) else _manifest_of(Path(source), name)
    return pb.RegisterRequest(manifest_yaml=yaml.safe_dump(raw), origin=origin, replace=replace)


def _manifest_of(source: Path, name: str | None) -> tuple[dict[str, Any], str]:
    if source.suffix not in (".yaml", ".yml"):
        return manifest_for(source, name), ""
    if name is not None:
        raise CallerError(f"a name is for artifacts; {source} is a manifest and names its model itself")
    return read_manifest(source)


def load(name: str, place: str | None, deadline_s: float | None) -> pb.LoadRequest:
    """Have a model at a place."""
    request = pb.LoadRequest(name=name, place=place or "")
    if deadline_s is not None:
        request.deadline_s = deadline_s
    return request
