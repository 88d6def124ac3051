"""What an operator asks, as messages of the control door: one place for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from trims.control.artifacts import check_text, manifest_for
from trims.core.errors import CallerError, DaemonAwayError, ManifestError
from trims.documents import load_yaml
from trims.manifests.fields import Fields
from trims.manifests.manifest import text_of_version
from trims.registry.base import read_manifest
from trims.wire import trims_pb2 as pb
from trims.wire.address import CONTROL_SOCKET, default_runtime_dir, why_too_long

if TYPE_CHECKING:
    import os

    from google.protobuf.message import Message

    from trims.control.answers import Model, TensorInfo

    #: A manifest, as a file or as a mapping; an artifact; a folder.
    Source = str | os.PathLike[str] | Mapping[str, Any]

_Message = TypeVar("_Message", bound="Message")


def control_socket(runtime_dir: str | os.PathLike[str] | None) -> Path:
    """The control door of the daemon in that folder; None for the default of this user.

    Raises DaemonAwayError for a folder in which no socket can lie.
    """
    folder = Path(runtime_dir or default_runtime_dir()).absolute()
    if refusal := why_too_long(folder):
        raise DaemonAwayError(refusal)
    return folder / CONTROL_SOCKET


def message(kind: type[_Message], **fields: Any) -> _Message:
    """A message with these fields. Raises CallerError for a value of another type than the field's, None included."""
    made = kind()
    for name, value in fields.items():
        try:
            setattr(made, name, value)
        except (TypeError, ValueError) as error:  # ValueError: a text that is no text
            wanted = type(getattr(made, name)).__name__
            raise CallerError(f"{name} is {value!r}; it must be of type {wanted}") from error
    return made


def register(source: Source, name: str | None, *, replace: bool, state_key: str | None = None) -> pb.RegisterRequest:
    """Register a manifest, an artifact, or the folder of a Hugging Face model. Raises CallerError, ManifestError."""
    if isinstance(source, Mapping):
        _refuse_state_key("the mapping", state_key)
        return _registration(dict(source), "", replace=replace)
    try:
        path = Path(source)
    except TypeError as error:
        raise CallerError(f"{source!r} is no model; give a path, or a manifest as a mapping") from error
    return _registration(*_manifest_of(path, name, state_key), replace=replace)


def register_again(model: Model) -> pb.RegisterRequest:
    """Put back the manifest that a model had."""
    return _registration(model.manifest, model.origin, replace=True)


def name_in(request: pb.RegisterRequest) -> str:
    """The name that a registration is for; empty if its manifest has none."""
    raw = load_yaml(request.manifest_yaml)
    return str(raw.get("name", "")) if isinstance(raw, dict) else ""


def _registration(raw: dict[str, Any], origin: str, *, replace: bool) -> pb.RegisterRequest:
    _check_versions(raw)
    try:
        text = yaml.safe_dump(raw)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ManifestError(f"the manifest cannot be written as YAML: {error}") from error
    return message(pb.RegisterRequest, manifest_yaml=text, origin=origin, replace=replace)


def _check_versions(raw: dict[str, Any]) -> None:
    """Raise ManifestError for a version that is a number of a program: the daemon would read it as it is dumped."""
    text_of_version(raw.get("version"), "the manifest")
    framework = raw.get("framework")
    if isinstance(framework, Mapping):
        Fields(framework, "the manifest: framework").text("version", "")


def _refuse_state_key(what: str, state_key: str | None) -> None:
    if state_key is not None:
        raise CallerError(f"a state key is for artifacts; {what} is a manifest: write it there, under artifact.options")


def _manifest_of(source: Path, name: str | None, state_key: str | None) -> tuple[dict[str, Any], str]:
    if source.suffix not in (".yaml", ".yml"):
        return manifest_for(source, name, state_key), ""
    check_text(source)
    _refuse_state_key(str(source), state_key)
    if name is not None:
        raise CallerError(f"--name is for artifacts; {source} is a manifest, and its field `name` names the model")
    return read_manifest(source)


def learn(name: str, key: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> pb.LearnRequest:
    """Keep what a run of a model had."""
    made = message(pb.LearnRequest, name=name, key=key)
    for listed, tensors in ((made.inputs, inputs), (made.outputs, outputs)):
        listed.extend(pb.TensorInfo(name=each.name, dtype=each.dtype, shape=each.shape) for each in tensors)
    return made


def load(name: str, place: str | None, deadline_s: float | None) -> pb.LoadRequest:
    """Have a model at a place."""
    deadline = {} if deadline_s is None else {"deadline_s": deadline_s}
    return message(pb.LoadRequest, name=name, place="" if place is None else place, **deadline)


def evict(name: str, place: str | None, *, drain: bool) -> pb.EvictRequest:
    """Free a model's memory at a place; None for all places."""
    return message(pb.EvictRequest, name=name, place="" if place is None else place, drain=drain)
