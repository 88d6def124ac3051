"""The weight of the house: code lines by package, files that are too long, and rooms that are too full only shrink.

A number here falls with each step that makes it smaller. It rises only together with a line that says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: Package -> its code lines at most: neither empty nor comments alone, without generated code.
#: A path that is looked at again stays in the catalog, and a warm open passes no more files: trims has the more lines.
#: Spans go to a collector by trims.trace: what predictors lost, and less, trims has.
#: Evaluations and workloads went from predictors to bench: what one lost the other has.
#: A run's span ends with the error, files have the level that is asked for, and errors name installations that work.
#: Benchmarks end their daemon on every signal, and say before they measure what lacks.
#: Transparent loaders are new: the client has the adapters, trims the format `bytes`, bench their scenario.
#: MXNet copies what it loads up to three times: the client shares those copies, too, and bench has the row.
#: Programs of `trims exec` have loaders by default, others' adapters, a doctor of them, and a measured threshold.
#: Sessions of ONNX Runtime and casts of transformers are measured beside the other loads: bench has the rows.
#: vLLM and SGLang load by their own seams: trims has the two loaders, the client the weights for them.
#: Files that ONNX Runtime refuses are remembered, so that no program has them converted again at each start.
#: A file that is replaced between the store's answer and the library's look is not mixed with the one before: client.
CODE_LINES = {
    "trims": 53625,
    "client/trims_client": 6678,
    "predictors/trims_predictors": 20370,
    "bench/trims_bench": 13910,
}
#: Lines of a file at most, and the files that are longer still.
FILE_LINES = 400
LONG_FILES = 27
#: Modules of a room at most, and the rooms that have more still.
ROOM_FILES = 24
FULL_ROOMS: set[str] = set()


def modules(package: str) -> list[Path]:
    """Files of a package that people write."""
    return [path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name]


def code_lines(path: Path) -> int:
    lines = map(str.strip, path.read_text().splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("package", CODE_LINES)
def test_a_package_has_no_more_code_than_is_recorded(package: str) -> None:
    found = sum(map(code_lines, modules(package)))
    assert found <= CODE_LINES[package], f"{package} has {found} code lines"


def test_no_more_files_are_too_long_than_are_recorded() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for package in CODE_LINES
        for path in modules(package)
        if (lines := len(path.read_text().splitlines())) > FILE_LINES
    }
    assert len(long) <= LONG_FILES, sorted(long.items(), key=lambda each: -each[1])


def test_no_room_holds_too_many_modules() -> None:
    counted: dict[str, int] = {}
    for package in CODE_LINES:
        for path in modules(package):
            room = str(path.parent.relative_to(ROOT))
            counted[room] = counted.get(room, 0) + (path.name != "__init__.py")
    full = {room for room, number in counted.items() if number > ROOM_FILES}
    assert full <= FULL_ROOMS, {room: counted[room] for room in full - FULL_ROOMS}
    assert full == FULL_ROOMS, "a room has become small enough: take it out of the list"
