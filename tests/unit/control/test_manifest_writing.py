"""Manifests that are written: each is read back as it is meant, and its comments are comments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tiny_models import named, save

from trims.control.artifacts import manifest_for
from trims.control.manifest_writing import written_manifest
from trims.core.errors import ArtifactNotFoundError
from trims.manifests.manifest import Manifest, parse_manifest
from trims.registry.base import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Callable


def written(path: Path, *, has: bool = True) -> tuple[str, Manifest]:
    name, text = written_manifest(path, None, lambda framework: has)
    found = parse_manifest(parse_yaml(text))
    assert found.name == name
    return text, found


def test_what_a_graph_states_is_in_the_manifest(folder: Path) -> None:
    from onnx_files import linear

    text, found = written(linear(folder))
    assert (found.artifact.path, found.artifact.format) == (str(folder / "linear.onnx"), "onnx")
    assert found.framework is not None
    assert found.framework.name == "onnxruntime"
    assert [(each.name, each.dtype, each.shape) for each in (*found.inputs, *found.outputs)] == [
        ("x", "FP32", (-1, 32)),
        ("y", "FP32", (-1, 64)),
    ]
    assert "# onnx, 1 file: 2 tensors (2 F32), 8.2 KiB" in text


def test_a_framework_that_is_not_there_is_a_comment(folder: Path) -> None:
    from onnx_files import linear

    text, found = written(linear(folder), has=False)
    assert found.framework is None
    assert "`trims env create onnxruntime` makes one" in text


def test_fields_in_comments_are_ones_that_count(checkpoint: Callable[..., Path]) -> None:
    text, _ = written(checkpoint("m"))
    # Behind `#` and one blank are words for people.
    lines = [line for line in text.split("\n") if line[:2] != "# " or line[:3] == "#  "]
    assert parse_manifest(parse_yaml("\n".join(line.removeprefix("#") for line in lines))).residency.pin
    assert "#  call: my_models:Predictor" in text


def test_a_path_with_strange_characters_stays_a_comment_and_a_text(
    folder: Path, checkpoint: Callable[..., Path]
) -> None:
    strange = folder / "a: {b}\n#'c'.safetensors"
    checkpoint("m").rename(strange)
    text, found = written(strange)
    assert found.artifact.path == str(strange)
    assert "a: {b}" in text.split("\n")[0]


@pytest.mark.parametrize("safe", [True, False])
def test_a_folder_of_a_hugging_face_model_is_what_add_registers(tmp_path: Path, safe: bool) -> None:
    pytest.importorskip("transformers")
    model = save(named("BertForSequenceClassification"), tmp_path / "m", safe=safe)
    text, found = written(model)
    stated = parse_manifest(manifest_for(model, None))
    assert (found.artifact, found.framework, found.attributes) == (stated.artifact, stated.framework, stated.attributes)
    assert (found.artifact.path, found.artifact.format) == (str(model), "transformers")
    assert found.artifact.options == {"task": "text-classification"}
    assert [each.name for each in found.inputs] == ["text"]
    assert [each.name for each in found.outputs] == ["label", "score"]
    assert "# transformers, 4 files: 41 tensors (41 F32), " in text


def test_nothing_there_is_told() -> None:
    with pytest.raises(ArtifactNotFoundError):
        written(Path("/nowhere/m.onnx"))
