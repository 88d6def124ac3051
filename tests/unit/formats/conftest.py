"""Fixtures of conversions: plugins that may be installed, builders, and a second environment."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from format_plugins import BUILDERS

from trims.formats import plugins as registered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on `sys.path` in which plugins may be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    registered._entry_points.cache_clear()
    registered._reported.clear()
    yield folder
    for name in [name for name in sys.modules if name.startswith("plugin_of_test")]:
        del sys.modules[name]
    registered._entry_points.cache_clear()


def venv(folder: Path, **versions: str) -> Path:
    """A virtual environment without pip, with the metadata of these distributions."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return venv(tmp_path_factory.mktemp("env") / "venv", numpy="1.0", mxnet="1.9.1")


@pytest.fixture
def builders(tmp_path: Path) -> Path:
    folder = tmp_path / "builders"
    folder.mkdir()
    (folder / "builders_of_test.py").write_text(BUILDERS)
    return folder
