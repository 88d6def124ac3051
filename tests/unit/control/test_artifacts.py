"""From a path that a user typed to a manifest: the file with the weights, and a name that says which model it is."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trims.control.artifacts import _WEIGHTS, _name_for, manifest_for
from trims.core.errors import ArtifactNotFoundError, CallerError
from trims.core.manifest import parse_manifest


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Bert Base.v2.safetensors", "bert-base"),
        ("_hidden_.npz", "hidden"),
        ("resnet/model.onnx", "resnet"),
        ("resnet/pytorch_model.bin", "resnet"),
        ("models--org--tiny-gpt/snapshots/abc123/model.safetensors", "tiny-gpt"),
        ("models--org--tiny-gpt/snapshots/abc123/encoder.safetensors", "encoder"),
    ],
)
def test_a_model_is_called_by_its_file_or_by_its_folder_where_the_file_says_nothing(
    tmp_path: Path, file: str, name: str
) -> None:
    main = made(tmp_path / file)
    assert manifest_for(main, None) == {"name": name, "artifact": {"path": str(main)}}
    assert manifest_for(main, "mine")["name"] == "mine"


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "resnet" / "model.onnx")
    monkeypatch.chdir(tmp_path / "resnet")
    wanted = {"name": "resnet", "artifact": {"path": str(tmp_path / "resnet" / "model.onnx")}}
    assert manifest_for(Path("model.onnx"), None) == wanted
    assert manifest_for(Path(), None) == wanted


def test_of_a_folder_the_first_known_name_is_taken(tmp_path: Path) -> None:
    for name in reversed(_WEIGHTS):
        made(tmp_path / name)
        assert manifest_for(tmp_path, "m")["artifact"]["path"] == str(tmp_path / name)


def test_a_folder_without_weights_and_a_path_to_nothing_are_told_apart(tmp_path: Path) -> None:
    made(tmp_path / "consolidated.pth")
    with pytest.raises(CallerError, match=r"holds none of model\.safetensors.*; name the file with the weights itself"):
        manifest_for(tmp_path, None)
    with pytest.raises(ArtifactNotFoundError, match="gone does not exist"):
        manifest_for(tmp_path / "gone", None)


@given(st.text(string.ascii_letters + string.digits + " _-+()", min_size=1, max_size=100))
def test_any_latin_file_name_gives_a_name_that_a_manifest_may_have(stem: str) -> None:
    name = _name_for(Path("/models/x7") / f"m{stem}.npz")
    assert parse_manifest({"name": name, "artifact": {"path": "/m.npz"}}, "").name == name
