"""What hot spares run before a request comes: the shapes of the model's last request, filled with zeros.

The first run of a process takes longer than the next ones: frameworks compile kernels for the shapes that they meet,
order weights in their own way and take memory. A predictor with a method `rehearse` does that ahead of the request.
Only data types and shapes are told from one process to the other, never a request's values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.wire.frames import Message

#: Of a run. A longer one is not rehearsed: a request that comes meanwhile would wait for it.
LONGEST_S = 1.0
#: Lines that are remembered.
_MOST = 4096
#: Tensors of one run.
_MOST_TENSORS = 64


class Rehearsals:
    """What predictors of each line were given last."""

    def __init__(self) -> None:
        self._given: dict[str, list[Message]] = {}
        self._refused: set[str] = set()

    def ran(self, line: str, answer: Message, run_s: float) -> None:
        """A predictor has answered.

        Args:
            line: Of its plan.
            answer: What it said; `given` is there if it can rehearse, and its shapes are others than before.
            run_s: Seconds that the run took.
        """
        given = answer.get("given")
        if run_s > LONGEST_S:
            self._given.pop(line, None)
        elif isinstance(given, list):
            self._given.pop(line, None)
            if 0 < len(given) <= _MOST_TENSORS:
                self._given[line] = given
            if len(self._given) > _MOST:  # of models that were registered again and again
                del self._given[next(iter(self._given))]

    def of(self, line: str) -> list[Message] | None:
        """What to rehearse; None for nothing."""
        return None if line in self._refused else self._given.get(line)

    def refuse(self, line: str) -> None:
        """A rehearsal of this line has failed: no more of them."""
        self._refused.add(line)

    def forget(self, line: str) -> None:
        """The line is gone."""
        self._given.pop(line, None)
        self._refused.discard(line)
