"""Requirements: what may be written, and what trims adds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from repository import ROOT

from trims.core.errors import ConfigError
from trims.environments.requirements import BESIDE, read_requirements, with_ours

if TYPE_CHECKING:
    from pathlib import Path


def test_requirements_come_from_words_and_from_files(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# models\n\npillow>=10  # images\ntokenizers ; python_version >= '3.9'\n")
    found = read_requirements(["torch == 2.4.1"], [file])
    assert found == ["torch==2.4.1", "pillow>=10", 'tokenizers; python_version >= "3.9"']


@pytest.mark.parametrize("text", ["torch==", "!", "-e .", "./torch.whl"])
def test_a_word_that_is_no_requirement_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"the requirement {text!r}")):
        read_requirements([text])


def test_a_line_that_is_no_requirement_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("torch\n--index-url https://example.com\n")
    with pytest.raises(ConfigError, match=r"requirements\.txt, line 2: .* is an option"):
        read_requirements([], [file])
    with pytest.raises(ConfigError, match="no requirements can be read from"):
        read_requirements([], [tmp_path / "missing"])


def test_an_address_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--find-links FOLDER torch"):
        read_requirements(["torch @ file:///wheels/torch.whl"])


def test_what_trims_needs_is_added_unless_it_is_stated() -> None:
    assert with_ours(["torch==2.4.1"]) == ["torch==2.4.1", "numpy>=1.23", "ml-dtypes>=0.5"]
    assert with_ours(["onnxruntime", "ML_Dtypes==0.5.1"]) == [
        "onnxruntime", "ML_Dtypes==0.5.1", "onnx>=1.17", "numpy>=1.23",
    ]  # fmt: skip
    assert with_ours(["mxnet"]) == ["mxnet", "numpy==1.23.5", "ml-dtypes>=0.5"]
    assert with_ours(["mxnet", "numpy<1.24"]) == ["mxnet", "numpy<1.24", "ml-dtypes>=0.5"]


def test_what_is_added_beside_a_framework_is_what_its_extra_has() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for framework, beside in BESIDE.items():
        (extra,) = re.findall(rf"^{framework} = \[(.*)\]$", text, re.MULTILINE)
        assert set(re.findall(r'"([^"]+)"', extra)) >= set(beside)
