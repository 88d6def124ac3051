"""Recipes: what besides the bytes of an artifact decides its image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from format_plugins import PLUGIN

from trims.formats.base import Artifact
from trims.formats.conversion import converter, recipe
from trims.formats.environments import Environment
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
    found = recipe(converter("safetensors"), Artifact("safetensors", (Path("/x"),)), Environment())
    assert found == {"format": "safetensors", "converter": 1, "options": {}}
