from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trims.background import child as cpu_quota
from trims.background.child import ALONE, BESIDE_OTHERS, CpuQuota

if TYPE_CHECKING:
    import pytest


# A copier's share of a processor: a quarter while no other program computes, else a tenth.


class Machine:
    """A clock, and processor seconds: of all processes, and of this one."""

    def __init__(self) -> None:
        self.now_s = self.busy_s = self.own_s = 0.0
        self.share = CpuQuota(lambda: self.busy_s, lambda: self.own_s, lambda: self.now_s)

    def passes(self, seconds: float, *, busy_s: float = 0.0, own_s: float = 0.0) -> float:
        self.now_s += seconds
        self.busy_s += busy_s
        self.own_s += own_s
        return self.share.now()


def test_it_is_a_quarter_on_a_machine_that_does_nothing_else() -> None:
    assert Machine().passes(1.0, busy_s=0.2) == ALONE == 0.25


def test_it_is_a_tenth_while_others_compute() -> None:
    machine = Machine()
    assert machine.passes(1.0, busy_s=0.6) == BESIDE_OTHERS == 0.1
    assert machine.passes(1.0) == ALONE, "they have stopped"


def test_what_the_copier_itself_uses_does_not_count() -> None:
    assert Machine().passes(1.0, busy_s=0.9, own_s=0.7) == ALONE


def test_it_is_a_tenth_before_the_first_look() -> None:
    assert Machine().share.now() == BESIDE_OTHERS


def test_the_kernel_is_asked_twice_a_second_at_most() -> None:
    machine = Machine()
    assert machine.passes(0.5) == ALONE
    assert machine.passes(0.4, busy_s=0.4) == ALONE, "no look yet"
    assert machine.passes(0.1) == BESIDE_OTHERS


def test_it_is_a_tenth_where_the_kernel_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quota, "_STAT", "/nonexistent/stat")
    clock = iter(range(10))
    made = CpuQuota(clock=lambda: float(next(clock)))
    assert {made.now() for _ in range(5)} == {BESIDE_OTHERS}


def test_the_kernels_own_counts_show_a_program_that_computes() -> None:
    made = CpuQuota(own_s=lambda: 0.0)
    until_s = time.monotonic() + 1.0
    while time.monotonic() < until_s:
        pass
    assert made.now() == BESIDE_OTHERS
