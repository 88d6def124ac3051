"""Modules beside a manifest: each folder has its own, and a process with another one under the name gets an error."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import NotSupportedError
from trims.image import modules_beside as beside
from trims.image.modules_beside import builder_facts, files_beside, modules_beside

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that a test imports from its folders leave with it."""
    monkeypatch.setattr(beside, "_folders", set())
    before, path = set(sys.modules), list(sys.path)
    yield
    assert sys.path == path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def folder(tmp_path: Path, name: str, **files: str) -> str:
    for module, code in files.items():
        file = tmp_path / name / (module.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code)
    return str(tmp_path / name)


def test_the_files_of_a_module_and_its_packages_are_found(tmp_path: Path) -> None:
    origin = folder(tmp_path, "a", mods="", spaced__mods="")
    Path(origin, "whole").mkdir()
    for name in ("__init__", "mods"):
        Path(origin, "whole", f"{name}.py").write_text("")
    assert files_beside(origin, "mods") == {"mods": Path(origin, "mods.py")}
    assert files_beside(origin, "spaced.mods") == {"spaced.mods": Path(origin, "spaced", "mods.py")}
    assert list(files_beside(origin, "whole.mods")) == ["whole", "whole.mods"]
    for absent in ("json", "whole.other", "spaced", "../a/mods", "", "."):
        assert files_beside(origin, absent) == {}
    assert files_beside("", "mods") == {}


def test_a_builder_is_known_by_its_folder_and_its_content(tmp_path: Path) -> None:
    one, other = (folder(tmp_path, name, mods="x = 1") for name in "ab")
    before = builder_facts(one, "mods")
    assert before["origin"] == one
    assert before["sha256"] == builder_facts(other, "mods")["sha256"]
    Path(one, "mods.py").write_text("x = 2")
    assert builder_facts(one, "mods")["sha256"] != before["sha256"]
    assert builder_facts(one, "json") == {"origin": one}
    assert builder_facts("", "mods") == {}


def test_a_module_is_imported_from_the_folder_and_the_path_is_as_before(tmp_path: Path) -> None:
    origin = folder(tmp_path, "a", mods_of_a="who = 'a'")
    for _ in range(2):
        with modules_beside(origin, ["mods_of_a"], "m"):
            assert importlib.import_module("mods_of_a").who == "a"


@pytest.mark.parametrize("imported", ["before", "meanwhile"])
def test_another_file_of_the_name_is_refused_and_both_are_named(imported: str, tmp_path: Path) -> None:
    one, other = folder(tmp_path, "a", mods="who = 'a'"), folder(tmp_path, "b", mods="who = 'b'")

    def use(origin: str) -> None:
        with modules_beside(origin, ["mods"], "m"):
            if imported == "meanwhile" and origin == other:
                sys.path.insert(0, one)  # as another thread does
            importlib.import_module("mods")

    if imported == "before":
        use(one)
    with pytest.raises(NotSupportedError, match=rf"'mods' is {other}/mods\.py, .*imported {one}/mods\.py"):
        use(other)
    if imported == "meanwhile":
        sys.path.remove(one)


def test_a_module_of_python_itself_is_told_as_another(tmp_path: Path) -> None:
    origin = folder(tmp_path, "a", time="")
    with pytest.raises(NotSupportedError, match="one without a file"), modules_beside(origin, ["time"], "m"):
        pass


def test_a_copy_of_the_file_will_do_where_that_is_said(tmp_path: Path) -> None:
    one, other = folder(tmp_path, "a", mods=""), folder(tmp_path, "b", mods="")
    with modules_beside(one, ["mods"], "m"):
        importlib.import_module("mods")
    with modules_beside(other, ["mods"], "m", alike=True):
        pass
    with pytest.raises(NotSupportedError), modules_beside(other, ["mods"], "m"):
        pass


def test_a_link_to_the_folder_is_the_folder(tmp_path: Path) -> None:
    origin = folder(tmp_path, "a", mods="")
    (tmp_path / "link").symlink_to(origin)
    for each in (origin, str(tmp_path / "link")):
        with modules_beside(each, ["mods"], "m"):
            importlib.import_module("mods")


def test_what_a_module_of_the_folder_may_import_is_looked_at_as_well(tmp_path: Path) -> None:
    one = folder(tmp_path, "a", first="import parts", parts="x = 1")
    other = folder(tmp_path, "b", second="import parts", parts="x = 2")
    with modules_beside(one, ["first"], "m"):
        importlib.import_module("first")
    with pytest.raises(NotSupportedError, match=r"'parts' is .*/b/parts\.py"), modules_beside(other, ["second"], "m"):
        pass
    Path(other, "parts.py").write_text("x = 1")
    with modules_beside(other, ["second"], "m"):
        importlib.import_module("second")
