"""Paths of `--hide` are checked at the start: each culprit is named, and what can be hidden is accepted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from in_namespaces import namespaces
from repository import ROOT
from trims_predictors.children.hidden_paths import check_hidden
from trims_predictors.sandbox.sandbox import NAMESPACES, Isolation

from trims.core.errors import ConfigError


def check(folder: Path, *paths: Path) -> None:
    (folder / "run").mkdir(exist_ok=True)
    check_hidden(paths, Isolation(NAMESPACES, tuple(map(str, paths))), str(folder / "run"))


def test_a_path_that_is_not_there_is_refused_at_every_level(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hide .*/secrets: there is no such file or folder"):
        check_hidden([folder / "secrets"], Isolation(), str(folder))


@namespaces
@pytest.mark.parametrize("path", ["/", "/proc", "/dev", "/usr", sys.prefix, json.__file__, str(ROOT / "trims")])
def test_what_predictors_need_cannot_be_hidden_and_is_named(folder: Path, path: str) -> None:
    (folder / "other").mkdir()
    with pytest.raises(ConfigError, match=f"--hide {path}: predictors cannot"):
        check(folder, folder / "other", Path(path))


@namespaces
def test_folders_beside_and_above_what_predictors_need_can_be_hidden(folder: Path) -> None:
    (folder / "secrets").mkdir()
    check(folder, folder / "secrets", ROOT.parent, Path(sys.prefix).parent)


def test_nothing_to_hide_starts_no_process(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    check(folder)
