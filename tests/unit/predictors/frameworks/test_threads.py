"""Frameworks are warmed up, and get their number of threads, only where a process has imported them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from trims_predictors.frameworks import threads as frameworks


class Ours(ModuleType):
    """Our code for a framework: notes what it is asked for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[tuple[Any, ...]] = []

    def warm_up_template(self) -> None:
        self.asked.append(("template",))

    def warm_up(self, threads: int) -> None:
        self.asked.append(("predictor", threads))

    def share_threads(self, before: int, threads: int) -> None:
        self.asked.append(("share", before, threads))


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> dict[str, Ours]:
    """Two frameworks, of which this process has imported `there`."""
    made = {name: Ours(f"ours_for_{name}") for name in ("there", "absent")}
    for module in made.values():
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "there", ModuleType("there"))
    names = {name: module.__name__ for name, module in made.items()}
    monkeypatch.setattr(frameworks, "WARM_UPS", names)
    monkeypatch.setattr(frameworks, "SHARING", names)
    return made


def test_a_framework_that_is_imported_and_wanted_is_warmed_up(ours: dict[str, Ours]) -> None:
    frameworks.warm_up_template(["json", "there", "absent"])
    frameworks.warm_up(["json", "there", "absent"], 3)
    assert ours["there"].asked == [("template",), ("predictor", 3)]
    assert ours["absent"].asked == []


def test_a_framework_that_is_imported_and_not_wanted_is_left_cold(ours: dict[str, Ours]) -> None:
    frameworks.warm_up(["json"], 3)
    assert ours["there"].asked == []


def test_every_framework_that_is_imported_learns_its_share_of_threads(ours: dict[str, Ours]) -> None:
    frameworks.share_threads(4, 2)
    assert ours["there"].asked == [("share", 4, 2)]
    assert ours["absent"].asked == []


def test_only_frameworks_that_are_imported_are_told_to_share(ours: dict[str, Ours]) -> None:
    del ours
    assert frameworks.sharing() == {"there"}


def test_modules_tell_whether_a_framework_is_among_them() -> None:
    assert frameworks.are_among(["numpy", "torch"])
    assert not frameworks.are_among(["numpy", "scipy"])
    assert not frameworks.are_among([])
