"""Pipeline that answers a request in a predictor's process: the predictor, and its manifest's steps around it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from trims.core.errors import CallerError, PredictorError
from trims.manifests.serving import TensorType, check_tensors
from trims.process.forks import parent_only
from trims.trace.levels import Level
from trims.trace.span import OFF
from trims.trace.spans import records, span
from trims_predictors.tensors import check_mask, check_name, describe, dtype_name, from_array, numpy_dtype, types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    import numpy as np
    from trims_client.weights import Weights

    from trims.trace.span import AnySpan
    from trims.wire.frames import Message
    from trims_predictors.api import Arrays, Context, Predictor
    from trims_predictors.tensors import Tensor
    from trims_predictors.transforms.chain import Chain

    class PartSender(Protocol):
        """Takes parts of an answer; `wanted` says whether anyone wants them."""

        wanted: bool

        def __call__(self, outputs: Arrays | None) -> bool:
            """Send a part, None for nothing. Return whether the client still waits for more."""
            ...


#: Element of an input in a rehearsal that is text.
_TEXT = b"a few words of a rehearsal"
_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
_UNWATCHED: AbstractContextManager[Callable[[AnySpan], AbstractContextManager[None]]] = contextlib.nullcontext(
    lambda _run: _NOTHING
)


class Stages:
    """Seconds that the parts of one operation took.

    Attributes:
        bare: Whether they are no spans of their own: who records them makes spans of `seconds` and `begins_ns`.
        begins_ns: When each of `seconds` began, on the clock of `time.monotonic_ns`.
    """

    def __init__(self, *, bare: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self.begins_ns: list[int] = []
        self.bare = bare

    def timed(self, name: str) -> AbstractContextManager[AnySpan]:
        """Keep how long the block takes, unless it raises. Its value is the span of the block."""
        return _Stage(self, name, OFF if self.bare else span(name.removesuffix("_s")))


class _Stage:
    """One part while it is timed. A class, because a generator costs three times as much."""

    __slots__ = ("_begin_ns", "_name", "_span", "_stages")

    def __init__(self, stages: Stages, name: str, step: AnySpan) -> None:
        self._stages, self._name, self._span = stages, name, step

    def __enter__(self) -> AnySpan:
        self._begin_ns = time.monotonic_ns()
        return self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, trace)
        if error is None:
            self._stages.seconds[self._name] = (time.monotonic_ns() - self._begin_ns) / 1e9
            self._stages.begins_ns.append(self._begin_ns)


class Pipeline:
    """Pre-processing, predictor and post-processing of one model.

    Args:
        predictor: Not loaded yet.
        preprocess: Steps before it.
        postprocess: Steps after it.
        context: What the manifest says; its inputs and outputs are those of the whole.

    Attributes:
        given: Names, data types and shapes of what the predictor was given last; empty if it cannot rehearse.
    """

    def __init__(self, predictor: Predictor, preprocess: Chain, postprocess: Chain, context: Context) -> None:
        self._predictor = predictor
        self._preprocess = preprocess
        self._postprocess = postprocess
        self._context = context
        #: Names of the outputs that an answer has after `postprocess`; empty for all that there are.
        self._answers = frozenset(each.name for each in context.outputs)
        self.given: tuple[TensorType, ...] = ()

    def load(self, weights: Weights | None) -> None:
        """Make the predictor ready. The context that it gets has no tensors that steps change.

        Args:
            weights: Opened; None for a predictor that loads its model alone.
        """
        stated = self._context
        inputs, outputs = () if self._preprocess else stated.inputs, () if self._postprocess else stated.outputs
        given: Any = weights
        with parent_only():
            self._predictor.load(given, replace(stated, inputs=inputs, outputs=outputs))

    def inputs(self) -> list[Message]:
        """Return descriptions of a request's inputs; empty if neither manifest nor predictor states them."""
        return _described(self._predictor, "inputs", self._context.inputs, bool(self._preprocess))

    def outputs(self) -> list[Message]:
        """Return descriptions of an answer's outputs; empty if neither manifest nor predictor states them."""
        return _described(self._predictor, "outputs", self._context.outputs, bool(self._postprocess))

    @property
    def can_stop(self) -> bool:
        """Return whether a run ends early when its client has gone."""
        return hasattr(self._predictor, "predict_stream") and not self._postprocess

    def run(
        self, inputs: Arrays, stages: Stages, wanted: Sequence[str] = (), parts: PartSender | None = None
    ) -> Arrays:
        """Answer a request. Raises CallerError for what is wrong with it, PredictorError for the rest.

        Args:
            stages: Takes the seconds of each part.
            wanted: Outputs that are asked for; empty for all. The answer has at least those of them that there are.
            parts: Sends parts of the answer, where the predictor has them; None for a run that goes on to its end.
        """
        if self._preprocess:
            with stages.timed("preprocess_s"):
                inputs = self._preprocess.run(inputs)
        with self._watched(inputs) as watch, stages.timed("predict_s") as run, watch(run):
            given = _given(self._predictor, inputs)
            outputs = _checked(self._predicted(inputs, wanted, parts))
            self.given = given
        if not self._postprocess:
            return _only(outputs, wanted)
        with stages.timed("postprocess_s"):
            outputs = self._postprocess.run(outputs, inputs)
        for name in self._answers - outputs.keys():
            raise PredictorError(
                f"the answer lacks the output {name!r}, which the manifest states; after `postprocess` there are "
                f"{', '.join(outputs) or 'none'}"
            )
        answers = {name: each for name, each in outputs.items() if not self._answers or name in self._answers}
        return _only(answers, wanted)

    def _watched(self, inputs: Arrays) -> AbstractContextManager[Callable[[AnySpan], AbstractContextManager[None]]]:
        """Profile the run of the block, if levels below `model` are recorded; else this costs one check."""
        if not records(Level.FRAMEWORK):
            return _UNWATCHED
        from trims_predictors.frameworks.profiling import profiled

        return profiled(self._predictor, inputs)

    def _predicted(self, inputs: Arrays, wanted: Sequence[str], parts: PartSender | None) -> Arrays:
        """Run the predictor, for the wanted outputs only if no steps follow: a step may read any output."""
        if parts is not None and self.can_stop:
            stream: Any = self._predictor.predict_stream  # type: ignore[attr-defined]  # an optional method
            with parent_only():
                streamed: Arrays = stream(inputs, wanted, parts, streams=parts.wanted)
            return streamed
        only = None if self._postprocess or not wanted else getattr(self._predictor, "predict_only", None)
        with parent_only():
            found: Arrays = self._predictor.predict(inputs) if only is None else only(inputs, wanted)
        return found

    def rehearse(self, given: Sequence[TensorType]) -> Arrays:
        """Rehearse the predictor with zeros of these shapes and return its outputs; none if it cannot rehearse."""
        rehearse = getattr(self._predictor, "rehearse", None)
        if rehearse is None:
            return {}
        with parent_only():
            return rehearse({each.name: _neutral(each) for each in given}) or {}

    def tensors(self, outputs: Arrays) -> list[Tensor]:
        """An answer's arrays as messages carry them. Raises PredictorError for those that none can carry."""
        try:
            return [from_array(name, each) for name, each in outputs.items()]
        except CallerError as error:
            origin = "what `postprocess` left" if self._postprocess else "what the predictor returned"
            raise PredictorError(f"{origin} is no answer: {error}") from error

    def unload(self) -> None:
        """Have the predictor give up what it holds. Raises what its code raises."""
        with parent_only():
            self._predictor.unload()


