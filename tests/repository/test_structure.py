"""The shape of the code: no two files need each other, whether to run or only for the names of types."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("trims", "client/trims_client", "predictors/trims_predictors", "bench/trims_bench")


def _modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        base = (ROOT / package).parent
        for file in (ROOT / package).rglob("*.py"):
            name = ".".join(file.relative_to(base).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = file
    return found


def _named(file: Path) -> set[str]:
    """Everything that the file imports, anywhere in it, and under `TYPE_CHECKING` too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
            names.add(node.module)
    return names


def _graph(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return by module those that it names; a package that a module lies in is needed by it in any case."""
    return {
        name: {other for other in _named(file) & modules.keys() if not f"{name}.".startswith(f"{other}.")}
        for name, file in modules.items()
    }


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """Some modules that name each other, in order; empty if there are none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return way[way.index(name) :]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := walk(other, [*way, name]):
                return found
        done.add(name)
        return []

    return next(filter(None, (walk(name, []) for name in sorted(graph))), [])


def test_no_two_files_name_each_other() -> None:
    modules = _modules()
    assert len(modules) > 150, "the packages were not found"
    assert _circle(_graph(modules)) == []


def test_a_circle_would_be_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


def test_no_test_module_imports_another_and_helpers_are_in_support() -> None:
    tests = ROOT / "tests"
    modules = [path for path in tests.rglob("*.py") if "simulation" not in path.parts]
    for path in modules:
        name = path.name
        assert name.startswith("test_") or name == "conftest.py" or path.parent.name == "support", f"{path} is a helper"
        found = re.findall(r"^\s*(?:from|import) (test_\w+)", path.read_text(), re.MULTILINE)
        assert not found, f"{path} imports {found}; what both need belongs to tests/support"


#: Rooms whose code runs in programs of its own, each with the tests that start these.
RUN_ELSEWHERE = {
    "bench/trims_bench": "make bench-smoke, and test_bench_scenarios.py",
    "bench/trims_bench/cli": "tests/unit/bench/cli and tests/e2e/test_evaluations.py",
    "bench/trims_bench/gpu": "tests/e2e/test_gpu_check.py",
    "bench/trims_bench/scenarios": "make bench-smoke",
    "predictors/trims_predictors/frameworks": "in their own environments: tests/e2e/test_places.py",
    "trims/programs/inside": "tests/e2e/test_exec.py",
    "trims/programs": "tests/e2e/test_exec.py and tests/fault/test_exec.py",
}


def rooms() -> dict[str, list[str]]:
    """Folder of each package with modules -> its doors: modules of the folder that its docstring names."""
    found: dict[str, list[str]] = {}
    for top in ("trims", "client/trims_client", "predictors/trims_predictors", "bench/trims_bench"):
        for path in (ROOT / top).rglob("__init__.py"):
            names = {module.stem for module in path.parent.glob("*.py")} - {"__init__"}
            stated = re.findall(r"`(\w+)", ast.get_docstring(ast.parse(path.read_text())) or "")
            if names:
                found[str(path.parent.relative_to(ROOT))] = [name for name in dict.fromkeys(stated) if name in names]
    return found


def test_each_room_names_its_doors() -> None:
    assert [room for room, doors in rooms().items() if not doors and room != "trims"] == []


def test_each_door_of_a_room_is_used_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    lacking = []
    for room, doors in rooms().items():
        package = re.sub(r"^(client|predictors|bench)/", "", room).replace("/", ".")
        imported = re.compile(rf"{re.escape(package)}(?:\.| import .*?\b)(\w+)")
        used = set(imported.findall(tests)) | set(
            re.findall(r"\w+", " ".join(re.findall(rf"from {re.escape(package)} import (.*)", tests)))
        )
        if room not in RUN_ELSEWHERE:
            lacking += [f"{room}: {door}" for door in doors if door not in used]
    assert lacking == []


#: Options of the interpreter before a program that is not looked for beside the working folder.
_ISOLATED = "-I"


def _commands_with_the_working_folder(file: Path) -> list[int]:
    """Lines of lists such as `[sys.executable, "-m", ...]`: such a program imports from the working folder."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.List) and "sys.executable" in ast.unparse(node):
            words = {each.value for each in node.elts if isinstance(each, ast.Constant)}
            if words & {"-m", "-c"} and _ISOLATED not in words:
                found.append(node.lineno)
    return found


def test_python_programs_are_started_without_the_working_folder() -> None:
    shipped = ROOT / "trims" / "testing", ROOT / "trims" / "process"  # for tests, which choose their folder; the door
    found = {
        f"{file.relative_to(ROOT)}:{line}"
        for package in ("trims", "client", "predictors")
        for file in (ROOT / package).rglob("*.py")
        if not any(file.is_relative_to(folder) for folder in shipped)
        for line in _commands_with_the_working_folder(file)
    }
    assert found == set(), "trims.process.python.run_module and run_code start them"


#: Lines of a constructor, its signature among them.
_CONSTRUCTOR_LINES = 40


def _long_constructors(file: Path) -> list[str]:
    found = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    return [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for node in found
        if node.name == "__init__" and (node.end_lineno or 0) - node.lineno >= _CONSTRUCTOR_LINES
    ]


def test_a_constructor_is_at_most_40_lines_long() -> None:
    files = [file for file in _modules().values() if not file.name.endswith("_pb2_grpc.py")]  # which are generated
    assert [found for file in files for found in _long_constructors(file)] == []
