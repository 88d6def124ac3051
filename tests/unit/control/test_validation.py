"""Checks of manifests: every mistake is found at once, with its line and what helps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from trims.control.artifacts import manifest_for
from trims.control.validation import as_json, check_manifests
from trims.formats.conversion.interpreter_selection import InterpreterSelection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANY = """\
name: m
artifact:
  path: nowhere.onnx
framework: {name: torhc}
predictor:
  instances: 0
  preload: [x]
residency: {plase: cpu}
unknown: 1
outputs:
  - {name: y, dtype: FP32, shape: [-1], labels: nowhere.txt}
"""


@pytest.fixture
def check(folder: Path) -> Callable[..., list[tuple[int, str, str]]]:
    """Check one text; returns its problems."""

    def one(text: str) -> list[tuple[int, str, str]]:
        (folder / "m.yaml").write_text(text)
        (found,) = check_manifests([folder / "m.yaml"], InterpreterSelection())
        return [tuple(each) for each in found.problems]

    return one


def test_all_that_is_wrong_is_found_at_once_in_the_order_of_lines(
    check: Callable[[str], list[tuple[int, str, str]]],
) -> None:
    found = [(line, field) for line, field, _ in check(MANY)]
    assert found == [
        (3, "artifact.path"),
        (4, "framework.name"),
        (6, "predictor.instances"),
        (8, "residency"),
        (9, ""),
        (11, "outputs[0].labels"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        ("name: m\nartifact: {path: m.onnx, format: nonsense}", 2, "artifact.format", "there is no format 'nonsense'"),
        ("name: m\nartifact: {path: m.txt}", 2, "artifact.path", "claimed by no converter"),
        ("name: m\nartifact:\n  package: {name: nowhere_at_all, path: x}", 3, "artifact.package", "is not installed"),
        ("name: m\nartifact:\n  package: {name: numpy, path: x}", 3, "artifact.package", "x is no file"),
        (
            'name: m\nartifact: {model: b}\nframework: {name: numpy, version: ">=99"}',
            3, "framework.version", "trims env create 'numpy>=99'",
        ),
        (
            "name: m\nartifact: {model: b}\npredictor:\n  handler: none.py:h",
            4, "predictor.handler", "none.py does not exist",
        ),
        (
            "name: m\nartifact: {model: b}\npreprocess:\n - tokenize: {input: x, tokenizer: t.json}",
            4, "preprocess[0].tokenize.tokenizer", "t.json is no file",
        ),
        ("artifact: {model: b}", 1, "", "the field 'name' is missing"),
        ("name: m", 1, "", "the field 'artifact' is missing"),
        ("artifact: [", 1, "", "is not YAML"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_here_has_its_line_and_remedy(
    folder: Path, check: Callable[[str], list[tuple[int, str, str]]], text: str, line: int, field: str, message: str
) -> None:
    (folder / "m.onnx").write_bytes(b"x")
    (folder / "m.txt").write_bytes(b"x")
    (problem,) = check(text)
    assert problem[:2] == (line, field)
    assert message in problem[2]


def test_a_manifest_that_is_right_has_no_problem(
    checkpoint: Callable[..., Path], check: Callable[[str], list[tuple[int, str, str]]]
) -> None:
    path = checkpoint("m")
    assert check(f"name: m\nversion: 1.10\nartifact: {{path: {path.name}}}\nframework: {{name: numpy}}") == []
    assert check("name: m\nartifact: {uri: hf://org/name}") == [], "what is fetched is not looked at"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a Hugging Face model, as far as a check looks at it."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_a_folder_that_may_be_added_may_be_an_artifact(
    model: Path, checkpoint: Callable[..., Path], check: Callable[[str], list[tuple[int, str, str]]]
) -> None:
    assert check(yaml.safe_dump(manifest_for(model, "m"))) == []
    assert check(f"name: m\nartifact: {{path: {model}}}") == []
    assert check(f"name: m\nartifact: {{path: {checkpoint('model').parent}}}") == []


def test_a_folder_without_weights_or_with_a_broken_configuration_is_no_artifact(
    model: Path, check: Callable[[str], list[tuple[int, str, str]]]
) -> None:
    text = f"name: m\nartifact:\n  format: transformers\n  path: {model}"
    (model / "config.json").write_text("{")
    ((line, field, message),) = check(text)
    assert (line, field) == (4, "artifact.path")
    assert "config.json is no JSON" in message
    (model / "config.json").unlink()
    (model / "model.safetensors").unlink()
    ((line, field, message),) = check(text)
    assert (line, field) == (4, "artifact.path")
    assert "holds none of model.safetensors" in message


@pytest.mark.parametrize("stated", ["format: transformers, ", ""])
@pytest.mark.parametrize("task", ["translation", "3"])
def test_a_task_that_there_is_not_is_told(
    model: Path, check: Callable[[str], list[tuple[int, str, str]]], stated: str, task: str
) -> None:
    ((line, field, message),) = check(f"name: m\nartifact: {{path: {model}, {stated}\n  options: {{task: {task}}}}}")
    assert (line, field) == (3, "artifact.options.task")
    assert "there is no task" in message
    assert "fill-mask" in message


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("stated", "field", "message"),
    [
        ("options: {nosuch: 1}", "predictor.options", "the task fill-mask does not know"),
        ("options: {top_k: abc}", "predictor.options", "predictor.options.top_k is 'abc'"),
    ],
)
def test_an_option_that_the_task_does_not_know_is_told(
    model: Path, check: Callable[[str], list[tuple[int, str, str]]], here: bool, stated: str, field: str, message: str
) -> None:
    lies = f"path: {model}" if here else "uri: hf://org/m, format: transformers, options: {task: fill-mask}"
    (problem,) = check(f"name: m\nartifact: {{{lies}}}\npredictor:\n  {stated}")
    assert problem[:2] == (4, field)
    assert message in problem[2]


def test_batches_of_a_task_whose_requests_would_mix_are_told(
    model: Path, check: Callable[[str], list[tuple[int, str, str]]]
) -> None:
    lies = f"path: {model}, options: {{task: question-answering}}"
    ((line, field, message),) = check(f"name: m\nartifact: {{{lies}}}\npredictor:\n  max_batch_size: 4")
    assert (line, field) == (4, "predictor.max_batch_size")
    assert "cannot run together" in message


def test_two_files_with_one_name_are_told_and_files_that_are_none(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text("version: 1.0.0\nname: m\nartifact: {model: other}")
    (folder / "c.yaml").write_bytes(b"\xff")
    files = [folder / f"{name}.yaml" for name in "abcd"]
    found = check_manifests(files, InterpreterSelection())
    assert [len(each.problems) for each in found] == [0, 1, 1, 1]
    assert as_json(found[1]) == {
        "file": str(files[1]),
        "name": "m",
        "ok": False,
        "problems": [
            {
                "line": 2,
                "field": "name",
                "message": f"'m' is the name in {files[0]}, too; models have names of their own",
            }
        ],
    }


@pytest.mark.parametrize("stated", ["format: transformers, ", ""])
def test_a_module_that_is_not_served_is_reported_as_an_addition_would(
    model: Path, check: Callable[[str], list[tuple[int, str, str]]], stated: str
) -> None:
    listed = [{"path": "", "type": "sentence_transformers.models.CLIPModel"}, {"path": "1", "type": "mine.Head"}]
    (model / "modules.json").write_text(json.dumps(listed))
    ((line, field, message),) = check(f"name: m\nartifact: {{path: {model}, {stated}}}")
    assert (line, field) == (2, "artifact.path")
    assert "CLIPModel" in message


def test_a_model_whose_files_are_elsewhere_is_not_looked_into(
    check: Callable[[str], list[tuple[int, str, str]]],
) -> None:
    assert check("name: m\nartifact: {uri: hf://org/name, format: transformers}") == []
