"""Inputs and outputs of models: what their manifests state, else what their predictors have told since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_predictors.tensors import types_of

if TYPE_CHECKING:
    from trims.core.serving import TensorType
    from trims.wire.frames import Message
    from trims_predictors.records import Plan


class Signatures:
    """Of all models. What a predictor told counts for the version of the manifest that it was made from, and no other.

    It is kept when the predictor ends.
    """

    def __init__(self) -> None:
        #: Model -> its line, inputs and outputs.
        self._told: dict[str, tuple[str, tuple[TensorType, ...], tuple[TensorType, ...]]] = {}

    def learn(self, plan: Plan, loaded: Message) -> None:
        """A predictor has loaded the model, and tells its tensors."""
        self._told[plan.model] = (plan.model_line, types_of(loaded["inputs"]), types_of(loaded["outputs"]))

    def of(self, plan: Plan) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """Inputs and outputs; each empty if it is not known."""
        line, inputs, outputs = self._told.get(plan.model, ("", (), ()))
        known = line == plan.model_line
        return plan.inputs or (inputs if known else ()), plan.outputs or (outputs if known else ())
