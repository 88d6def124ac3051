"""Run the simulation: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import count

from .choices import Choices
from .run import Run, shrink

STEPS = 1000


def main() -> int:
    """Replay one seed, or play many until the time or the number of events is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed alone, and tell what happens")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for a shorter run that finds the same")
    parser.add_argument("--steps", type=int, default=STEPS, help="decisions in each run (default %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed to begin with (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="play seeds for so long (default %(default)s)")
    parser.add_argument("--events", type=float, default=float("inf"), help="stop after so many events")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default %(default)s)")
    parser.add_argument("--coverage", action="store_true", help="print how often each (event, state) came")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # so that a seed is the same run everywhere
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
                  {**os.environ, "PYTHONHASHSEED": "0"})  # fmt: skip
    if options.seed is not None:
        return replay(options.seed, options.steps, shorter=options.shrink)
    return soak(options)


def replay(seed: int, steps: int, *, shorter: bool) -> int:
    """Play one seed; returns 1 if it finds something."""
    run = Run(Choices(seed), steps)
    try:
        run.go()
    except Exception:
        traceback.print_exc()
    else:
        print(f"seed {seed}: {run.world.events} events, nothing found")
        return 0
    if shorter:
        recorded = shrink(run.choices.drawn, steps)
        print(f"shrunk from {len(run.choices.drawn)} to {len(recorded)} choices: {recorded}")
        try:
            Run(Choices(recorded=recorded), steps).go()
        except Exception:
            traceback.print_exc()
    return 1


def soak(options: argparse.Namespace) -> int:
    """Play seeds one after the other; returns 1 at the first that finds something."""
    until_s = time.monotonic() + options.seconds
    seen: Counter[tuple[str, str]] = Counter()
    happened: Counter[str] = Counter()
    events = runs = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        seeds = count(options.first)
        while time.monotonic() < until_s and events < options.events:
            batch = [next(seeds) for _ in range(8 * options.jobs)]
            for seed, (found, more, counted, also) in zip(
                batch, pool.map(_one, batch, [options.steps] * len(batch)), strict=True
            ):
                events, runs = events + more, runs + 1
                if runs % 2000 == 0:
                    print(f"{runs} runs, {events} events so far", flush=True)
                seen.update(counted)
                happened.update(also)
                if found:
                    print(f"seed {seed} after {events} events: {found}")
                    print(f"replay: python -m tests.simulation --steps {options.steps} --seed {seed} --shrink")
                    return 1
    print(f"{runs} runs, {events} events of the books, nothing found")
    kinds = ", ".join(f"{times} {kind}" for kind, times in sorted(happened.items()))
    print(f"{happened.total()} things happened: {kinds}")
    if options.coverage:
        for (event, state), times in sorted(seen.items()):
            print(f"{event:16} {state:10} {times}")
    return 0


def _one(seed: int, steps: int) -> tuple[str, int, Counter[tuple[str, str]], Counter[str]]:
    """Return the error found, events of the books, (event, state) pairs, and what the scheduler let happen, by kind."""
    run, found = Run(Choices(seed), steps), ""
    try:
        run.go()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:2000]
    world = run.world
    world.happened["completions of work"] += world.scheduler.ran
    return found, world.events, world.seen, world.happened


if __name__ == "__main__":
    sys.exit(main())
