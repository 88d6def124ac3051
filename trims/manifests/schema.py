"""The JSON schema of manifests, for editors: made of the structs that read them."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from trims.manifests.manifest import Manifest
from trims.manifests.packages import PackageFile
from trims.manifests.step_fields import FUNCTIONS, KINDS, MOST_STEPS
from trims.manifests.tensor_fields import Input, Output

#: Checks of the structs beside the types of their fields.
_BESIDE: Mapping[str, dict[str, Any]] = {
    "ArtifactSource": {"oneOf": [{"required": [way]} for way in ("path", "uri", "package", "builder", "model")]},
    "PredictorSettings": {
        "allOf": [{"not": {"required": list(two)}} for two in combinations(("call", "name", "function", "handler"), 2)]
    },
    "Resize": {"oneOf": [{"required": ["size"]}, {"required": ["shorter_side"]}]},
}


def text() -> str:
    """Return the schema as `trims schema` prints it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """Return the schema."""
    kinds = (Manifest, PackageFile, Input, Output, *KINDS.values(), *FUNCTIONS.values())
    parts: dict[str, Any] = _tidy(msgspec.json.schema_components(kinds)[1])
    for name, more in _BESIDE.items():
        parts[name] |= more
    manifest, functions = parts.pop("Manifest"), [parts.pop(each.__name__) for each in FUNCTIONS.values()]
    del manifest["properties"]["origin"], parts["Place"], parts["Step"], parts["TensorType"]
    begin = {"$schema": "https://json-schema.org/draft/2020-12/schema", **manifest, "title": "trims model manifest"}
    return {**begin, "$defs": {**parts, "steps": _steps(functions)}}


def _steps(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of a list of steps, each a mapping from its kind to its fields."""
    properties: dict[str, Any] = {kind: {"$ref": f"#/$defs/{fields.__name__}"} for kind, fields in KINDS.items()}
    for each in functions:
        properties |= each["properties"]
    one = {
        "type": "object",
        "additionalProperties": False,
        "oneOf": [{"required": [kind]} for kind in (*KINDS, *FUNCTIONS)],
        "dependentRequired": {"function": ["source"]},
        "dependentSchemas": {"options": {"anyOf": [{"required": [kind]} for kind in FUNCTIONS]}},
        "properties": properties,
    }
    return {"type": "array", "maxItems": MOST_STEPS, "items": one}


def _tidy(node: Any) -> Any:
    """Return a schema without defaults, titles and `null`, with patterns as JSON schema has them."""
    if isinstance(node, list):
        return [_tidy(each) for each in node]
    if not isinstance(node, dict):
        return node.replace(r"\Z", "$") if isinstance(node, str) else node
    if "instead" in node:
        node = node["instead"] | {key: node[key] for key in ("description",) if key in node}
    left = {key: _tidy(value) for key, value in node.items() if key not in ("default", "title")}
    if (null := {"type": "null"}) in left.get("anyOf", ()):
        left = next(each for each in left.pop("anyOf") if each != null) | left
    return left
