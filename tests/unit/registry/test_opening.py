"""The registry that a setting names: ours, one in a file that is named, and a plug-in's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from own_parts import declare
from registries import manifest

from trims.core.errors import ConfigError
from trims.plugins import Choice
from trims.registry.opening import GROUP, open_registry
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from pathlib import Path


def test_ours_lies_in_the_state_folder_and_is_none_of_a_plugin(tmp_path: Path) -> None:
    made = open_registry(Choice("sqlite"), tmp_path)
    made.put(manifest(), "")
    made.close()
    assert type(made) is SqliteRegistry
    assert not made.changes_outside
    again = SqliteRegistry(tmp_path / "registry.db")
    assert again.names() == ["m"]
    again.close()


def test_ours_may_lie_in_a_file_that_is_named_and_may_be_shared(tmp_path: Path) -> None:
    made = open_registry(Choice("sqlite", f"{tmp_path}/far/models.db"), tmp_path / "state")
    assert made.changes_outside
    made.close()
    assert (tmp_path / "far" / "models.db").exists()
    assert not (tmp_path / "state").exists()
    with pytest.raises(ConfigError, match=r"sqlite:models\.db needs an absolute path"):
        open_registry(Choice("sqlite", "models.db"), tmp_path)


def test_a_registry_of_a_plugin_is_given_the_state_folder_and_its_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, GROUP, memory="MemoryRegistry")
    made = open_registry(Choice("memory", "a:b"), tmp_path)
    given = made._inner._inner.settings  # type: ignore[attr-defined]
    assert (given.state_dir, given.argument) == (tmp_path, "a:b")


def test_what_is_no_registry_is_told_with_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, GROUP, half="Half")
    with pytest.raises(
        ConfigError,
        match=r"returned no Registry: Half has no put, get, raw, names, remove, changes_outside$",
    ):
        open_registry(Choice("half"), tmp_path)
