"""The registry that a setting names: ours, one in a file that is named, and a plug-in's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from own_parts import MemoryRegistry, declare
from registries import manifest

from trims.core.errors import (
    CallerError,
    ConfigError,
    ManifestError,
    ModelExistsError,
    ModelNotFoundError,
    NotSupportedError,
)
from trims.plugins import Choice
from trims.registry.base import Registry, RegistrySettings
from trims.registry.opening import GROUP, OneVersion, open_registry
from trims.registry.sqlite import SqliteRegistry
from trims.registry.versions import Alias, Entry, Versions

if TYPE_CHECKING:
    from pathlib import Path


# A registry of a plug-in without versions: each model has one, which its references find.


@pytest.fixture
def inner(tmp_path: Path) -> MemoryRegistry:
    made = MemoryRegistry(RegistrySettings(tmp_path))
    made.put(manifest(version="1"), "")
    return made


@pytest.fixture
def registry(inner: MemoryRegistry) -> OneVersion:
    return OneVersion(inner, "the plug-in 'memory'")


def test_a_model_is_found_by_its_name_and_its_version(registry: OneVersion) -> None:
    assert isinstance(registry, Registry)
    assert registry.find("m") == registry.find("m@1") == Entry("m", registry.get("m"))
    assert registry.raw("m@1") == manifest(version="1")
    assert registry.versions("m") == Versions("m", ("1",), {"": Alias("1")})
    assert registry.rows() == registry.names() == ["m"]
    for ask in (registry.find, registry.get, registry.raw, registry.remove):
        with pytest.raises(ModelNotFoundError, match="'m' has no version or label '2'"):
            ask("m@2")


def test_another_version_replaces_the_one_or_is_refused(registry: OneVersion) -> None:
    with pytest.raises(ModelExistsError):
        registry.put(manifest(version="2"), "")
    registry.put(manifest(version="2"), "", replace=True)
    assert registry.versions("m").registered == ("2",)


def test_nothing_is_switched(registry: OneVersion) -> None:
    with pytest.raises(NotSupportedError, match="the plug-in 'memory' keeps one of each model"):
        registry.switch("m", "stable", "1")
    with pytest.raises(ModelNotFoundError):
        registry.remove_label("m", "stable")


@pytest.mark.parametrize(("reference", "every"), [("m", False), ("m@1", False), ("m", True)])
def test_a_model_is_removed_by_its_name_or_its_version(registry: OneVersion, reference: str, every: bool) -> None:
    registry.remove_version(reference, every=every)
    assert registry.rows() == []


def test_all_versions_are_removed_by_the_plain_name_only(registry: OneVersion) -> None:
    with pytest.raises(CallerError):
        registry.remove_version("m@1", every=True)


def test_a_model_whose_manifest_cannot_be_read_can_be_removed(
    inner: MemoryRegistry, registry: OneVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise ManifestError(f"{name}: is not YAML")

    monkeypatch.setattr(inner, "get", broken)
    assert registry.versions("m").rows() == ["m"]
    registry.remove("m")
    assert inner.names() == []


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
