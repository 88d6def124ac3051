"""Levels of spans by their names."""

from __future__ import annotations

import pytest

from trims.trace.levels import Level


@pytest.mark.parametrize("level", list(Level))
def test_a_level_is_found_by_its_name_in_any_case(level: Level) -> None:
    assert Level.parse(f" {level.name.title()} ") is level


def test_another_name_is_refused_with_all_names() -> None:
    with pytest.raises(ValueError, match=r"'deep'.*application, model, framework, library, system, hardware"):
        Level.parse("deep")
