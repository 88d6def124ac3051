"""How a package is installed, on a machine and in a container whose image has to bring it."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
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
    assert install_words("onnx>=1", sys.executable) == f"{sys.executable} -m pip install 'onnx>=1'"


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (None, "pip install 'trims[steps]'"),
        ({"url": "file:///src/trims", "dir_info": {}}, "pip install '/src/trims[steps]'"),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "pip install -e '/a b[steps]'"),
        ({"url": "file:///w/trims-1-py3-none-any.whl", "archive_info": {}},
         "pip install '/w/trims-1-py3-none-any.whl[steps]'"),
        ({"url": "https://h/trims.git", "vcs_info": {}}, "pip install 'trims[steps]'"),
    ],
)  # fmt: skip
def test_an_extra_of_trims_comes_from_where_trims_was_installed_from(
    monkeypatch: pytest.MonkeyPatch, recorded: dict[str, object] | None, words: str
) -> None:
    monkeypatch.delenv("TRIMS_IMAGE", raising=False)
    monkeypatch.setattr(packages, "_OF_RUNTIMES", ())
    text = None if recorded is None else json.dumps(recorded)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    assert install_words("trims[steps]") == words


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
