"""Where the files of steps are looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trims_predictors.transforms.files import locate

from trims.core.errors import NotSupportedError


def test_a_file_lies_beside_the_manifest_or_where_its_path_says(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "labels.txt"
    file.write_text("a\n")
    assert locate({"path": "inside/labels.txt"}, str(tmp_path)) == str(file)
    assert locate({"path": str(file)}, "") == str(file)


def test_a_file_of_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_of_steps" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "t.json").write_text("{}")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Path(locate({"package": ["package_of_steps.inner", "t.json"]}, "")) == package / "t.json"
    assert Path(locate({"package": ["package_of_steps", "inner/t.json"]}, "")) == package / "t.json"
    assert "package_of_steps" not in sys.modules


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match=r"absent\.txt that a step of the manifest names is not there"):
        locate({"path": "absent.txt"}, str(tmp_path))
    with pytest.raises(NotSupportedError, match="lies in no folder; write an absolute path"):
        locate({"path": "absent.txt"}, "")
    for package in ("no_such_package", "sys"):
        with pytest.raises(NotSupportedError, match=f"needs the Python package '{package}'; install it"):
            locate({"package": [package, "t.json"]}, "")


def test_a_directory_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match=rf"names {tmp_path}, which is a directory; name a file in it"):
        locate({"path": str(tmp_path)}, "")
