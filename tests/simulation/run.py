"""One simulated run from its choices, and the shrinking of one that found something."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from trims.core.place import CPU, DISK, GPU, Place, TierKind

from .choices import Choices
from .world import NAMES, SIZES, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from .world import Client

PLACES = (CPU, DISK, GPU, Place(TierKind.GPU, 1))
CONTENTS = tuple(SIZES)
#: Bytes of memory that images are to leave free.
_LEFT_BYTES = 10
_LONG = "/" + "\U0001f600" * 4000


class Run:
    """A world and what happens in it.

    Args:
        choices: All decisions.
        steps: How many.
    """

    def __init__(self, choices: Choices, steps: int) -> None:
        self.choices = choices
        self.steps = steps
        self.world = World(choices)
        self._actions: list[tuple[int, Callable[[], None]]] = [
            (16, self._work),
            (10, self._read),
            (8, self._answer),
            (8, self._open),
            (6, self._close),
            (2, self._hang_up),
            (3, self._time),
            (1, self._register),
            (1, self._rewrite),
            (1, self._unregister),
            (1, self._pin),
            (1, self._evict),
            (1, self._resume),
            (1, self._load),
            (1, self._odd),
            (1, self._harm),
            (1, self._squat),
            (1, self._push),
            (1, self._settle),
        ]
        self._deck = [action for weight, action in self._actions for _ in range(weight)]

    def go(self) -> World:
        """Carry it out. Raises ViolationError, or whatever the code under test raises."""
        log = logging.getLogger("trims")
        level = log.level
        log.setLevel(logging.CRITICAL)  # what goes wrong here is meant to
        try:
            return self._go()
        finally:
            log.setLevel(level)

    def _go(self) -> World:
        world = self.world
        try:
            for name in NAMES[:4]:
                self._register(name)
            for _ in range(self.steps):
                self.choices.one_of(self._deck)()
                world.scheduler.now_s += 0.001
                world.check_tasks()
                if self.choices.over:
                    break
            world.settle_for_good()
            world.stop(purge=self.choices.chance(2))
        except Exception:
            with contextlib.suppress(Exception):
                world.crash()
            raise
        finally:
            world.close()
        return world

    # -- what happens ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.world.scheduler.run_one()

    def _read(self) -> None:
        reading = [client for client in self.world.clients if client.inbox]
        if reading:
            self.world.read_one(self.choices.one_of(reading))

    def _answer(self) -> None:
        if self.world.answers:
            self.world.answer_one()

    def _client(self) -> Client:
        clients = self.world.clients
        if len(clients) < 4 and (not clients or self.choices.chance(4)):
            return self.world.connect()
        return self.choices.one_of(clients)

    def _open(self) -> None:
        place = self.choices.one_of((None, None, None, "cpu", "disk", "gpu", "gpu:1", "file"))
        deadline = self.choices.one_of((None, None, 0.0, 2.0, 60.0))
        message: dict[str, object] = {"op": "open", "model": self.choices.one_of(NAMES)}
        message |= {} if place is None else {"place": place}
        message |= {} if deadline is None else {"deadline_s": deadline}
        self.world.ask(self._client(), message)

    def _close(self) -> None:
        holding = [client for client in self.world.clients if client.leases]
        if holding:
            client = self.choices.one_of(holding)
            lease = client.leases[self.choices.below(len(client.leases))]
            if not self.choices.chance(8):  # else it gives it back twice, some time
                client.leases.remove(lease)
            self.world.ask(client, {"op": "close", "lease": lease})

    def _hang_up(self) -> None:
        if self.world.clients:
            self.world.hang_up(self.choices.one_of(self.world.clients))

    def _time(self) -> None:
        self.world.tick(self.choices.one_of((0.1, 0.6, 3.0, 30.0)))

    def _register(self, name: str | None = None) -> None:
        residency: dict[str, object] = {}
        if self.choices.chance(4):
            residency["pin"] = True
        if self.choices.chance(3):
            residency["keep_alive_s"] = self.choices.one_of((0, 5, 20))
        if self.choices.chance(3):
            residency["place"] = self.choices.one_of(("cpu", "disk", "gpu", "gpu:1"))
        if self.choices.chance(2):
            residency["persist"] = "always"
        if self.choices.chance(4):
            residency["workspace_bytes"] = 15
        self.world.register(name or self.choices.one_of(NAMES), self.choices.one_of(CONTENTS), residency)

    def _rewrite(self) -> None:
        self.world.rewrite(self.choices.one_of(NAMES), self.choices.one_of(CONTENTS))

    def _unregister(self) -> None:
        self.world.unregister(self.choices.one_of(NAMES))

    def _pin(self) -> None:
        self.world.pin(self.choices.one_of(NAMES), self.choices.one_of(PLACES), pinned=not self.choices.chance(2))

    def _evict(self) -> None:
        place = self.choices.one_of((None, CPU, DISK, GPU))
        self.world.evict(self.choices.one_of(NAMES), place, drain=self.choices.chance(2))

    def _resume(self) -> None:
        key = self.world.judge.keys[self.choices.one_of(CONTENTS)]
        self.world.ask(
            self._client(), {"op": "resume", "key": key, "place": self.choices.one_of(("cpu", "disk", "gpu"))}
        )

    def _load(self) -> None:
        self.world.ask(self._client(), {"op": "prefetch", "model": self.choices.one_of(NAMES)})

    def _odd(self) -> None:
        message = self.choices.one_of(
            (
                {"op": "open", "path": _LONG},
                {"op": "open", "model": "no such model"},
                {"op": "open", "model": "m0", "place": "moon"},
                {"op": "attach", "lease": 7},
                {"op": "workspace", "lease": 7, "nbytes": 9},
            )
        )
        self.world.ask(self._client(), dict(message))

    def _harm(self) -> None:
        """The rare and bad: a lost device, flipped bytes, a killed daemon, one that is stopped, one that drains."""
        how = self.choices.below(5)
        world = self.world
        if how == 0:
            world.lose_device()
        elif how == 1:
            self.choices.one_of(world.tiers[:2]).flip()
        elif how == 2:
            world.crash()
            self._between_lives()
        elif how == 3:
            world.stop(purge=self.choices.chance(2))
            self._between_lives()
        elif self.choices.chance(4):
            world.store.drain()

    def _squat(self) -> None:
        """Other programs take room where the daemon keeps its images, or give it back; a look finds too little left."""
        tier = self.choices.one_of(self.world.tiers[:2])
        tier.squat(self.choices.one_of((0, 40, 80)))
        missing = _LEFT_BYTES - tier.room_bytes()
        if tier.place is CPU and missing > 0:
            self.world.store.give_way(missing)

    def _between_lives(self) -> None:
        if self.choices.chance(4):
            self.world.tiers[0].flip()
        self.world.start()

    def _push(self) -> None:
        """The daemon learns that an image lies in a bucket."""
        content = self.choices.one_of(CONTENTS)
        self.world.happened["images in the cloud"] += 1
        self.world.store.know_in_cloud(self.world.cloud.image_of(content, SIZES[content]))

    def _settle(self) -> None:
        self.world.settle()


def play(seed: int, steps: int) -> Run:
    """One run from a seed. Raises what it found."""
    run = Run(Choices(seed), steps)
    run.go()
    return run


def found_by(recorded: list[int], steps: int) -> str | None:
    """Return the kind of the error that a recorded run finds; None if it finds none."""
    try:
        Run(Choices(recorded=recorded), steps).go()
    except Exception as error:
        return _kind(error)
    return None


def _kind(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:24]}"


def shrink(recorded: list[int], steps: int, *, tries: int = 2000) -> list[int]:
    """A shorter and plainer recording that finds the same kind of thing."""
    wanted = found_by(recorded, steps)
    best, left = list(recorded), tries
    size = max(1, len(best) // 2)
    while size and left > 0:
        at = 0
        while at < len(best) and left > 0:
            for shorter in (
                best[:at] + best[at + size :],
                best[:at] + [0] * min(size, len(best) - at) + best[at + size :],
            ):
                left -= 1
                if shorter != best and found_by(shorter, steps) == wanted:
                    best = shorter
                    break
            else:
                at += size
        size //= 2
    return best
