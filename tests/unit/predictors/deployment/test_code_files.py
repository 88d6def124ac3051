"""The code beside a manifest: any edit of it is seen, and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from trims_predictors.deployment.code_files import code_identity

from trims.manifests.manifest import Manifest, parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def manifest(origin: Path, **fields: Any) -> Manifest:
    return parse_manifest({"name": "m", "artifact": {"path": "m.npz"}, **fields}, str(origin))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    for name in ("mine.py", "helper.py", "own/__init__.py", "own/part.py"):
        (tmp_path / name).write_text("NUMBER = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    "fields",
    [
        {"predictor": {"call": "mine:Model"}},
        {"predictor": {"function": "mine:run"}},
        {"predictor": {"call": "own.part:Model"}},
        {"predictor": {"handler": "mine.py:handler"}},
        {"preprocess": [{"call": "mine:before"}]},
        {"postprocess": [{"call": "own.part:after"}]},
    ],
)
@pytest.mark.parametrize(
    "edit",
    [
        lambda file: file.write_text("NUMBER = 2\n"),
        lambda file: os.replace(file.with_name("helper.py"), file),
        lambda file: file.unlink(),
    ],
)
def test_code_that_is_edited_replaced_or_removed_has_another_identity(
    code: Path, fields: dict[str, Any], edit: Callable[[Path], object]
) -> None:
    before = code_identity(manifest(code, **fields))
    assert before == code_identity(manifest(code, **fields)) != ""
    file = code / ("own/part.py" if "own" in str(fields) else "mine.py")
    (file.with_name("helper.py")).write_text("NUMBER = 2\n")
    after_helper = code_identity(manifest(code, **fields))
    assert after_helper != before, "modules beside it may be imported by it"
    edit(file)
    assert code_identity(manifest(code, **fields)) != after_helper


@pytest.mark.parametrize(
    "fields",
    [
        {"predictor": {"function": "own.part:run"}},
        {"predictor": {"call": "mine:Model"}},
        {"artifact": {"path": "m.npz", "options": {"module": "own.part:build"}}},
    ],
)
def test_modules_of_inner_packages_count(code: Path, fields: dict[str, Any]) -> None:
    deep = code / "own" / "sub" / "deep.py"
    deep.parent.mkdir()
    deep.write_text("NUMBER = 1\n")
    before = code_identity(manifest(code, **fields))
    deep.write_text("NUMBER = 2\n")
    assert code_identity(manifest(code, **fields)) != before


def test_a_tree_of_folders_without_modules_is_not_walked(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "data" / "inner").mkdir(parents=True)
    (code / "data" / "inner" / "late.py").touch()
    looked = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(str(path)) or scandir(path))
    code_identity(manifest(code, predictor={"call": "mine:Model"}))
    assert str(code / "data") in looked
    assert str(code / "data" / "inner") not in looked


def test_code_of_installed_packages_and_other_files_of_the_folder_do_not_count(code: Path) -> None:
    assert code_identity(manifest(code, predictor={"call": "json.decoder:JSONDecoder"})) == ""
    assert code_identity(manifest(code)) == ""
    before = code_identity(manifest(code, predictor={"call": "mine:Model"}))
    (code / "notes.txt").write_text("anything")
    assert code_identity(manifest(code, predictor={"call": "mine:Model"})) == before


def test_a_folder_of_thousands_of_files_is_looked_at_in_part(code: Path) -> None:
    for number in range(1000):
        (code / f"a{number:04}.py").touch()
    before = code_identity(manifest(code, predictor={"call": "mine:Model"}))
    (code / "mine.py").write_text("NUMBER = 2\n")
    assert code_identity(manifest(code, predictor={"call": "mine:Model"})) != before


def test_a_link_that_leads_to_itself_is_no_folder(code: Path) -> None:
    before = code_identity(manifest(code, predictor={"call": "mine:Model"}))
    (code / "loop").symlink_to("loop")
    assert code_identity(manifest(code, predictor={"call": "mine:Model"})) == before