def pipeline_of(message: Message, context: Context) -> Pipeline:
    """The pipeline of a `load` message, not loaded. Raises TrimsError; and what a user's code raises at its import."""
    from trims_predictors.frameworks.resolve import make
    from trims_predictors.transforms.chain import Chain, steps_of

    origin = message["origin"]
    preprocess = Chain(steps_of(message["preprocess"]), "preprocess", context, origin)
    postprocess = Chain(steps_of(message["postprocess"]), "postprocess", context, origin)
    named = message["call"], message["how"], origin
    if "alone" in message:
        from trims_predictors.frameworks import alone

        return Pipeline(alone.make(*named, message["alone"]), preprocess, postprocess, context)
    return Pipeline(make(*named), preprocess, postprocess, context)


def _only(outputs: Arrays, wanted: Sequence[str]) -> Arrays:
    """Return the wanted outputs; all if one is missing, because the error for that names those that there are."""
    return {name: outputs[name] for name in wanted} if wanted and outputs.keys() >= set(wanted) else outputs


def _given(predictor: Predictor, inputs: Arrays) -> tuple[TensorType, ...]:
    """Names, data types and shapes for a rehearsal; empty if there is none, which is so for most text, too."""
    if not hasattr(predictor, "rehearse"):
        return ()
    try:
        found = tuple(TensorType(name, dtype_name(name, each.dtype), each.shape) for name, each in inputs.items())
    except CallerError:  # a step made an array that no message can describe
        return ()
    reads_text = getattr(predictor, "rehearses_text", False)
    return () if any(each.dtype == "BYTES" for each in found) and not reads_text else found


def _neutral(each: TensorType) -> np.ndarray[Any, Any]:
    """Return an array for a rehearsal: zeros, or a short text in each element."""
    import numpy as np

    if each.dtype == "BYTES":
        return np.full(each.shape, _TEXT, dtype=object)
    return np.zeros(each.shape, numpy_dtype(each.dtype))


def _checked(outputs: Arrays) -> Arrays:
    """Return a predictor's outputs. Raises PredictorError for names and arrays that no step and no answer may have."""
    if not isinstance(outputs, Mapping):
        what = "nothing" if outputs is None else f"a value of the type {type(outputs).__name__}"
        raise PredictorError(f"`predict` returned {what}; it must return a dict of output name -> array")
    try:
        for name, array in outputs.items():
            check_name(name)
            check_mask(name, array)
    except CallerError as error:
        raise PredictorError(f"what the predictor returned is no answer: {error}") from error
    return outputs


def _described(predictor: Predictor, which: str, stated: tuple[TensorType, ...], has_steps: bool) -> list[Message]:
    """Describe the tensors that the manifest states, else the predictor's own, if no steps change them."""
    names_of = None if has_steps else getattr(predictor, which, None)
    found = stated or (tuple(names_of()) if callable(names_of) else ())
    described = describe(found)
    check_tensors(types_of(described), f"what `{which}` of the predictor returns")
    return described
