"""How a package is installed, on a machine and in a container whose image has to bring it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from trims.process import packages
from trims.process.packages import install_words

if TYPE_CHECKING:
    from pathlib import Path


def test_where_pip_can_write_a_package_is_installed_by_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIMS_IMAGE", "1")
    monkeypatch.setattr(packages.sysconfig, "get_path", lambda _: str(tmp_path))
    assert install_words("onnx") == "pip install onnx"
    assert install_words("trims[steps]", sys.executable) == f"{sys.executable} -m pip install 'trims[steps]'"


@pytest.mark.parametrize("marked_by", ["variable", "file"])
def test_in_a_container_that_is_read_only_the_image_brings_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, marked_by: str
) -> None:
    (tmp_path / "marker").touch()
    monkeypatch.setattr(packages, "_OF_RUNTIMES", (str(tmp_path / "marker"),) if marked_by == "file" else ())
    if marked_by == "variable":
        monkeypatch.setenv("TRIMS_IMAGE", "1")
    monkeypatch.setattr(packages.os, "access", lambda *_: False)
    words = install_words("trims[otel]", sys.executable)
    assert words.startswith("build the image of this container with trims[otel] (deploy/Dockerfile: --build-arg ")
    assert "pip install" not in words


def test_on_a_machine_whose_environment_is_another_user_s_pip_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TRIMS_IMAGE", raising=False)
    monkeypatch.setattr(packages, "_OF_RUNTIMES", (str(tmp_path / "missing"),))
    monkeypatch.setattr(packages.os, "access", lambda *_: False)
    assert install_words("onnx") == "pip install onnx"
