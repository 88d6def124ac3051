"""Demand: how often each image was opened recently.

Each open adds one to the image's level, and every level halves every `HALF_LIFE_OPENS` opens of any image: LRFU's
combined recency and frequency (Lee et al., IEEE Transactions on Computers 50(12), 2001), with opens as its clock. So
what was in demand long ago ages out, and a machine that is idle for a night forgets nothing.
"""

from __future__ import annotations

#: Opens after which an open counts half.
HALF_LIFE_OPENS = 1024
#: Images remembered; those that lie nowhere count too.
_REMEMBERED = 4096
#: Uncounted opens that are kept at most.
COUNTED_AT_ONCE = 256


class Demand:
    """The level of every image that was opened recently. Every call changes it: it belongs under the books' lock.

    Attributes:
        uncounted: Keys of the opens since the last count, in order. An open only adds its key here: most opens find
            their image in memory, where its level is not asked for. See `count`.
    """

    def __init__(self) -> None:
        self.uncounted: list[str] = []
        self._opens = 0
        #: Level, and the number of the open at which the level was computed.
        self._levels: dict[str, tuple[float, int]] = {}

    def opened(self, key: str) -> None:
        """Count an open of the image. Amortised O(log n)."""
        self.uncounted.append(key)
        if len(self.uncounted) >= COUNTED_AT_ONCE:
            self.count()

    def count(self) -> None:
        """Add the uncounted opens to the levels. Call it when there are `COUNTED_AT_ONCE`; `of` calls it by itself."""
        for key in self.uncounted:
            self._opens += 1
            self._levels[key] = (1.0 + self._level(key), self._opens)
        self.uncounted.clear()
        if len(self._levels) > 2 * _REMEMBERED:
            wanted = sorted(self._levels, key=self._level)[-_REMEMBERED:]
            self._levels = {each: self._levels[each] for each in wanted}

    def carry(self, old: str, new: str) -> None:
        """Add the level of the image `old` to that of `new`: the same model is opened under another key from now on."""
        self.count()
        level = self._level(old)
        if self._levels.pop(old, None) is not None:
            self._levels[new] = (level + self._level(new), self._opens)

    def of(self, key: str) -> float:
        """Return the image's level now: opens, each worth less the longer ago it was; 0 if not opened recently."""
        if self.uncounted:
            self.count()
        return self._level(key)

    def _level(self, key: str) -> float:
        level, at = self._levels.get(key, (0.0, self._opens))
        return float(level * 0.5 ** ((self._opens - at) / HALF_LIFE_OPENS))
