"""The shipped contract suite, and what is particular to this registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from manifest_folder import ManifestFolder, open_folder

from trims.core.errors import ConfigError, ManifestError, ModelExistsError
from trims.registry.base import RegistrySettings
from trims.testing.registries import RegistryContract, manifest

if TYPE_CHECKING:
    from pathlib import Path

BERT = "name: bert\nartifact: {path: bert.npz}\n"


class TestManifestFolder(RegistryContract):
    """All that every registry must keep; a file is one version of a model."""

    keeps_versions = False

    def setting(self, folder: Path) -> str:
        """See `RegistryContract.setting`."""
        return f"folder:{folder}"


def test_a_file_that_is_written_by_hand_counts_at_the_next_look(tmp_path: Path) -> None:
    registry = ManifestFolder(tmp_path)
    (tmp_path / "bert.yaml").write_text(BERT)
    assert registry.names() == ["bert"]
    assert registry.get("bert").origin == str(tmp_path)
    (tmp_path / "bert.yaml").write_text(f"{BERT}description: edited\n")
    assert registry.get("bert").description == "edited"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [", r"bert\.yaml: is not YAML"),
        ("name: resnet\nartifact: {path: r.npz}\n", r"bert\.yaml: must say `name: bert`"),
        (f"{BERT}colour: red\n", r"bert\.yaml: .*colour"),
        (f"{BERT}attributes: {{since: 2020-01-01}}\n", r"bert\.yaml: bert: holds a value JSON cannot carry"),
        (f"# origin: /srv\n{BERT}", r"bert\.yaml: the line '# origin: /srv' must give a folder in double quotes"),
    ],
)
def test_a_broken_file_is_named_and_hides_no_other(tmp_path: Path, text: str, words: str) -> None:
    registry = ManifestFolder(tmp_path)
    registry.put(manifest("resnet"), "/srv")
    (tmp_path / "bert.yaml").write_text(text)
    for ask in (registry.get, registry.raw):
        with pytest.raises(ManifestError, match=words):
            ask("bert")
    assert registry.names() == ["bert", "resnet"]
    assert registry.get("resnet").origin == "/srv"
    with pytest.raises(ModelExistsError):
        registry.put(manifest("bert"), "")
    registry.put(manifest("bert"), "", replace=True)
    assert registry.raw("bert") == manifest("bert")


def test_other_files_are_no_models_and_stay(tmp_path: Path) -> None:
    for name in ("README.md", ".writing", "-bert.yaml", "bert.yml", ".git"):
        (tmp_path / name).write_text("")
    registry = ManifestFolder(tmp_path)
    assert registry.names() == []
    registry.put(manifest(), "")
    registry.remove("m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["-bert.yaml", ".git", "README.md", "bert.yml"]


@pytest.mark.parametrize("argument", ["", "manifests", "/nonexistent/manifests"])
def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, argument: str) -> None:
    with pytest.raises(ConfigError, match=rf"folder:{argument} must name a folder that is there"):
        open_folder(RegistrySettings(tmp_path, argument))


def test_a_folder_that_went_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    registry = ManifestFolder(folder)
    folder.rmdir()
    with pytest.raises(ConfigError, match=r"manifests/m\.yaml cannot be changed: No such file"):
        registry.put(manifest(), "")
    for ask in (registry.names, lambda: registry.get("m")):
        with pytest.raises(ConfigError, match=r"manifests cannot be read: No such file"):
            ask()
