"""Python environments: what is installed in them, read without starting them where that is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trims.core.errors import ConfigError
from trims.formats.conversion.environments import Environment, installed_versions

if TYPE_CHECKING:
    from pathlib import Path


def test_versions_of_this_environment_are_found() -> None:
    assert Environment().versions(["numpy", "nothing-of-this-name"]) == {"numpy": np.__version__}


def test_versions_of_another_environment_are_read_without_starting_it(other_python: Path) -> None:
    environment = Environment(other_python)

    assert environment._paths is not None
    assert environment.versions(["numpy", "mxnet", "torch"]) == {"mxnet": "1.9.1", "numpy": "1.0"}


def test_an_environment_of_unknown_layout_is_asked(other_python: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {other_python} "$@"\n')
    wrapper.chmod(0o755)
    environment = Environment(wrapper)
    assert environment._paths is None
    assert environment.versions(["numpy", "torch"]) == {"numpy": "1.0"}


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a Python interpreter"):
        Environment(tmp_path / "python")


def test_an_environment_that_sees_the_systems_packages_is_asked(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text("")
    (tmp_path / "pyvenv.cfg").write_text("include-system-site-packages = True\n")
    assert Environment(tmp_path / "bin" / "python")._paths is None
    (tmp_path / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    assert Environment(tmp_path / "bin" / "python")._paths == []


def test_the_first_folder_that_has_a_distribution_counts(tmp_path: Path) -> None:
    for folder, version in (("first", "2.0"), ("second", "1.0")):
        info = tmp_path / folder / f"thing-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
    folders = [str(tmp_path / name) for name in ("first", "second")]
    assert installed_versions(["thing", "other"], folders) == {"thing": "2.0"}
    assert installed_versions(["thing"], folders[::-1]) == {"thing": "1.0"}
