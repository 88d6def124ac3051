"""Files of templates: a change is noticed, and so is a name of the program's own that would be imported instead."""

from __future__ import annotations

import os
import time
from importlib.machinery import EXTENSION_SUFFIXES, all_suffixes
from typing import TYPE_CHECKING

import pytest

from trims.programs.freshness import Files, shadow, site_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD_NS = 1_600_000_000 * 10**9


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Folder of packages that has rested, with one module."""
    (tmp_path / "packages").mkdir()
    write(tmp_path / "packages" / "module.py")
    rest(tmp_path / "packages")
    return tmp_path / "packages"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    rest(path)


def rest(path: Path) -> None:
    os.utime(path, ns=(OLD_NS, OLD_NS))


def files_of(folder: Path, since_ns: int | None = None) -> Files:
    module = str(folder / "module.py")
    return Files([module, module, f"{folder}/none.py"], [str(folder)], since_ns or time.time_ns())


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
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed_by_its_path(installed: Path, what: str) -> None:
    files = files_of(installed)
    change, noticed = CHANGES[what]
    change(installed)
    assert files.changed() == str(installed / noticed)


@pytest.mark.parametrize(
    ("ago_s", "since_ago_s", "torn"),
    [(60, 30, False), (10, 30, True), (30.01, 30, True), (30.1, 30, False), (-60, 30, False)],
)
def test_a_file_that_is_as_young_as_a_look_at_it_may_be_torn(
    installed: Path, ago_s: float, since_ago_s: float, torn: bool
) -> None:
    now_ns = time.time_ns()
    then_ns = now_ns - int(ago_s * 1e9)
    os.utime(installed / "module.py", ns=(then_ns, then_ns))
    files = files_of(installed, now_ns - int(since_ago_s * 1e9))
    assert files.torn == (str(installed / "module.py") if torn else None)
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
