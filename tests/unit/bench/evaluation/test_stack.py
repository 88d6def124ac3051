"""Facts about the stack, and the difference of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_bench.evaluation.stack import differences, stack

if TYPE_CHECKING:
    import pytest


def test_the_stack_names_processor_memory_and_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = stack()
    assert found["processors"] >= 1
    assert found["memory_bytes"] > 1 << 28
    assert found["libraries"]["numpy"]
    assert found["environment"]["OMP_NUM_THREADS"] == "3"


def test_two_stacks_differ_in_what_has_another_value() -> None:
    one = {"kernel": "6.1", "libraries": {"torch": "2.1", "numpy": "2.0"}, "environment": {}}
    other = {"kernel": "6.1", "libraries": {"torch": "2.2", "numpy": "2.0"}, "environment": {"OMP_NUM_THREADS": "1"}}
    assert differences(one, one) == []
    assert differences(one, other) == ["environment.OMP_NUM_THREADS: - -> 1", "libraries.torch: 2.1 -> 2.2"]
