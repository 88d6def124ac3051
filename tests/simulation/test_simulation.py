"""The simulation: 200 seeds here, as many as wanted by `make soak`; the same seed is the same run."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.simulation.choices import Choices
from tests.simulation.run import Run, play

if TYPE_CHECKING:
    from tests.simulation.world import World

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_order_of_events_breaks_a_rule(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            play(seed, 1000)
        except Exception as error:
            pytest.fail(f"seed {seed}: {error}\nreplay: python -m tests.simulation --seed {seed} --shrink")


def test_a_recorded_run_is_the_same_run_again() -> None:
    first = play(7, 500)
    second = Run(Choices(recorded=first.choices.drawn), 500)
    second.go()
    assert second.choices.drawn == first.choices.drawn
    assert second.world.events == first.world.events
    assert second.world.seen == first.world.seen


def test_a_seed_is_replayed_by_one_command() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3", "--steps", "200"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert "nothing found" in told.stdout


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """Return the worlds of 60 runs."""
    return [play(seed, 1000).world for seed in range(60)]


def test_the_runs_reach_every_kind_of_event(worlds: list[World]) -> None:
    from trims.core.residency import events

    kinds = {kind.__name__ for kind in events.Event.__subclasses__()}
    seen = {event for world in worlds for event, _ in world.seen}
    assert kinds - seen <= {"ReplicaBroken", "WorkspaceKnown"}, "rare: long runs reach them"


def test_the_runs_serve_files_copy_them_and_move_readers(worlds: list[World]) -> None:
    happened: Counter[str] = Counter()
    for world in worlds:
        happened.update(world.happened)
    assert happened["opens of what lies on the host"] > 20
    assert happened["opens of artifacts in place"] > 2
    assert happened["copies earned by use"] > 2
    assert happened["refused for a quota"] > 2
    assert happened["upgrades"] > 2
    assert happened["images in the cloud"] > 20
