"""Commands of Python programs: they run as `python -m` and `python -c` do, without the working folder."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from trims.process.python import run_code, run_module, run_ours, variables_for

if TYPE_CHECKING:
    from pathlib import Path

_TELL = "import json, sys\nprint(json.dumps([__name__, sys.argv[1:], sys.path, sys.warnoptions]))\n"


def _run(command: list[str], folder: Path) -> list[object]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    assert not {"", str(folder)} & set(told.pop(2))
    return list(told)


def test_code_gets_its_arguments_and_not_the_working_folder(folder: Path) -> None:
    (folder / "json.py").write_text("raise SystemExit('run')\n")
    assert _run(run_code(_TELL, "a", "b c"), folder) == ["__main__", ["a", "b c"], []]


def test_a_module_is_the_program_and_is_not_looked_for_in_the_working_folder(folder: Path) -> None:
    (folder / "json.py").write_text("raise SystemExit('run')\n")
    (folder / "platform.py").write_text("raise SystemExit('run')\n")
    done = subprocess.run(run_module("platform"), cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    assert sys.platform in done.stdout.lower()


def test_flags_and_another_interpreter_stand_before_the_program(folder: Path) -> None:
    command = run_code(_TELL, python=sys.executable, flags=("-W", "ignore"))
    assert _run(command, folder) == ["__main__", [], ["ignore"]]
    assert run_module("m", "x", python="/usr/bin/python3")[0] == "/usr/bin/python3"
    assert run_module("m", "x")[-2:] == ["m", "x"]


def test_a_program_of_ours_runs_by_itself_and_sees_our_packages_alone(folder: Path) -> None:
    package = folder / "packages" / "apart"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "child.py").write_text(
        "import importlib.util, json, sys\n"
        "def main():\n"
        "    print(json.dumps([__name__, sys.argv, sys.path, bool(importlib.util.find_spec('beside'))]))\n"
    )
    (package.parent / "beside.py").write_text("")
    command = run_ours("apart.child", "a", "b c", packages={"apart": str(package)}, flags=("-I", "-S"))
    assert _run(command, folder) == ["apart.child", ["apart.child", "a", "b c"], False]


def test_another_interpreter_is_not_led_to_the_packages_of_this_one() -> None:
    given = {"PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", "PYTHONHOME": "/ours", "HOME": "/home"}
    assert variables_for("/other/python", given) == {"HOME": "/home"}
    assert variables_for("", given) == given
