"""Inputs and outputs of models.

What the manifest states comes first, then what a predictor has said as it loaded the model. Requests are held against
these. Before a predictor has loaded the model, its graph describes it to people and programs; and where no graph does,
such as with PyTorch, the names and types of the first run do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trims.manifests.serving import ANY, NO_SIGNATURE, Signature, TensorType
from trims_predictors.tensors import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from trims.wire.frames import Message
    from trims_predictors.deployment.deployment import Deployment
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.tensors import Tensor

    #: Given a model, the key of its image, and what its first run had.
    Keep = Callable[[str, str, Signature], Coroutine[Any, Any, None]]
    _Types = tuple[TensorType, ...]


class _Loaded(NamedTuple):
    """Inputs and outputs known since a predictor has loaded a model.

    Attributes:
        key: Key of the model for which they count.
        image: Key of the image that was loaded.
    """

    key: DeploymentKey
    image: str = ""
    said: Signature = NO_SIGNATURE
    seen: Signature = NO_SIGNATURE


class Signatures:
    """Inputs and outputs of all models.

    What a predictor said counts for the version of the manifest that it was made from, and no other. It is kept when
    the predictor ends.
    """

    def __init__(self) -> None:
        #: By model and version, as all of this.
        self._loaded: dict[tuple[str, str], _Loaded] = {}
        #: Deployments whose inputs and outputs are known, so that no run has to be looked at.
        self._whole: dict[tuple[str, str], Deployment] = {}

    def learn(self, deployment: Deployment, loaded: Message) -> None:
        """Keep what a predictor says that has loaded the model."""
        said = Signature(types_of(loaded["inputs"]), types_of(loaded["outputs"]))
        image, before = loaded.get("image", [""])[0], self._of(deployment)
        seen = before.seen if before.image == image else NO_SIGNATURE
        self._loaded[_version(deployment)] = _Loaded(deployment.key.of_model(), image, said, seen)
        self._whole.pop(_version(deployment), None)

    def see(
        self, deployment: Deployment, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> tuple[str, Signature] | None:
        """Keep what a run had, if nothing else is known. Runs of tenants are left out: others would see their names.

        Args:
            outputs: All that the model gives; empty if not all were wanted.

        Returns:
            The key of the image that ran, and what is known since; None if that is nothing new.
        """
        if self._whole.get(_version(deployment)) is deployment:
            return None
        known, (taken, given) = self._of(deployment), self.described(deployment)
        if taken and given:
            self._whole[_version(deployment)] = deployment
        if deployment.environment.tenant or (taken and (given or not outputs)):
            return None
        seen = Signature(
            known.seen.inputs or _any_length(inputs), known.seen.outputs or _any_length(outputs), seen=True
        )
        self._loaded[_version(deployment)] = known._replace(seen=seen)
        return known.image, seen

    def of(self, deployment: Deployment) -> tuple[_Types, _Types]:
        """Inputs and outputs that requests are held against; each empty if it is not known.

        The graph's are not: they are those of the files when the daemon looked last, and a request for files that were
        exchanged since must come to the predictor that finds it out.
        """
        said = self._of(deployment).said
        return deployment.inputs or said.inputs, deployment.outputs or said.outputs

    def stated(self, deployment: Deployment) -> tuple[_Types, _Types]:
        """Return the stated inputs and outputs, else those of the graph; each is empty if none states it."""
        inputs, outputs = self.of(deployment)
        graph = NO_SIGNATURE if deployment.found.seen else deployment.found
        return inputs or graph.inputs, outputs or graph.outputs

    def described(self, deployment: Deployment) -> tuple[_Types, _Types]:
        """Return the stated inputs and outputs, else those seen in a run; each is empty before a first run."""
        inputs, outputs = self.stated(deployment)
        seen, kept = self._of(deployment).seen, deployment.found
        return inputs or seen.inputs or kept.inputs, outputs or seen.outputs or kept.outputs

    def _of(self, deployment: Deployment) -> _Loaded:
        known = self._loaded.get(_version(deployment))
        return (
            known
            if known is not None and known.key == deployment.key.of_model()
            else _Loaded(deployment.key.of_model())
        )


def _version(deployment: Deployment) -> tuple[str, str]:
    return deployment.model, deployment.version


def _any_length(tensors: Sequence[Tensor]) -> _Types:
    return tuple(TensorType(each.name, each.dtype, (ANY,) * len(each.shape)) for each in tensors)
