"""An artifact's files are found in a child where naming them takes much parsing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors_files import MANY, NAME

from trims.core.errors import ArtifactError, ConversionError
from trims.formats.conversion.conversion import converter
from trims.formats.conversion.file_names import names_apart

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_large_index_that_leaves_its_folder_is_told_as_a_small_one_is(tmp_path: Path) -> None:
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {NAME.format(number): "../x.safetensors" for number in range(MANY)}}))
    with pytest.raises(ArtifactError, match=r"'\.\./x\.safetensors', which leaves its folder"):
        converter("safetensors").files(main, {})


def test_an_index_of_more_shards_than_are_published_is_refused(tmp_path: Path) -> None:
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {NAME.format(number): f"{number}" for number in range(MANY)}}))
    with pytest.raises(ArtifactError, match="it names 10000 files; more than 4096 shards are refused"):
        converter("safetensors").files(main, {})


NAMING = """
class Names:
    def names_here(self, main, options):
        return options["names"]
class Refuses:
    def names_here(self, main, options):
        from trims.core.errors import ArtifactError
        raise ArtifactError(f"{main}: it names nothing")
class Dies:
    def names_here(self, main, options):
        import os
        os._exit(7)
"""


@pytest.fixture
def naming(plugins: Path) -> Callable[[str], type]:
    """Converters that a child finds in the folder of plugins."""
    (plugins / "plugin_of_test_names.py").write_text(NAMING)
    return lambda name: type(name, (), {"__module__": "plugin_of_test_names", "__qualname__": name})


@pytest.fixture
def found_in_child(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(plugins))


@pytest.mark.usefixtures("found_in_child")
def test_names_found_in_a_child_come_back_in_their_order(naming: Callable[[str], type]) -> None:
    assert names_apart(naming("Names"), Path("m.index"), {"names": ["b", "a", "ü"]}) == ("b", "a", "ü")


@pytest.mark.usefixtures("found_in_child")
@pytest.mark.parametrize("names", [None, "abc", ["a", 1], {"a": "b"}])
def test_a_child_that_names_no_files_is_not_believed(naming: Callable[[str], type], names: object) -> None:
    with pytest.raises(ConversionError, match=r"m\.index: the child process did not say which files there are"):
        names_apart(naming("Names"), Path("m.index"), {"names": names})


@pytest.mark.usefixtures("found_in_child")
def test_a_refusal_and_a_death_in_the_child_are_told_with_the_file(naming: Callable[[str], type]) -> None:
    with pytest.raises(ArtifactError, match=r"^m\.index: it names nothing$"):
        names_apart(naming("Refuses"), Path("m.index"), {})
    with pytest.raises(ConversionError, match=r"m\.index: the child process exited with status 7"):
        names_apart(naming("Dies"), Path("m.index"), {})
