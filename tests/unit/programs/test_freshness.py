"""Files of templates: a change is noticed, and so is a name of the program's own that would be imported instead."""

from __future__ import annotations

import os
import time
from importlib.machinery import EXTENSION_SUFFIXES, all_suffixes
from typing import TYPE_CHECKING

import pytest

from trims.programs import freshness
from trims.programs.freshness import Files, shadow, site_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD_NS = 1_600_000_000 * 10**9


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Folder of packages that has rested, with one module and one other file."""
    (tmp_path / "packages").mkdir()
    write(tmp_path / "packages" / "module.py", "x")
    write(tmp_path / "packages" / "other.txt")
    rest(tmp_path / "packages")
    return tmp_path / "packages"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    rest(path)


def rest(path: Path) -> None:
    os.utime(path, ns=(OLD_NS, OLD_NS))


def files_of(folder: Path, since_ns: int | None = None, looked: list[str] | None = None) -> Files:
    module = str(folder / "module.py")
    after_all_ns = time.time_ns() + 2 * freshness._COARSE_NS
    return Files([module, module, f"{folder}/none.py"], [str(folder)], looked or [], since_ns or after_all_ns)


def test_files_that_have_rested_are_neither_changed_nor_torn(installed: Path) -> None:
    files = files_of(installed)
    assert (files.changed(), files.torn) == (None, None)


#: Change of a folder with a module, and the path that it is noticed by.
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "other text": (lambda folder: (folder / "module.py").write_text("x = 1"), "module.py"),
    "another time": (lambda folder: os.utime(folder / "module.py", (5, 5)), "module.py"),
    "no file": (lambda folder: (folder / "module.py").unlink(), "module.py"),
    "another file": (lambda folder: (write(folder / "x"), (folder / "x").replace(folder / "module.py")), "module.py"),
    "a file that was missing": (lambda folder: (write(folder / "none.py"), rest(folder)), "none.py"),
    "a new name": (lambda folder: write(folder / "new.py"), ""),
    "a name less": (lambda folder: (folder / "other.txt").unlink(), ""),
    "other text of one length, its time put back": (
        lambda folder: ((folder / "module.py").write_text("y"), rest(folder / "module.py")), "module.py",
    ),
    "no folder": (lambda folder: folder.rename(folder.with_name("away")), "module.py"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed_by_its_path(installed: Path, what: str) -> None:
    files = files_of(installed)
    change, noticed = CHANGES[what]
    change(installed)
    assert files.changed() == str(installed / noticed)


@pytest.mark.parametrize(("after_ms", "torn"), [(-1000, True), (0, True), (19, True), (21, False)])
@pytest.mark.parametrize("put_back", [False, True])
def test_a_file_that_is_as_young_as_a_look_at_it_may_be_torn(
    installed: Path, after_ms: int, torn: bool, put_back: bool
) -> None:
    module = installed / "module.py"
    module.write_text("z")
    if put_back:
        rest(module)
    since_ns = module.stat().st_ctime_ns + after_ms * 1_000_000
    files = files_of(installed, since_ns)
    assert files.torn == (str(module) if torn else None)
    assert files.changed() is None


def test_a_library_that_was_replaced_while_it_was_loaded_is_torn(installed: Path) -> None:
    assert Files([f"{installed}/lib.so (deleted)"], [], [], time.time_ns()).torn == f"{installed}/lib.so (deleted)"


def test_what_was_looked_at_counts_by_being_there_and_a_file_by_its_content(installed: Path) -> None:
    folder, absent = installed / "config", installed / "absent"
    folder.mkdir()
    files = files_of(installed, looked=[str(folder), str(absent), str(installed / "other.txt")])
    write(folder / "new")
    assert files.changed() is None
    (installed / "other.txt").write_text("more")
    assert files.changed() == str(installed / "other.txt")
    rest(installed / "other.txt")
    files = files_of(installed, looked=[str(absent)])
    absent.mkdir()
    assert files.changed() in (str(absent), str(installed))


def test_compiled_code_that_appears_in_a_folder_changes_nothing(installed: Path) -> None:
    files = files_of(installed)
    (installed / "__pycache__").mkdir()
    assert files.changed() is None


def test_an_environment_is_decided_by_its_settings_and_path_files(tmp_path: Path) -> None:
    for name in ("b.pth", "a.pth", "pth", "c.pth.txt", "module.py"):
        write(tmp_path / "one" / name)
    write(tmp_path / "two" / "d.pth")
    found = site_files(f"{tmp_path}/venv", [str(tmp_path / name) for name in ("one", "nothing", "two")])
    assert found == [f"{tmp_path}/{name}" for name in ("venv/pyvenv.cfg", "one/a.pth", "one/b.pth", "two/d.pth")]


#: Modules that a template has found in `installed`, and those that it has not found.
MODULES = {"plain": "{installed}/plain.py", "package": "{installed}/package/__init__.py", "spread": ""}
MISSING = ["absent"]
EXTENSION = EXTENSION_SUFFIXES[0]


def found_in(folder: Path, own: dict[str, str] | None = None) -> str | None:
    """Return what a folder has in the place of a template's module, relative to it."""
    modules = {name: file.format(installed="/installed") for name, file in MODULES.items()}
    found = shadow(str(folder), {**modules, **(own or {})}, MISSING, all_suffixes())
    return None if found is None else os.path.relpath(found, folder)


@pytest.mark.parametrize("name", [*MODULES, *MISSING])
@pytest.mark.parametrize("suffix", [".py", ".pyc", *EXTENSION_SUFFIXES])
def test_a_file_with_the_name_of_a_module_comes_before_it(tmp_path: Path, name: str, suffix: str) -> None:
    write(tmp_path / f"{name}{suffix}")
    assert found_in(tmp_path) == f"{name}{suffix}"


@pytest.mark.parametrize("name", [*MODULES, *MISSING])
@pytest.mark.parametrize("suffix", [".py", ".pyc", EXTENSION])
def test_a_package_with_the_name_of_a_module_comes_before_it(tmp_path: Path, name: str, suffix: str) -> None:
    write(tmp_path / name / f"__init__{suffix}")
    assert found_in(tmp_path) == name


@pytest.mark.parametrize(("name", "comes"), [("plain", False), ("package", False), ("spread", True), ("absent", True)])
def test_a_plain_folder_comes_before_what_no_file_makes_a_module(tmp_path: Path, name: str, comes: bool) -> None:
    write(tmp_path / name / "inner.py")
    assert found_in(tmp_path) == (name if comes else None)


@pytest.mark.parametrize(
    "name",
    [
        "other.py", "plain", "plain.txt", "plain.py.old", ".py", "plain.d/__init__.py",
        "other/__init__.py", "plain2.py", "__pycache__/plain.pyc", "Plain.py",
    ],
)  # fmt: skip
def test_a_name_that_no_import_finds_comes_before_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert found_in(tmp_path) is None


@pytest.mark.parametrize("name", ["own.py", "own/__init__.py", f"own{EXTENSION}"])
def test_a_module_in_the_folder_itself_comes_before_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert found_in(tmp_path, {"own": str(tmp_path / name)}) is None


def test_a_package_comes_before_the_module_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "own.py")
    write(tmp_path / "own" / "__init__.py")
    assert found_in(tmp_path, {"own": str(tmp_path / "own.py")}) == "own"


def test_a_folder_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert found_in(tmp_path / "nothing") is None
