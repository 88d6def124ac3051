from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from own_parts import MemoryRegistry
from registries import manifest

from trims.core.errors import CallerError, ManifestError, ModelExistsError, ModelNotFoundError, NotSupportedError
from trims.registry.base import Registry, RegistrySettings
from trims.registry.opening import OneVersion
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
