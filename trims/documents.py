"""YAML that users write: manifests, tenants, settings. One key twice is refused, of which one would be lost in silence.

JSON is read as well: it is YAML in another spelling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence


def load_yaml(text: str, *, as_text: Sequence[tuple[str, ...]] = ()) -> Any:
    """Read a document.

    Args:
        text: All of it.
        as_text: Ways from the root to values that are text as it was written, quoted or not: `version: 1.10` is "1.10",
            and not the number 1.1.

    Raises:
        yaml.YAMLError: It is not YAML, or a mapping has one key twice; the message names key and lines.
        ValueError: A number in it has thousands of digits.
        RecursionError: It is nested too deeply.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(loader, node)
        for way in as_text:
            _keep_text(node, way)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_keys(loader: yaml.SafeLoader, root: Any) -> None:
    """Raise YAMLError for a mapping with one key twice, at any depth; before keys are merged (`<<`)."""
    left, seen = [root], set()
    while left:
        node = left.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            left += [part for pair in node.value for part in pair]
            _check_mapping(loader, node)


def _check_mapping(loader: yaml.SafeLoader, node: Any) -> None:
    lines: dict[Any, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        value = key.value if key.tag == _MERGE else loader.construct_object(key)  # 1 and 0x1 are one key
        line, before = key.start_mark.line + 1, lines.get(value)
        if before is not None:
            raise yaml.YAMLError(f"the key {key.value!r:.80} is there twice, in lines {before} and {line}; keep one")
        lines[value] = line


_MERGE = "tag:yaml.org,2002:merge"
#: Plain scalars that YAML takes for something else than text, although a version may be written so.
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_TEXT = "tag:yaml.org,2002:str"


def _keep_text(node: Any, way: tuple[str, ...]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value != way[0]:
            continue
        if len(way) > 1:
            _keep_text(value, way[1:])
        elif isinstance(value, yaml.ScalarNode) and value.tag in _NUMBERS:
            value.tag = _TEXT
