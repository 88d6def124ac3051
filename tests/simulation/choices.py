"""Every random decision of a simulated run: drawn from a seed, written down, and played again from what was written."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

_Item = TypeVar("_Item")


class Choices:
    """Draws numbers from a seed, or replays recorded ones; 0 is always the plainest choice.

    Args:
        seed: Of the random numbers.
        recorded: Replay these, then draw only zeros.

    Attributes:
        calm: Nothing fails from now on.
    """

    def __init__(self, seed: int = 0, recorded: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._recorded = recorded
        self.drawn: list[int] = []
        self.calm = False

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        at = len(self.drawn)
        if self._recorded is None:
            number = self._random.randrange(limit)
        else:
            number = self._recorded[at] % limit if at < len(self._recorded) else 0
        self.drawn.append(number)
        return number

    def one_of(self, items: Sequence[_Item]) -> _Item:
        """One of these, the first being the plainest."""
        return items[self.below(len(items))]

    def chance(self, one_in: int) -> bool:
        """Return True once in so many times; 0 stands for no. Never while all is calm."""
        return not self.calm and self.below(one_in) == one_in - 1

    @property
    def over(self) -> bool:
        """Return whether all that was recorded has been replayed."""
        return self._recorded is not None and len(self.drawn) >= len(self._recorded)
