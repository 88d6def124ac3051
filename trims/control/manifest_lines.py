"""Lines of a manifest's text: where a field stands, and what an error of a manifest is about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from trims.manifests.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIELDS = "|".join(name for name in Manifest.__struct_fields__ if name != "origin")
#: `artifact.path: what`, `preprocess[0] resize.size: what`; words without a place begin otherwise.
_ERROR = re.compile(
    rf"(?P<field>(?:{_FIELDS})(?:\[\d+\]|\.[\w-]+| (?=\w+[:.])[a-z_0-9]+)*):? (?P<what>.*)\Z", re.DOTALL
)
_TOKEN = re.compile(r"\[(\d+)\]|([\w-]+)")
_QUOTED = re.compile(r"'([^']+)'")
_LINE = re.compile(r"\bline(?:s \d+ and)? (\d+)")


class Problem(NamedTuple):
    """One thing that is wrong with a manifest.

    Attributes:
        line: Number of the line, from 1.
        field: Path of the field, such as `artifact.path`; empty for the whole.
        message: What is wrong, and the remedy.
    """

    line: int
    field: str
    message: str


class Lines:
    """Lines of one text.

    Args:
        text: YAML. Text that is none has one line.
    """

    def __init__(self, text: str) -> None:
        try:
            self._root: Any = yaml.compose(text, yaml.SafeLoader)
        except (yaml.YAMLError, RecursionError):
            self._root = None

    def of(self, field: str, *, key: str = "") -> int:
        """Return the line of a field, or of the deepest part of its path that is there.

        Args:
            field: Such as `preprocess[0].resize.size`.
            key: Key in the field's mapping: the line is its own, if it is there.
        """
        node, line = self._root, 1
        for index, name in _TOKEN.findall(field):
            found = _below(node, index, name)
            if found is None:
                return line
            line, node = found
        found = _below(node, "", key) if key else None
        return line if found is None else found[0]

    def problem(self, error: str) -> Problem:
        """Return the problem that the words of a ManifestError are about, without the subject before them."""
        found = _ERROR.match(error)
        field, what = (found["field"], found["what"]) if found is not None else ("", error)
        keys: Sequence[str] = _QUOTED.findall(what)[:1]
        line = self.of(field, key=keys[0] if keys else "")
        if keys and not field and re.fullmatch(_FIELDS, keys[0]) and "missing" not in what:
            field = keys[0]
        return Problem(line, field, what)


def yaml_problem(error: Exception) -> Problem:
    """Return the problem of a text that is no YAML, or has one key twice; the line is the one that it names last."""
    cause = error.__cause__
    if isinstance(cause, yaml.MarkedYAMLError) and cause.problem_mark is not None:
        return Problem(cause.problem_mark.line + 1, "", f"is not YAML: {cause.problem}")
    found = _LINE.findall(str(error))
    return Problem(int(found[-1]) if found else 1, "", str(error))


def _below(node: Any, index: str, name: str) -> tuple[int, Any] | None:
    """Return line and node of an element or a member; None if there is none."""
    if index and isinstance(node, yaml.SequenceNode) and int(index) < len(node.value):
        inner = node.value[int(index)]
        return inner.start_mark.line + 1, inner
    for key, value in node.value if name and isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode) and key.value == name:
            return key.start_mark.line + 1, value
    return None
