"""Lines of what is wrong with a manifest."""

from __future__ import annotations

import pytest

from trims.control.manifest_lines import Lines, Problem, yaml_problem
from trims.core.errors import ManifestError
from trims.registry.base import parse_yaml

TEXT = """\
name: m
artifact:
  path: a.onnx
  wrong: 1
preprocess:
  - softmax: {input: x}
  - softmax:
      axis: last
inputs: [{name: x,
          dtype: FP33}]
"""


@pytest.mark.parametrize(
    ("error", "line", "field"),
    [
        ("artifact.path: is 3; write text", 3, "artifact.path"),
        ("artifact: unknown field 'wrong'; known are path", 4, "artifact"),
        ("preprocess[1] softmax.axis: is 'last'; write a number", 8, "preprocess[1] softmax.axis"),
        ("preprocess[0] softmax: 'keep' needs an 'output'", 6, "preprocess[0] softmax"),
        ("inputs[0].dtype: is 'FP33'", 10, "inputs[0].dtype"),
        ("inputs[7].dtype: is beyond what is there", 9, "inputs[7].dtype"),
        ("unknown field 'artefact'; did you mean", 1, ""),
        ("the field 'framework' is missing; write it", 1, ""),
        ("has 'inputs' and a handler; leave it out", 9, "inputs"),
        ("artifact.sha256 of 'x' must be 64 digits", 2, "artifact.sha256"),
    ],
)
def test_an_error_is_found_in_the_text(error: str, line: int, field: str) -> None:
    found = Lines(TEXT).problem(error)
    assert (found.line, found.field) == (line, field)
    assert error.endswith(found.message)


def test_text_that_is_no_yaml_has_one_line() -> None:
    assert Lines("a: [").of("a.b") == 1
    assert Lines("").of("a") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: [x\nc: 2", Problem(3, "", "is not YAML: expected ',' or ']', but got ':'")),
        ("a: 1\nb: 2\na: 3", Problem(3, "", "is not YAML: the key 'a' is there twice, in lines 1 and 3; keep one")),
        ("- 1", Problem(1, "", "must be a mapping")),
    ],
)
def test_what_yaml_refuses_has_its_line(text: str, problem: Problem) -> None:
    with pytest.raises(ManifestError) as error:
        parse_yaml(text)
    assert yaml_problem(error.value) == problem
