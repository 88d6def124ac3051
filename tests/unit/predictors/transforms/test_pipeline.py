"""A predictor and the steps around it answer as one, and what a predictor makes is checked before a step sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.api import Context
from trims_predictors.transforms.chain import Chain, steps_of
from trims_predictors.transforms.pipeline import Pipeline, Stages

from trims.core.errors import CallerError, PredictorError
from trims.manifests.serving import TensorType
from trims.trace.span import OFF

if TYPE_CHECKING:
    from collections.abc import Sequence

X = TensorType("x", "FP64", (-1,))
Y = TensorType("y", "FP64", (-1,))


class Doubles:
    """Gives twice what it is given, as `y`."""

    answer: Any = None
    told: Context | None = None

    def load(self, weights: object, context: Context) -> None:
        del weights
        self.told = context

    def predict(self, inputs: Any) -> Any:
        return {"y": 2 * inputs["x"]} if self.answer is None else self.answer

    def inputs(self) -> Sequence[TensorType]:
        return (X,)

    def outputs(self) -> Sequence[TensorType]:
        return (Y,)

    def unload(self) -> None:
        raise RuntimeError("it cannot be unloaded")


class Rehearses(Doubles):
    """One that can do a first run ahead of need."""

    def rehearse(self, inputs: Any) -> Any:
        return self.predict(inputs)


def step(body: str) -> dict[str, Any]:
    source = f"def step(context, data):\n    {body}\n"
    return {"kind": "source", "fields": {"source": source, "function": "step", "options": {}}}


def pipeline(
    predictor: Doubles | None = None, before: Sequence[str] = (), after: Sequence[str] = (), **stated: Any
) -> Pipeline:
    context = Context("m", **stated)

    def chain(which: str, bodies: Sequence[str]) -> Chain:
        return Chain(steps_of([step(each) for each in bodies]), which, context, "")

    made: Any = predictor or Doubles()
    return Pipeline(made, chain("preprocess", before), chain("postprocess", after), context)


def run(made: Pipeline, x: Any = (1.0, 2.0)) -> dict[str, Any]:
    return {name: each.tolist() for name, each in made.run({"x": np.asarray(x)}, Stages()).items()}


def test_stages_begin_in_their_order_and_have_their_lengths() -> None:
    stages = Stages(bare=True)
    with stages.timed("input_s") as step:
        assert step is OFF
    with stages.timed("predict_s"):
        pass
    first, second = stages.begins_ns
    assert list(stages.seconds) == ["input_s", "predict_s"]
    assert first + int(stages.seconds["input_s"] * 1e9) <= second <= time.monotonic_ns()


def test_the_steps_run_around_the_predictor_and_each_part_is_timed() -> None:
    made = pipeline(before=["return {'x': data['x'] + 1}"], after=["return {'y': -data['y'], 'x': context.given['x']}"])
    stages = Stages()
    found = made.run({"x": np.array([1.0])}, stages)
    assert {name: each.tolist() for name, each in found.items()} == {"y": [-4.0], "x": [2.0]}
    assert list(stages.seconds) == ["preprocess_s", "predict_s", "postprocess_s"]


def test_only_outputs_that_the_manifest_states_are_left_after_the_steps() -> None:
    keep = ["return {**data, 'more': data['y']}"]
    assert run(pipeline(after=keep)) == {"y": [2.0, 4.0], "more": [2.0, 4.0]}
    assert run(pipeline(after=keep, outputs=(Y,))) == {"y": [2.0, 4.0]}
    with pytest.raises(PredictorError, match=r"lacks the output 'z', .* after `postprocess` there are y, more"):
        run(pipeline(after=keep, outputs=(TensorType("z", "FP64", (-1,)),)))


@pytest.mark.parametrize(("steps", "inputs"), [((), (X,)), (("return data",), ())])
def test_a_predictor_is_told_the_inputs_that_no_step_changes(steps: Sequence[str], inputs: tuple[TensorType]) -> None:
    predictor = Doubles()
    pipeline(predictor, before=steps, inputs=(X,)).load(None)  # type: ignore[arg-type]
    assert predictor.told is not None
    assert predictor.told.inputs == inputs


def test_a_request_s_tensors_are_the_manifests_else_the_predictors_without_steps() -> None:
    stated = TensorType("x", "FP64", (3,))
    assert [each["shape"] for each in pipeline(inputs=(stated,)).inputs()] == [[3]]
    assert [each["name"] for each in pipeline().inputs()] == ["x"]
    assert [each["name"] for each in pipeline().outputs()] == ["y"]
    assert pipeline(before=["return data"]).inputs() == []
    assert pipeline(after=["return data"]).outputs() == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "`predict` returned a value of the type list"),
        ({1: np.zeros(1)}, "a tensor has a name of the type int"),
        ({"y": np.ma.masked_array([1.0], mask=[True])}, "the tensor 'y' is a masked array"),
    ],
)
@pytest.mark.parametrize("after", [[], ["raise AssertionError('no step may see it')"]])
def test_what_no_answer_may_be_is_refused_before_a_step_sees_it(answer: Any, message: str, after: list[str]) -> None:
    predictor = Doubles()
    predictor.answer = answer
    with pytest.raises(PredictorError, match=message):
        run(pipeline(predictor, after=after))


def test_what_no_message_carries_is_told_with_where_it_comes_from() -> None:
    for after, origin in (((), "what the predictor returned"), (("return data",), "what `postprocess` left")):
        with pytest.raises(PredictorError, match=f"{origin} is no answer: the tensor 'y' has numpy's type complex128"):
            pipeline(after=after).tensors({"y": np.zeros(1, complex)})
    (tensor,) = pipeline().tensors({"y": np.zeros(3)})
    assert (tensor.name, tensor.dtype, tuple(tensor.shape)) == ("y", "FP64", (3,))


def test_what_a_predictor_was_given_is_known_if_it_can_rehearse_and_has_answered() -> None:
    predictor = Rehearses()
    made = pipeline(predictor, before=["return {'x': data['x'][:1]}"])
    run(made)
    assert made.given == (TensorType("x", "FP64", (1,)),)
    predictor.answer = []
    with pytest.raises(PredictorError):
        made.run({"x": np.zeros((2, 2))}, Stages())
    assert made.given == (TensorType("x", "FP64", (1,)),), "of the last answer"
    plain = pipeline()
    run(plain)
    assert plain.given == ()


def test_text_is_not_rehearsed() -> None:
    predictor = Rehearses()
    predictor.answer = {"y": np.zeros(1)}
    made = pipeline(predictor)
    made.run({"x": np.array([b"text"], object)}, Stages())
    assert made.given == ()


def test_a_rehearsal_gives_zeros_of_the_stated_shapes() -> None:
    (y,) = pipeline(Rehearses()).rehearse([TensorType("x", "FP32", (2, 3))]).values()
    assert (y.shape, y.dtype, y.any()) == ((2, 3), np.float32, False)
    assert pipeline().rehearse([X]) == {}, "it cannot rehearse"


def test_what_is_wrong_with_a_request_in_a_step_is_its_callers_fault() -> None:
    cast = {"kind": "cast", "fields": {"input": "nope", "outputs": ["nope"], "keep": False, "dtype": "FP32"}}
    context = Context("m")
    predictor: Any = Doubles()
    made = Pipeline(
        predictor, Chain(steps_of([cast]), "preprocess", context, ""), Chain([], "postprocess", context, ""), context
    )
    with pytest.raises(CallerError, match="nope"):
        run(made)


def test_what_an_unload_raises_is_left_to_the_process() -> None:
    with pytest.raises(RuntimeError, match="it cannot be unloaded"):
        pipeline().unload()


def test_a_part_that_fails_has_no_time() -> None:
    stages = Stages()
    with pytest.raises(ZeroDivisionError), stages.timed("predict_s"):
        _ = 1 / 0
    assert stages.seconds == {}


class Chooses(Doubles):
    """One that can make some of its outputs only."""

    def predict(self, inputs: Any) -> Any:
        return {"y": 2 * inputs["x"], "z": 3 * inputs["x"]}

    def predict_only(self, inputs: Any, outputs: Sequence[str]) -> Any:
        return {name: each + 100 for name, each in self.predict(inputs).items() if name in outputs}


def test_a_predictor_that_can_choose_makes_the_wanted_outputs_only() -> None:
    x = {"x": np.ones(1)}
    made = pipeline(Chooses())
    assert made.run(x, Stages(), ["z"]) == {"z": 103.0}
    assert made.run(x, Stages()) == {"y": 2.0, "z": 3.0}
    assert pipeline(Chooses(), after=["return data"]).run(x, Stages(), ["z"]) == {"z": 3.0}, "a step reads any"


def test_outputs_that_no_request_wants_are_not_sent() -> None:
    x = {"x": np.ones(1)}
    assert pipeline().run(x, Stages(), ["y"]).keys() == {"y"}
    assert pipeline().run(x, Stages(), ["other"]).keys() == {"y"}
