"""Manifests of functions: a file that holds no handler is refused before any event comes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trims.control.functions import check_handler, function_manifest
from trims.core.errors import ArtifactNotFoundError, CallerError
from trims.manifests.manifest import parse_manifest

if TYPE_CHECKING:
    from trims.control import Model

GOOD = """
import os
from json import loads as imported
if os.name:
    def inside(model, event): return 1
try:
    made = lambda model, event: 2
except ImportError:
    made = None
def handler(model, event, *, more=1): return 0
def any_number(*given): return 3
@decorated
def changed(): return 4
async def later(model, event): ...
class Class: ...
def one(model): ...
def three(model, event, context): ...
def defaults(model, event, context=None): ...
def named(model, event, *, needed): ...
"""


@pytest.fixture
def file(folder: Path) -> Path:
    (folder / "My function.py").write_text(GOOD)
    return folder / "My function.py"


def model(**manifest: Any) -> Model:
    found: Any = SimpleNamespace(name="bert", manifest=manifest)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["handler", "inside", "made", "imported", "any_number", "changed", "defaults"])
def test_what_can_be_called_with_a_model_and_an_event_is_taken(file: Path, name: str) -> None:
    check_handler(file, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("later", r"My function.py:14: 'later' is `async def`"),
        ("Class", r"'Class' is a class"),
        ("one", r"'one' takes model; a handler takes two arguments"),
        ("three", r"'three' takes model, event, context"),
        ("named", r"'named' takes model, event, needed"),
        ("missing", r"has no function 'missing'; it has inside, handler, any_number"),
    ],
)
def test_what_cannot_is_refused_with_its_line(file: Path, name: str, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        check_handler(file, name)


def test_a_file_that_is_missing_or_no_python_is_told(folder: Path) -> None:
    with pytest.raises(ArtifactNotFoundError, match="does not exist"):
        check_handler(folder / "missing.py", "handler")
    with pytest.raises(CallerError, match="cannot be read"):
        check_handler(folder, "handler")
    (folder / "broken.py").write_text("\ndef handler(")
    with pytest.raises(CallerError, match=r"broken.py:2 is no Python"):
        check_handler(folder / "broken.py", "handler")
    (folder / "empty.py").write_text("")
    with pytest.raises(CallerError, match="write `def handler"):
        check_handler(folder / "empty.py", "handler")


@pytest.mark.parametrize(
    ("framework", "form", "expected"),
    [
        ({}, None, None),
        ({"name": "torch", "version": ">=2"}, None, {"name": "torch", "version": ">=2"}),
        ({"name": "torch", "version": ">=2"}, "torch", {"name": "torch", "version": ">=2"}),
        ({"name": "torch", "version": ">=2"}, "onnxruntime", {"name": "onnxruntime"}),
        ({}, "torch", {"name": "torch"}),
    ],
)
def test_a_manifest_refers_to_its_model_by_name(
    file: Path, framework: dict[str, str], form: str | None, expected: object
) -> None:
    made = function_manifest(file, model(framework=framework), form=form)
    assert made["name"] == "my-function"
    assert made["artifact"] == {"model": "bert"}
    assert made["predictor"] == {"handler": f"{file}:handler", "options": {"as": form or "weights"}}
    assert made.get("framework") == expected
    assert parse_manifest(made).predictor.handler == f"{file}:handler"


def test_a_path_is_written_without_the_way_to_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "inner").mkdir()
    monkeypatch.chdir(file.parent / "inner")
    made = function_manifest(Path("..", file.name), model())
    assert made["predictor"]["handler"] == f"{file}:handler"
    parse_manifest(made)


def test_a_form_that_there_is_not_is_refused(file: Path) -> None:
    with pytest.raises(CallerError, match="--as is 'tensorflow'"):
        function_manifest(file, model(), form="tensorflow")


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.py")
    with pytest.raises(CallerError, match="is no file"):
        check_handler(folder / "pipe.py", "handler")
