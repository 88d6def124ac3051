"""The shape of the code: no two files need each other, whether to run or only for the names of types."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from repository import ROOT

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


#: Modules without a test file of their name, each with the reason.
UNTESTED_BY_NAME = {
    "trims/testing": "contract suites and stand-ins: the tests of what they stand for run them",
    "predictors/trims_predictors/evaluation/database/migrations": "test_tables.py beside them runs all of them",
    "trims/programs/inside": "runs in processes of programs: tests/e2e/test_exec.py runs all of it",
    "trims/programs/launch.py": "the whole way of a program: tests/e2e/test_exec.py",
    "trims/programs/relay.py": "what it passes on: tests/fault/test_exec.py",
    "trims/programs/host.py": "what it outlives: tests/fault/test_exec.py",
    "trims/wire/trims_pb2.py": "generated",
    "trims/wire/trims_pb2_grpc.py": "generated",
    "predictors/trims_predictors/endpoint/grpc/inference_pb2": "generated",
}


def modules() -> list[Path]:
    packages = ("trims", "client/trims_client", "predictors/trims_predictors")
    found = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    found = [path for path in found if path.name != "__init__.py" and "\nstand_for(" not in path.read_text()]
    return [path.relative_to(ROOT) for path in found]


def test_every_module_has_a_test_file_of_its_name_in_the_folder_that_mirrors_it() -> None:
    lacking = []
    for module in modules():
        if any(str(module).startswith(known) for known in UNTESTED_BY_NAME):
            continue
        outer = module.parts[0] in ("client", "predictors")
        inside = Path(module.parts[0], *module.parts[2:]) if outer else Path(*module.parts[1:])
        if not (ROOT / "tests" / "unit" / inside.with_name(f"test_{inside.stem.lstrip('_')}.py")).exists():
            lacking.append(str(module))
    assert lacking == []
    assert len(UNTESTED_BY_NAME) <= 10


def test_every_reason_for_a_module_without_a_test_file_is_still_needed() -> None:
    there = [str(module) for module in modules()]
    assert all(any(module.startswith(known) for module in there) for known in UNTESTED_BY_NAME)


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
