"""Registrations are sent as they were meant, or refused where they were made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from operators import MODEL

from trims.control import registration
from trims.core.errors import ArtifactNotFoundError, CallerError, ManifestError
from trims.manifests.manifest import parse_manifest
from trims.registry.base import parse_yaml
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = {"name": "m", "artifact": {"path": "m.npz"}}


def test_a_manifest_in_a_file_is_sent_with_the_folder_its_paths_begin_at(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(json.dumps(MANIFEST))
    request = registration.register(tmp_path / "m.yaml", None, replace=True)
    assert yaml.safe_load(request.manifest_yaml) == MANIFEST
    assert (request.origin, request.replace) == (str(tmp_path.resolve()), True)
    with pytest.raises(CallerError, match=r"^name is for artifacts; .*m\.yaml is a manifest"):
        registration.register(tmp_path / "m.yaml", "other", replace=False)


def test_an_artifact_is_sent_as_a_manifest_of_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Bert Large.npz").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    request = registration.register("Bert Large.npz", None, replace=False)
    wanted = {"name": "bert-large", "artifact": {"path": str(tmp_path / "Bert Large.npz")}}
    assert yaml.safe_load(request.manifest_yaml) == wanted
    assert (registration.name_in(request), request.origin) == ("bert-large", "")
    with pytest.raises(ArtifactNotFoundError, match="absent does not exist"):
        registration.register("absent", None, replace=False)


def test_a_state_key_is_for_artifacts_and_refused_with_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"x")
    (tmp_path / "m.yaml").write_text(json.dumps(MANIFEST))
    request = registration.register(tmp_path / "m.pt", None, replace=False, options={"state_key": "net"})
    assert yaml.safe_load(request.manifest_yaml)["artifact"]["options"] == {"state_key": "net"}
    sources: tuple[Any, ...] = (tmp_path / "m.yaml", MANIFEST)
    for source in sources:
        with pytest.raises(CallerError, match=r"is a manifest: write state_key there, under artifact\.options"):
            registration.register(source, None, replace=False, options={"state_key": "net"})


def test_fields_beside_an_artifact_go_into_its_manifest_and_are_refused_beside_one(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    (tmp_path / "m.yaml").write_text(json.dumps(MANIFEST))
    fields = {"version": "2", "predictor": {"instances": 2}, "artifact": {"options": {"prepack": "shared"}}}
    for source, where in ((tmp_path / "m.onnx", "path"), ("s3://bucket/m.onnx", "uri")):
        request = registration.register(source, None, replace=False, fields=fields)
        sent = yaml.safe_load(request.manifest_yaml)
        artifact = sent.pop("artifact")
        assert sent == {"name": "m", "version": "2", "predictor": {"instances": 2}}
        assert (artifact["options"], artifact[where]) == ({"prepack": "shared"}, str(source))
    sources: tuple[Any, ...] = (tmp_path / "m.yaml", MANIFEST, "https://host/m.yaml")
    for each in sources:
        with pytest.raises(CallerError, match=r"^version is for artifacts and functions; .* is a manifest: write ver"):
            registration.register(each, None, replace=False, fields=fields)


def test_a_source_that_is_neither_path_nor_mapping_is_refused() -> None:
    with pytest.raises(CallerError, match="7 is no model; give a path, or a manifest as a mapping"):
        registration.register(7, None, replace=False)  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match="the manifest cannot be written as YAML"):
        registration.register({"name": object()}, None, replace=False)


def test_the_name_of_a_manifest_without_one_is_empty() -> None:
    assert registration.name_in(registration.register(MANIFEST, None, replace=False)) == "m"
    assert registration.name_in(registration.register({}, None, replace=False)) == ""
    assert registration.name_in(pb.RegisterRequest(manifest_yaml="- a")) == ""


def test_a_model_is_put_back_as_it_was_kept() -> None:
    from dataclasses import replace

    request = registration.register_again(replace(MODEL, manifest_json=json.dumps(MANIFEST), origin="/models"))
    assert yaml.safe_load(request.manifest_yaml) == MANIFEST
    assert (request.origin, request.replace) == ("/models", True)


@pytest.mark.parametrize(
    "fields",
    [{"version": 1.1}, {"version": 10**5000}, {"framework": {"name": "torch", "version": 2.1}},
     {"framework": {"name": "torch", "version": 2}}, {"attributes": {"x": 10**5000}}],
    ids=["version", "long version", "framework", "whole framework", "long number"],
)  # fmt: skip
def test_numbers_that_yaml_would_change_or_not_carry_are_manifest_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        registration.register({**MANIFEST, **fields}, None, replace=False)


def test_a_whole_number_as_version_arrives_as_its_digits() -> None:
    given = {**MANIFEST, "version": 3}
    assert parse_manifest(parse_yaml(registration.register(given, None, replace=False).manifest_yaml)).version == "3"
