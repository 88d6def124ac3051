"""Registrations of models, as messages of the control door: from a manifest, an artifact's path, or a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

from trims.control.artifacts import check_text, manifest_for
from trims.control.orders import message
from trims.control.stated_fields import artifact_options, check_fields, refuse_fields, with_fields
from trims.core.errors import CallerError, ManifestError
from trims.documents import load_yaml
from trims.manifests.addresses import check_address, is_address, local_artifact, name_for
from trims.manifests.manifest import text_of_version
from trims.manifests.tasks import check_task
from trims.registry.base import read_manifest
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from trims.control.answers import Model

    #: A manifest, as a file or as a mapping; an artifact; a folder.
    Source = str | os.PathLike[str] | Mapping[str, Any]

#: A model of the hub, without the scheme; also a path of two parts, if there is such a file.
_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")


def register(
    source: Source,
    name: str | None,
    *,
    replace: bool,
    options: Mapping[str, Any] = MappingProxyType({}),
    fields: Mapping[str, Any] | None = None,
) -> pb.RegisterRequest:
    """Register a manifest, an artifact, or the folder of a Hugging Face model.

    Args:
        replace: Replace another manifest of the same name.
        options: `artifact.options` for an artifact, such as `state_key` and `task`.
        fields: Others of its manifest; see `stated_fields`.

    Raises CallerError, ManifestError.
    """
    fields = {} if fields is None else fields
    check_fields(fields)
    if isinstance(source, Mapping):
        _refuse_beside("the mapping", options, fields)
        return _registration(dict(source), "", replace=replace)
    if isinstance(source, str) and is_address(source) and source.endswith((".yaml", ".yml")):
        _refuse_beside(source, options, fields)
        _refuse_name(name, source)
        return message(pb.RegisterRequest, address=check_address(source), replace=replace)
    if isinstance(source, str) and is_address(source):
        return _registration(_fetched(source, name, options, fields), "", replace=replace)
    try:
        path = Path(source)
    except TypeError as error:
        raise CallerError(f"{source!r} is no model; give a path, or a manifest as a mapping") from error
    if _OF_HUB.match(str(path)) and not path.suffix and not path.exists():
        raise CallerError(f"{source} does not exist; a model of the Hugging Face hub is hf://{source}")
    return _registration(*_manifest_of(path, name, options, fields), replace=replace)


def register_again(model: Model) -> pb.RegisterRequest:
    """Put back the manifest that a model had."""
    return _registration(model.manifest, model.origin, replace=True)


def replaced_by(made: pb.Model, before: Sequence[Model], *, replaced: bool) -> Model | None:
    """Return which of the versions that a model had before was replaced by a registration; None for none.

    Args:
        before: Versions that were registered before, that of the plain name first.
        replaced: Whether another one might be replaced.
    """
    same = next((model for model in before if model.version == made.version), None)
    return same or (before[0] if replaced and before else None)


def _fetched(address: str, name: str | None, options: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest for what lies at an address. Raises CallerError, ManifestError."""
    if local_artifact(address) is None:
        address = check_address(address)
    if "task" in options:
        check_task(options["task"])
    stated = {"options": dict(options)} if options else {}
    return with_fields({"name": name or name_for(address), "artifact": {"uri": address, **stated}}, fields)


def is_fetched(request: pb.RegisterRequest) -> bool:
    """Return whether what a registration is for is fetched from an address."""
    if request.address:
        return True
    raw = load_yaml(request.manifest_yaml)
    artifact = raw.get("artifact") if isinstance(raw, dict) else None
    uri = artifact.get("uri") if isinstance(artifact, dict) else None
    return isinstance(uri, str) and local_artifact(uri) is None


def check_proof(request: pb.RegisterRequest, *, prove: bool, lazy: bool) -> None:
    """Raise CallerError if files are to be hashed before they are served, and none are fetched by this registration."""
    if prove and not is_fetched(request):
        raise CallerError(
            "prove is for what is fetched from an address (hf://, https://, s3://), and this lies here; leave it out"
        )
    if prove and lazy:
        raise CallerError("prove is for what is fetched now, and a lazy registration fetches nothing; leave one out")


def name_in(request: pb.RegisterRequest) -> str:
    """Return the name that a registration is for; empty if its manifest has none."""
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
        version = framework.get("version")
        if not isinstance(version, str | None):
            raise ManifestError(f"the manifest: framework.version must be text, not {version!r:.80}; quote it")


def _refuse_beside(what: str, options: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Raise CallerError for what is stated beside a manifest and belongs into it."""
    refuse_fields(fields, what)
    for name in options:
        raise CallerError(f"{name} is for artifacts; {what} is a manifest: write {name} there, under artifact.options")


def _refuse_name(name: str | None, source: object) -> None:
    """Raise CallerError for a name that is stated beside a manifest."""
    if name is not None:
        raise CallerError(f"name is for artifacts; {source} is a manifest, and its field `name` names the model")


def is_manifest(path: Path) -> bool:
    """Return whether a path is read as a manifest, and not as an artifact.

    A path, not its text: `m.yaml/` and `m.yaml/.` open `m.yaml`, too.
    """
    return path.suffix in (".yaml", ".yml")


def _manifest_of(
    source: Path, name: str | None, options: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    if not is_manifest(source):
        return with_fields(manifest_for(source, name, {**artifact_options(fields), **options}), fields), ""
    check_text(source)
    _refuse_beside(str(source), options, fields)
    _refuse_name(name, source)
    return read_manifest(source)
