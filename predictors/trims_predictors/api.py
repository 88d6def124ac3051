"""Predictor interface: load, predict, unload. A class with these methods is a predictor; it needs no base."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from trims_client.weights import Weights

    from trims.manifests.serving import TensorType

    Arrays = Mapping[str, "np.ndarray[Any, Any]"]


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that a predictor gets beside its weights.

    Attributes:
        model: Name of the model.
        options: `predictor.options` of its manifest.
        attributes: `attributes` of its manifest.
        inputs: What the predictor is given; empty if the manifest does not say it: it states what requests bring, which
            is something else if it has `preprocess`.
        outputs: What the predictor gives; empty in the same way, and with `postprocess`.
        threads: How many threads it should compute with.
        max_batch_size: Rows of several requests that one run may get; 0: each request runs alone.
    """

    model: str
    version: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    threads: int = 1
    max_batch_size: int = 0


@runtime_checkable
class Predictor(Protocol):
    """Answers requests for one model, one at a time, in a process of its own.

    It may have two more methods without arguments, `inputs` and `outputs`, which return TensorTypes: what the model
    takes and gives, for manifests that do not say it. A third one, `rehearse`, takes arrays like those of the last
    request, all zeros, and does what makes a first run slower than the next ones, without effects outside of the
    process: hot spares, and those on devices, call it before a request comes. Where inputs are text it is called only
    if the predictor has `rehearses_text = True`, with a few words in each element. If it returns outputs as `predict`
    does, memory for an answer of their size is made ready, too. A fourth one, `predict_only`, takes the inputs of
    `predict` and the names of the outputs that requests ask for, of which there is at least one, and returns at least
    those: it is called instead of `predict` for such requests, unless steps come after the predictor. A fifth one,
    `predict_stream`, takes these two (names may be none), a function `emit`, and whether the request `streams`. It
    calls `emit` with each part of its answer if the request streams, else with None, as often as it can end: once
    `emit` returns False, the client has gone, and what it returns is thrown away. A sixth one, `make_profiler`, returns
    a profiler of one run (`trims_predictors.frameworks.profiling.Profiler`), for requests whose callers ask for layers.
    """

    def load(self, weights: Weights, context: Context) -> None:
        """Make the model ready. The weights stay attached until `unload` has returned."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Answer one request, or several put together along the first dimension.

        Args:
            inputs: Name -> array, checked against the manifest. They may be written to; they are valid until the
                method returns.

        Raises:
            CallerError: The request is wrong; its message reaches the client. Any other exception is the predictor's
                fault.
        """

    def unload(self) -> None:
        """Give up what `load` made."""
