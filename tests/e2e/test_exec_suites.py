"""Test suites of others have the same outcomes, test by test, alone, observed and forked.

CPython's own look at a program's surroundings. Debian has them in libpython3-testsuite.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from junit import outcomes
from programs import FORKED, OBSERVED, Programs

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
SUITE_S = 500.0
CPYTHON = str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
CPYTHONS = (
    "test_cmd_line_script", "test_runpy", "test_signal", "test_subprocess", "test_atexit", "test_fork1", "test_wait4",
    "test_sys", "test_posix", "test_resource", "test_traceback", "test_warnings", "test_gc", "test_import", "test_os",
)  # fmt: skip
#: Test cases of multiprocessing: its whole suites take ten minutes each.
SMOKE = ("WithProcessesTestPool", "WithProcessesTestProcess", "WithProcessesTestQueue")
#: Packages, their versions, and the tests of them that are run: one of Python alone, one with extensions in C.
PACKAGES = {
    "packaging": ("26.4", ["test_metadata.py", "test_tags.py", "test_version.py", "test_markers.py"]),
    "multidict": ("7.2.1", ["test_istr.py", "test_pickle.py", "test_mutable_multidict.py", "test_guard.py"]),
}


def compared(programs: Programs, command: Callable[[Path], list[str]], cwd: Path) -> None:
    """Run a suite alone, observed, and twice forked: what a fork reports makes the next template."""
    found = []
    for way in ("alone", OBSERVED, FORKED, FORKED):
        report = programs.folder / f"{len(found)}.xml"
        words = command(report)
        how = {"timeout": SUITE_S, "cwd": cwd}
        if way == "alone":
            ended = programs.alone(*words, **how)
        else:
            ended = programs.run(*words, options=("--why",), **how)
            assert way in ended.stderr
            programs.await_templates()
        found.append((ended.returncode, outcomes(report)))
    for status, results in found[1:]:
        differing = {name: (found[0][1].get(name), result) for name, result in results.items()}
        assert {name: pair for name, pair in differing.items() if pair[0] != pair[1]} == {}
        assert (status, results.keys()) == (found[0][0], found[0][1].keys())


@pytest.mark.parametrize("suite", CPYTHONS)
def test_a_suite_of_cpython_has_equal_outcomes(programs: Programs, suite: str) -> None:
    _find(suite)
    compared(programs, lambda report: [CPYTHON, "-m", "test", "--junit-xml", str(report), suite], programs.folder)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_has_equal_outcomes(programs: Programs, method: str) -> None:
    _find("_test_multiprocessing")
    # not every build installs the three files that choose a method
    install = f"tests.install_tests_in_module_dict(globals(), '{method}')"
    programs.write(f"test_{method}.py", f"import unittest, test._test_multiprocessing as tests\n{install}\n")
    cases = [word for each in SMOKE for word in ("-m", f"*{each}*")]
    words = ["-m", "test", "--testdir", str(programs.folder), *cases]
    compared(
        programs, lambda report: [CPYTHON, *words, "--junit-xml", str(report), f"test_{method}"], programs.folder
    )  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_equal_outcomes(programs: Programs, folder: Path, package: str) -> None:
    version, files = PACKAGES[package]
    environment = folder / "environment"
    subprocess.run([sys.executable, "-I", "-m", "venv", environment], check=True, timeout=SUITE_S)
    python = str(environment / "bin" / "python")
    needed = [
        f"{package}=={version}",
        "pytest",
        "pytest-codspeed",
        "pytest-cov",
        "pretend",
        "objgraph",
        "hypothesis",
        "psutil",
    ]
    install = [python, "-I", "-m", "pip", "install", "--quiet", *needed]
    subprocess.run(install, check=True, timeout=SUITE_S)
    source = [python, "-I", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", folder]
    subprocess.run([*source, f"{package}=={version}"], check=True, timeout=SUITE_S)
    with tarfile.open(next(folder.glob(f"{package}-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    tests = folder / f"{package}-{version}" / "tests"
    alone = folder / "tests"  # beside no source, which would be imported
    tests.rename(alone)
    chosen = [f"tests/{name}" for name in files if (alone / name).exists()]
    assert chosen
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *chosen]
    compared(programs, lambda report: [*words, f"--junit-xml={report}"], folder)


def _find(module: str) -> None:
    found = subprocess.run([CPYTHON, "-I", "-c", f"import test.{module}"], check=False, capture_output=True)
    if found.returncode:
        pytest.skip(f"{CPYTHON} has no test.{module} (Debian: libpython3-testsuite)")
