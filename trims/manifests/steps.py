"""Steps of a manifest: from a request's tensors to those of the predictor (`preprocess`), and back (`postprocess`).

A `Step`'s fields are complete: what the manifest leaves out has its default. Predictors' processes import this, so it
needs nothing but the standard library. Not covered: how lists are read (`step_fields`), and what a step does
(`trims_predictors.transforms`).
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types of fields
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import ManifestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims.manifests.serving import TensorType

#: The two kinds of steps that are Python functions: one that is named, and one that stands in the manifest.
CALL_STEP, SOURCE_STEP = "call", "source"
#: Steps that take BYTES; all others take numbers.
_OF_BYTES = frozenset({"decode_image", "tokenize"})


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        kind: A key of `step_fields.KINDS`, `call` or `source`.
        fields: Fields that the manifest states, with defaults; `input` is the tensor it takes, `outputs` those it
            gives.
    """

    kind: str
    fields: Mapping[str, Any]

    @property
    def is_function(self) -> bool:
        """Whether it is a function of the manifest's author, which sees all tensors."""
        return self.kind in (CALL_STEP, SOURCE_STEP)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors it takes, in the order of its arguments; empty for a function."""
        return tuple(name for name in (self.fields.get("input"), self.fields.get("mask")) if name)

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors it gives; empty for a function."""
        return tuple(self.fields.get("outputs", ()))


def check_flow(steps: Sequence[Step], inputs: Sequence[TensorType], where: str) -> None:
    """Follow the tensors that a request brings through `preprocess`, up to the first function.

    Raises ManifestError for a step that reads a tensor which is not there, or whose data type it cannot take.
    """
    there: dict[str, str] = {each.name: each.dtype for each in inputs}
    for index, step in enumerate(steps if inputs else ()):
        if step.is_function:
            return
        label = f"{where}[{index}] {step.kind}"
        for name in step.reads:
            if name not in there:
                raise ManifestError(
                    f"{label}: reads the tensor {name!r}, which neither `inputs` nor an earlier step gives; there are "
                    f"{', '.join(there) or 'none'}"
                )
            if there[name] and (there[name] == "BYTES") != (step.kind in _OF_BYTES):
                wanted = "BYTES" if step.kind in _OF_BYTES else "numbers"
                raise ManifestError(f"{label}: takes {wanted}, but the input {name!r} is stated as {there[name]}")
        if not step.fields["keep"]:
            del there[step.fields["input"]]
        there.update(dict.fromkeys(step.writes, ""))
