"""Pythons: how one is found by version, by path or by default, and what is said when there is none."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from made_environments import BASE, MINOR, PLATFORM

from trims.core.errors import NotSupportedError
from trims.environments.interpreters import find_interpreter, parse_interpreters, plain_environment


@pytest.mark.parametrize("wanted", ["", MINOR, str(BASE), sys.executable])
def test_a_python_tells_what_it_is(wanted: str) -> None:
    found = find_interpreter(wanted)
    assert (found.version, found.minor, found.platform) == (platform.python_version(), MINOR, PLATFORM)


def test_a_version_is_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "python3.99"
    fake.write_text(
        '#!/bin/sh\necho \'{"python": "", "version": "3.99.1", "platform": "p", "implementation": "CPython"}\'\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = find_interpreter("3.99")
    assert (found.path, found.minor) == (fake, "3.99")


@pytest.mark.parametrize(
    ("implementation", "version", "complaint"),
    [
        ("CPython", "3.9.1", "trims needs CPython from 3.10 on"),
        ("PyPy", "3.11.1", "trims needs CPython"),
        ("CPython", "3.98.0", r"is Python 3\.98\.0, not 3\.99; install Python 3\.99 .*--python"),
    ],
)
def test_a_python_that_trims_does_not_run_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, implementation: str, version: str, complaint: str
) -> None:
    fake = tmp_path / "python3.99"
    fake.write_text(
        f'#!/bin/sh\necho \'{{"version": "{version}", "platform": "p", "implementation": "{implementation}"}}\'\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NotSupportedError, match=complaint):
        find_interpreter("3.99")


def test_a_version_that_is_not_there_is_told_with_the_remedy() -> None:
    with pytest.raises(NotSupportedError, match=r"no Python 3\.77 on the PATH.*uv python install 3\.77.*--python"):
        find_interpreter("3.77")


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n", ""])
def test_a_file_that_is_no_python_is_named(tmp_path: Path, text: str) -> None:
    fake = tmp_path / "python"
    fake.write_text(text)
    fake.chmod(0o755)
    for path in (fake, tmp_path / "missing"):
        with pytest.raises(NotSupportedError, match=f"{path} is no Python that runs"):
            find_interpreter(str(path))


def test_interpreters_are_read_from_text_and_from_a_mapping() -> None:
    python = Path(sys.executable)
    assert parse_interpreters(f"mxnet={python},torch={python},") == {"mxnet": python, "torch": python}
    assert parse_interpreters({"mxnet": str(python)}) == {"mxnet": python}
    assert parse_interpreters("") == {}


@pytest.mark.parametrize("text", ["mxnet", "mxnet=", "mxnet=/no/python"])
def test_interpreters_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"framework=/path/to/python|/no/python, is not a file"):
        parse_interpreters(text)


def test_variables_that_lead_elsewhere_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "kept")
    found = plain_environment()
    assert "PIP_TARGET" not in found
    assert "PYTHONPATH" not in found
    assert found["PIP_INDEX_URL"] == "kept"
