"""The public names of the errors: all of the tree, and the tree that the documentation draws."""

from __future__ import annotations

import builtins
import re

from trims import errors
from trims.core import errors as core

#: A line of the drawing: its indentation, the classes, and what is said of them.
_LINE = re.compile(r"^    ((?:\|  )*)(?:\+- )?(\w+Error(?:, \w+Error)*)\s+(.*)$", re.MULTILINE)


def drawn() -> list[tuple[int, str, str]]:
    """Depth, name and remark of each class in the drawing."""
    found = []
    for match in _LINE.finditer(errors.__doc__ or ""):
        depth = 0 if "+- " not in match.group(0) else 1 + match.group(1).count("|")
        found += [(depth, name, match.group(3)) for name in match.group(2).split(", ")]
    return found


def test_every_class_of_the_tree_is_offered_under_its_own_name() -> None:
    public = {cls for name, cls in vars(core).items() if isinstance(cls, type) and not name.startswith("_")}
    assert {getattr(errors, name) for name in errors.__all__} == public
    assert [getattr(errors, name).__name__ for name in errors.__all__] == errors.__all__
    assert len(set(errors.__all__)) == len(errors.__all__)


def test_the_drawing_shows_all_branches_and_true_parents() -> None:
    branches = {cls.__name__ for cls in errors.TrimsError.__subclasses__()}
    assert {name for depth, name, _ in drawn() if depth == 1} == branches
    parents = {0: errors.TrimsError}
    for depth, name, _ in drawn():
        cls = getattr(errors, name)
        assert issubclass(cls, parents[max(0, depth - 1)]), name
        parents[depth] = cls


def test_a_class_that_is_drawn_with_one_of_pythons_own_is_caught_by_it() -> None:
    told = [(name, match.group(1)) for _, name, remark in drawn() if (match := re.search(r"[aA]lso (\w+)", remark))]
    assert len(told) >= 5
    for name, other in told:
        assert issubclass(getattr(errors, name), getattr(builtins, other)), name


def test_what_the_drawing_says_of_a_second_try_is_what_the_class_says() -> None:
    said = {
        name: "try again" in remark for _, name, remark in drawn() if re.search("try again|sending it again", remark)
    }
    assert set(said.values()) == {True, False}
    assert {name: getattr(errors, name).retryable for name in said} == said
    assert not errors.TooLargeError.retryable
