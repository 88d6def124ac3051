"""Inputs of the runs that hot spares make ahead of a request: the shapes of the model's last one, filled with zeros.

The first run of a process takes longer than the next ones: frameworks compile kernels for the shapes that they meet,
order weights in their own way and take memory. A predictor with a method `rehearse` does that ahead of the request.
Only data types and shapes pass from one process to the other, never a request's values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.wire.frames import Message
    from trims_predictors.deployment.key import DeploymentKey

#: Seconds of a run, at most. A longer one is not rehearsed: a request that comes meanwhile would wait for it.
LONGEST_S = 1.0
#: Lines that are remembered.
_MOST = 4096
#: Tensors of one run.
_MOST_TENSORS = 64


class Rehearsals:
    """Inputs that predictors of each deployment got last."""

    def __init__(self) -> None:
        self._given: dict[DeploymentKey, list[Message]] = {}
        self._refused: set[DeploymentKey] = set()

    def ran(self, key: DeploymentKey, answer: Message, run_s: float) -> None:
        """A predictor has answered.

        Args:
            key: Of its deployment.
            answer: What it said; `given` is there if it can rehearse, and its shapes are others than before.
            run_s: Seconds that the run took.
        """
        given = answer.get("given")
        if run_s > LONGEST_S:
            self._given.pop(key, None)
        elif isinstance(given, list):
            self._given.pop(key, None)
            if 0 < len(given) <= _MOST_TENSORS:
                self._given[key] = given
            if len(self._given) > _MOST:  # of models that were registered again and again
                del self._given[next(iter(self._given))]

    def of(self, key: DeploymentKey) -> list[Message] | None:
        """Return the inputs to rehearse; None for no rehearsal."""
        return None if key in self._refused else self._given.get(key)

    def refuse(self, key: DeploymentKey) -> None:
        """A rehearsal of this deployment has failed: no more of them."""
        self._refused.add(key)

    def forget(self, key: DeploymentKey) -> None:
        """The deployment is gone."""
        self._given.pop(key, None)
        self._refused.discard(key)
