"""Recipes: what besides the bytes of an artifact decides its image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from format_plugins import PLUGIN

from trims.formats.base import Artifact
from trims.formats.conversion.conversion import converter, recipe
from trims.formats.conversion.environments import Environment
from trims.formats.torch.state import SKELETON_VERSION
from trims.testing.converters import write_plugin


def test_a_recipe_is_json_that_says_all_but_the_bytes(plugins: Path) -> None:
    write_plugin(plugins, "plugin_of_test_e", PLUGIN.format(name="fresh", claims="True"), fresh="Converter")
    artifact = Artifact("fresh", (Path("/x"),), {"b": [1], "a": None})
    found = recipe(converter("fresh"), artifact, Environment())
    assert found == json.loads(json.dumps(found))
    assert found["format"] == "fresh"
    assert found["converter"] == 3
    assert found["options"] == {"a": None, "b": [1]}
    assert found["frameworks"] == {"numpy": np.__version__}
    assert found["cpu"]
    assert recipe(converter("fresh"), artifact, Environment()) == found


def test_a_recipe_holds_nothing_the_image_does_not_depend_on() -> None:
    found = recipe(converter("safetensors"), Artifact("safetensors", (Path("/x"),), {}, "/models"), Environment())
    assert found == {"format": "safetensors", "converter": 1, "options": {}}


def test_a_recipe_changes_with_the_folder_and_the_file_of_a_builder(tmp_path: Path) -> None:
    def made(folder: str, code: str) -> object:
        origin = tmp_path / folder
        origin.mkdir(exist_ok=True)
        (origin / "mods.py").write_text(code)
        artifact = Artifact("torch", (Path("/x"),), {"module": "mods:build"}, str(origin))
        return recipe(converter("torch"), artifact, Environment())["builder"]

    first = made("a", "x = 1")
    assert first == made("a", "x = 1")
    assert first != made("a", "x = 2")
    assert first != made("b", "x = 1")


def test_without_a_folder_a_builder_leaves_the_recipe_as_it_was() -> None:
    artifact = Artifact("torch", (Path("/x"),), {"module": "installed.package:build"})
    assert "builder" not in recipe(converter("torch"), artifact, Environment())


def test_a_recipe_names_the_version_of_skeletons_in_each_format() -> None:
    for name in ("safetensors", "torch"):
        artifact = Artifact(name, (Path("/x"),), {"module": "installed.package:build"})
        assert recipe(converter(name), artifact, Environment())["skeleton"] == SKELETON_VERSION
