"""References are found by their model, and nothing is kept of those that are gone."""

from __future__ import annotations

import pytest

from trims.store.resolve import by_model
from trims.store.resolve.by_model import ByModel


def test_a_model_is_dropped_with_all_its_references_and_no_other() -> None:
    known = ByModel[int]()
    for number, reference in enumerate(("m", "m@1", "m@stable", "mm", "n@1")):
        known[reference] = number
    known["m"] = 7
    known.drop_model("m")
    known.drop_model("never there")
    assert known == {"mm": 3, "n@1": 4}


def test_the_oldest_reference_is_dropped_first_and_leaves_nothing_behind() -> None:
    known = ByModel[int]()
    for reference in ("m@1", "m@2"):
        known[reference] = 1
        known[reference] = 2
    known.drop_oldest()
    assert known == {"m@2": 2}
    known.drop_oldest()
    assert known._references == {}
    with pytest.raises(StopIteration):
        known.drop_oldest()


def test_other_models_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ByModel[int]()
    for number in range(1000):
        known[f"m{number}"] = number
    looked = list[str]()
    name_of = by_model.name_of
    monkeypatch.setattr(by_model, "name_of", lambda each: looked.append(each) or name_of(each))
    known.drop_model("m7")
    assert looked == ["m7"]
