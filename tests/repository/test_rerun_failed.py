"""`tools/rerun_failed.py` forgives a test that passes alone, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from repository import ROOT, SUPPORT

if TYPE_CHECKING:
    from pathlib import Path

UNSTEADY = """
from pathlib import Path
def test_first_fails_then_passes():
    seen = Path(__file__).with_name("seen")
    again = seen.exists()
    seen.touch()
    assert again
"""
BROKEN = "def test_always_fails():\n    assert False\n"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run of pytest in the folder, then the tool."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    settings = {"cwd": folder, "env": environment, "capture_output": True, "text": True, "check": False}
    subprocess.run([sys.executable, "-m", "pytest", "-q"], timeout=60, **settings)
    return subprocess.run([sys.executable, str(ROOT / "tools/rerun_failed.py")], timeout=60, **settings)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {SUPPORT}\n")
    (tmp_path / "conftest.py").write_text("from exit_status import pytest_sessionfinish, pytest_sessionstart\n")
    return tmp_path


def test_a_test_that_passes_alone_is_named_and_forgiven(project: Path) -> None:
    (project / "test_unsteady.py").write_text(UNSTEADY)
    done = check(project)
    assert done.returncode == 0, done.stderr
    assert "unsteady: test_unsteady.py::test_first_fails_then_passes" in done.stdout


def test_a_test_that_fails_again_fails_the_check(project: Path) -> None:
    (project / "test_unsteady.py").write_text(UNSTEADY)
    (project / "test_broken.py").write_text(BROKEN)
    done = check(project)
    assert done.returncode == 1
    assert "unsteady: test_broken.py" not in done.stdout


def test_more_failures_than_chance_gives_are_not_run_again(project: Path) -> None:
    (project / "test_broken.py").write_text("".join(BROKEN.replace("always", f"always_{n}") for n in range(11)))
    done = check(project)
    assert done.returncode == 1
    assert "11 tests are known to have failed" in done.stderr


def test_a_run_that_names_no_test_is_no_success(project: Path) -> None:
    done = check(project)
    assert done.returncode == 1
    assert "exit status 5" in done.stderr


@pytest.mark.parametrize("ending", ["import os; os._exit(1)", "raise KeyboardInterrupt"])
def test_a_run_that_broke_off_behind_an_unsteady_test_is_no_success(project: Path, ending: str) -> None:
    (project / "test_a_unsteady.py").write_text(UNSTEADY)
    assert check(project).returncode == 0
    (project / "seen").unlink()
    (project / "test_b_breaks.py").write_text(f"def test_breaks():\n    {ending}\n")
    done = check(project)
    assert done.returncode == 1
    assert "did not end with all tests run" in done.stderr
