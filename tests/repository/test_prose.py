"""The style page of CONTRIBUTING, as far as a machine can hold it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: Words for persons: a program is "it", and the subject of a sentence is a named thing.
_PERSONS = re.compile(
    r"\b(he|him|his|himself|she|nobody|somebody|anybody|everybody|whoever|whom|anew)\b", re.IGNORECASE
)
_MOST_LETTERS = 80
#: A comment that describes the name below it.
_COMMENT = re.compile(r"\s*#: (.*)")
#: Authors of a paper, and a sentence that a model is asked about.
_ALLOWED = ("He et al.", "She tuned her violin")


def _texts() -> list[Path]:
    code = [file for top in ("trims", "client", "bench", "predictors") for file in (ROOT / top).rglob("*.py")]
    return [*code, *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


def test_programs_are_called_it() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in _texts()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if _PERSONS.search(line) and not any(allowed in line for allowed in _ALLOWED)
    ]
    assert found == []


@pytest.mark.parametrize("word", ["he waits", "nobody waits", "Whoever waits"])
def test_a_word_for_a_person_would_be_found(word: str) -> None:
    assert _PERSONS.search(word)


#: Words that begin a fragment, which a reader has to complete.
_FRAGMENT = re.compile(r"(Of|As|Those|It|Its|The same|That|What|None|False|True)\b")


def _descriptions(file: Path) -> list[tuple[int, str]]:
    """Return line and first words of every docstring, and of every `#:` comment, of a file."""
    source = file.read_text(encoding="utf-8")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    found = [(node.body[0].lineno, text) for node in nodes if (text := ast.get_docstring(node))]
    lines = ["", *source.splitlines()]
    comments = ((number, _COMMENT.match(line)) for number, line in enumerate(lines))
    return found + [(number, match[1]) for number, match in comments if match and not _COMMENT.match(lines[number - 1])]


def test_a_docstring_begins_with_a_verb_or_the_noun_of_the_thing() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {text.splitlines()[0]}"
        for file in _texts()
        if file.suffix == ".py" and "_pb2" not in file.name
        for number, text in _descriptions(file)
        if _FRAGMENT.match(text)
    ]
    assert found == []


@pytest.mark.parametrize("text", ["Of one tensor.", "None if there is none.", "The same at a pace."])
def test_a_fragment_would_be_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(f'#: {text}\nx = 1\ndef f():\n    """{text}"""\n')
    assert [each for _, each in _descriptions(tmp_path / "m.py")] == [text, text]
    assert _FRAGMENT.match(text)


#: First words of a fragment in a line about a parameter or an attribute.
_FRAGMENT_OF_A_LINE = re.compile(
    r"(Of|For|Its?|As|Those|That|The same|None|False|True|See|Which|Who|Whose|"
    r"At|Behind|Below|Between|Beyond|By|From|In|On|Their|They|To|With|Without)\b"
)
#: A line about a parameter or an attribute.
_ABOUT = re.compile(r" {4}\*{0,2}\w+: (.*)")


def test_lines_about_parameters_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {match[1]}"
        for file in _texts()
        if file.suffix == ".py" and "_pb2" not in file.name
        for number, text in _descriptions(file)
        for line in text.splitlines()
        if (match := _ABOUT.fullmatch(line)) and _FRAGMENT_OF_A_LINE.match(match[1])
    ]
    assert found == []


def _tests() -> list[tuple[str, str]]:
    """Every test: where it is, and its name."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "trims" / "testing").glob("*.py")]
    return [
        (f"{file.relative_to(ROOT)}: {node.name}", node.name)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_names_of_tests_can_be_read_in_one_line() -> None:
    assert [where for where, name in _tests() if len(name) > _MOST_LETTERS] == []


def test_the_subject_of_a_test_is_a_named_thing() -> None:
    found = [where for where, name in _tests() if _PERSONS.search(name.replace("_", " "))]
    assert found == []
    assert [where for where, name in _tests() if name.startswith("test_who_")] == []
