"""uv and pip: which one is chosen, and what is said when neither can do it."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ConfigError, NotSupportedError
from trims.environments import installers
from trims.environments.installers import choose

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installers, "find_uv", lambda: None)


def a_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_uv_is_chosen_where_it_is_and_pip_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    a_program(tmp_path / "uv", "echo uv 1.2.3 '(abc)'")
    chosen = choose()
    assert (chosen.name, chosen.version) == ("uv", "1.2.3")
    assert choose("pip").name == "pip"


@pytest.mark.usefixtures("no_uv")
def test_pip_is_chosen_where_there_is_no_uv() -> None:
    chosen = choose()
    assert (chosen.name, chosen.version) == ("pip", importlib.metadata.version("pip"))
    with pytest.raises(NotSupportedError, match="there is no uv on the PATH"):
        choose("uv")


@pytest.mark.usefixtures("no_uv")
@pytest.mark.parametrize("version", ["21.2.3", None])
def test_without_uv_a_pip_that_is_old_or_missing_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    def told(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", told)
    with pytest.raises(NotSupportedError, match=r"no uv on the PATH, and (pip 21\.2\.3|no pip) beside .*ensurepip"):
        choose()


def test_a_uv_that_does_not_run_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installers, "find_uv", lambda: a_program(tmp_path / "uv", "echo broken >&2; exit 3"))
    with pytest.raises(NotSupportedError, match=r"uv does not run \(uv ended with status 3\):\nbroken"):
        choose()
    monkeypatch.setattr(installers, "find_uv", lambda: str(tmp_path / "missing"))
    with pytest.raises(NotSupportedError, match="missing cannot be started"):
        choose()


def test_a_folder_of_wheels_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--find-links .*wheels is not a folder"):
        choose(links=[tmp_path / "wheels"])
