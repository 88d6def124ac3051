"""Fixtures of environments: an empty environment store, and a folder of wheels that stands for an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from made_environments import write_wheel

from trims.environments.environment_store import EnvironmentStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def env_store(tmp_path: Path) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "environments")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch in two versions, of which the later one needs another package; and what trims needs beside it.

    No configuration or cache of this machine has a part in it.
    """
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "torch", "900.0")
    write_wheel(folder, "torch", "901.0", ["helper>=2"])
    for name, version in (("helper", "1.0"), ("helper", "2.5"), ("numpy", "2.0"), ("ml_dtypes", "0.5.1")):
        write_wheel(folder, name, version)
    return folder
