"""uv: which one is taken, and what is said when it cannot do its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ConfigError, NotSupportedError
from trims.environments import uv
from trims.environments.uv import Uv

if TYPE_CHECKING:
    from pathlib import Path


def a_program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_uv_of_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    a_program(tmp_path / "uv", "echo uv 1.2.3 '(abc)'")
    assert Uv().version == "1.2.3"


def test_without_uv_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "find_uv", lambda: None)
    with pytest.raises(NotSupportedError, match=r"no uv on the PATH.*pip install .*\[env\]'"):
        Uv()


def test_a_uv_that_does_not_run_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "find_uv", lambda: a_program(tmp_path / "uv", "echo broken >&2; exit 3"))
    with pytest.raises(NotSupportedError, match=r"uv does not run \(uv ended with status 3\):\nbroken"):
        Uv()
    monkeypatch.setattr(uv, "find_uv", lambda: str(tmp_path / "missing"))
    with pytest.raises(NotSupportedError, match="missing cannot be started"):
        Uv()


def test_a_folder_of_wheels_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--find-links .*wheels is not a folder"):
        Uv([tmp_path / "wheels"])
