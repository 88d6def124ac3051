"""Modules that a predictor imports are listed for templates, if another process can import them."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from trims_predictors.worker.new_imports import count_of_modules, importable_since

from trims.process.messages import MOST_BYTES

if TYPE_CHECKING:
    import pytest


def import_anew(monkeypatch: pytest.MonkeyPatch, name: str, *, of_a_file: bool = True) -> None:
    module = ModuleType(name)
    if of_a_file:
        module.__spec__ = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, module)


def test_modules_imported_since_are_listed_the_last_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_of_modules()
    for name in ("made_up_one", "made_up_two"):
        import_anew(monkeypatch, name)
    assert importable_since(before) == ["made_up_two", "made_up_one"]


def test_a_module_of_source_text_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_of_modules()
    import_anew(monkeypatch, "made_of_text", of_a_file=False)
    import_anew(monkeypatch, "made_of_a_file")
    assert importable_since(before) == ["made_of_a_file"]


def test_nothing_is_listed_if_nothing_was_imported_or_modules_were_removed() -> None:
    assert importable_since(count_of_modules()) == []
    assert importable_since(count_of_modules() + 5) == []


def test_more_modules_than_a_message_holds_are_left_to_a_later_predictor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_of_modules()
    for number in range(2 * MOST_BYTES // 100):
        import_anew(monkeypatch, f"made_up_{number:0100d}")
    listed = importable_since(before)
    assert 0 < sum(map(len, listed)) < MOST_BYTES
    assert listed[0].endswith(str(2 * MOST_BYTES // 100 - 1))


def test_modules_of_a_folder_whose_files_may_be_edited_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = count_of_modules()
    for name in ("beside", "installed"):
        import_anew(monkeypatch, name)
    spec = sys.modules["beside"].__spec__
    assert spec is not None
    spec.origin = "/srv/functions/beside.py"
    assert importable_since(before, "/srv/functions") == ["installed"]
    assert importable_since(before, "/srv/func") == ["installed", "beside"]
