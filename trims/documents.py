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
        as_text: Ways from the root to values that are text as it was written, quoted or not: `version: 1.10` is "1.10",
            and not the number 1.1.

    Raises:
        yaml.YAMLError: It is not YAML, a value does not fit its tag, a number has too many digits, or a mapping has one
            key twice; the message names the value or the key, and the lines.
        RecursionError: The document is nested too deeply.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(loader, node)
        for way in as_text:
            node = _with_text(loader, node, way)
        return loader.construct_document(node)
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Loader that raises YAMLError for each scalar without a value, not PyYAML's inner errors such as KeyError."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """See yaml.SafeLoader."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        if node.tag == _INT and len(node.value) > _MAX_DIGITS:
            what = f"has more than {_MAX_DIGITS} digits; quote it"
            raise yaml.YAMLError(f"the number in line {node.start_mark.line + 1} {what}")
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            kind = f"of the type {node.tag.rpartition(':')[2]!r:.80}; mend it, or quote it without a tag"
            raise yaml.YAMLError(f"{node.value!r:.80} in line {node.start_mark.line + 1} is no value {kind}") from error


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
    """Raise YAMLError for one key twice in one mapping."""
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
_INT = "tag:yaml.org,2002:int"
#: Plain scalars that YAML takes for something else than text, although a version may be written so.
_NUMBERS = (_INT, "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_TEXT = "tag:yaml.org,2002:str"
#: Most digits of a number. Python prints at most 4300 decimal ones, and may be set to 640; hexadecimal ones become
#: longer in print.
_MAX_DIGITS = 500


def _with_text(loader: yaml.SafeLoader, node: Any, way: tuple[str, ...]) -> Any:
    """Return the node with text at the end of the way. Copy what is changed: an alias may lead there from elsewhere."""
    if not way:
        is_number = isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS
        return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark) if is_number else node
    if not isinstance(node, yaml.MappingNode):
        return node
    made = yaml.MappingNode(node.tag, list(node.value), node.start_mark, node.end_mark)
    loader.flatten_mapping(made)  # a merged version counts as one that is written there
    made.value = [
        (key, _with_text(loader, value, way[1:]) if _is_key(key, way[0]) else value) for key, value in made.value
    ]
    return made


def _is_key(node: Any, name: str) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == name
