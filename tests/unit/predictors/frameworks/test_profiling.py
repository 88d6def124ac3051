"""A profiler around one run: asked for or not, and on bad days, on which the run is answered all the same."""

from __future__ import annotations

import mmap
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.api import Context
from trims_predictors.frameworks import profiling
from trims_predictors.frameworks.profile_event import LAYER, MOST_SPANS, OPERATOR, RUN, Event, Profile
from trims_predictors.frameworks.profiling import gpu_samples, rss_bytes, used
from trims_predictors.transforms.chain import Chain
from trims_predictors.transforms.pipeline import Pipeline, Stages

from trims.trace import spans
from trims.trace.levels import Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# Samples of GPUs by NVML, which is there, or fails in one of its ways.


class NVMLError(Exception):
    """Stands for NVML's own."""


def nvml(count: Callable[[], int] = lambda: 1, init: Callable[[], None] = lambda: None) -> Any:
    made = SimpleNamespace(closed=0, NVMLError=NVMLError, nvmlInit=init, nvmlDeviceGetCount=count)
    made.nvmlDeviceGetHandleByIndex = lambda index: index
    made.nvmlDeviceGetMemoryInfo = lambda device: SimpleNamespace(used=4096 + device)
    made.nvmlDeviceGetUtilizationRates = lambda device: SimpleNamespace(gpu=50 + device)

    def shut_down() -> None:
        made.closed += 1

    made.nvmlShutdown = shut_down
    return made


def test_each_gpu_has_its_memory_and_utilization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake := nvml(lambda: 2))
    assert gpu_samples() == {
        "system.gpu0.used_bytes": 4096, "system.gpu0.utilization_percent": 50,
        "system.gpu1.used_bytes": 4097, "system.gpu1.utilization_percent": 51,
    }  # fmt: skip
    assert fake.closed == 1


def failing() -> Any:
    raise NVMLError("it fell off the bus")


def test_where_there_is_no_nvml_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_samples() == {}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(init=failing))
    assert gpu_samples() == {}


def test_a_gpu_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake := nvml(count=failing))
    assert gpu_samples() == {"system.gpu.error": "it fell off the bus"}
    assert fake.closed == 1


def test_what_a_process_used_only_grows() -> None:
    before = used()
    kept = mmap.mmap(-1, 32 << 20)  # pages that are new for certain: an allocator may have old ones
    kept.write(b"\1" * len(kept))
    after = used()
    assert after["minor_faults"] > before["minor_faults"]
    assert all(after[name] >= value for name, value in before.items())
    assert rss_bytes() > len(kept)


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
X = {"x": np.array([1.0])}


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    spans.stop()


class Profiled:
    """A predictor with a profiler of its own."""

    def __init__(self, profile: Profile | None = None, **bad: Exception) -> None:
        self.profile, self.bad, self.asked = profile or Profile("fake", (), Level.LIBRARY), bad, 0
        self.abandoned = False

    def load(self, weights: object, context: Context) -> None: ...

    def predict(self, inputs: Any) -> Any:
        self._fail("predict")
        return {"y": inputs["x"]}

    def unload(self) -> None: ...

    def make_profiler(self) -> Profiled:
        self.asked += 1
        return self

    def start(self, level: Level, inputs: Any) -> None:
        del level, inputs
        self._fail("start")

    def stop(self) -> Profile:
        self._fail("stop")
        return self.profile

    def abandon(self) -> None:
        self.abandoned = True

    def _fail(self, step: str) -> None:
        if step in self.bad:
            raise self.bad[step]


def ran(predictor: Any, level: Level | None) -> dict[str, list[Any]]:
    """Run a predictor within a trace down to a level; its spans, as rows, by name."""
    nothing = Chain([], "", Context("m"), "")
    collector = spans.collect()
    with spans.continued(PARENT, level):
        answer = Pipeline(predictor, nothing, nothing, Context("m")).run(X, Stages())
    assert answer == {"y": X["x"]}
    return {row[3]: row for row in collector.take()}


def test_no_profiler_is_made_unless_levels_below_the_model_are_asked_for() -> None:
    predictor = Profiled()
    for level in (None, Level.APPLICATION, Level.MODEL):
        ran(predictor, level)
    spans.stop()
    Pipeline(predictor, *[Chain([], "", Context("m"), "")] * 2, Context("m")).run(X, Stages())  # type: ignore[arg-type]
    assert predictor.asked == 0
    ran(predictor, Level.FRAMEWORK)
    assert predictor.asked == 1


def test_events_are_spans_below_that_of_the_run() -> None:
    layer = Event(1, RUN, LAYER, "fc", Level.FRAMEWORK, 10, 20, 7, True, {"type": "Linear", "name": "as users like"})
    inner = Event(2, 1, OPERATOR, "add", Level.LIBRARY, 12, 14, 7, False)
    found = ran(Profiled(Profile("fake", (inner, layer), Level.LIBRARY, unread=3, clock_error_ns=9)), Level.LIBRARY)
    assert found["fc"][2] == found["predict"][1]
    assert found["add"][2] == found["fc"][1]
    assert found["fc"][4:] == [3, 10, 20, 7, {"kind": "layer", "type": "Linear", "name": "as users like"}]
    assert found["add"][8] == {"kind": "operator", "joined": False}
    assert found["read profile"][8] == {
        "profiler": "fake", "spans": 2, "joined_share": 0.0, "unread": 3, "clock_error_ns": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "where", "words", "abandoned"),
    [
        ({"start": RuntimeError("busy")}, "start profiler", "did not start: RuntimeError: busy", True),
        ({"stop": ValueError("garbled")}, "read profile", "could not be read: ValueError: garbled", False),
    ],
)
def test_a_profiler_that_fails_is_said_and_counted_and_the_run_answered(
    bad: dict[str, Exception], where: str, words: str, *, abandoned: bool
) -> None:
    predictor = Profiled(None, **bad)
    first, second = ran(predictor, Level.FRAMEWORK)[where][8], ran(predictor, Level.FRAMEWORK)[where][8]
    assert words in first["error"]
    assert second["failures"] == first["failures"] + 1
    assert predictor.abandoned is abandoned


def test_a_run_that_fails_ends_its_profile() -> None:
    layer = Event(1, RUN, LAYER, "fc", Level.FRAMEWORK, 10, 20)
    predictor = Profiled(Profile("fake", (layer,), Level.LIBRARY), predict=ZeroDivisionError("by hand"))
    collector = spans.collect()
    nothing = Chain([], "", Context("m"), "")
    made: Any = predictor
    with spans.continued(PARENT, Level.FRAMEWORK), pytest.raises(ZeroDivisionError):
        Pipeline(made, nothing, nothing, Context("m")).run(X, Stages())
    found = {row[3]: row for row in collector.take()}
    assert found["predict"][8]["error.type"] == "ZeroDivisionError"
    assert found["fc"][2] == found["predict"][1]


def test_a_profile_that_is_too_long_is_cut_with_a_count() -> None:
    events = tuple(Event(n, RUN, OPERATOR, f"op{n}", Level.FRAMEWORK, n, n + 1) for n in range(1, MOST_SPANS + 4))
    found = ran(Profiled(Profile("fake", events, Level.LIBRARY)), Level.FRAMEWORK)
    assert (found["read profile"][8]["spans"], found["read profile"][8]["cut"]) == (MOST_SPANS, 3)


@pytest.mark.parametrize(
    ("deepest", "asked", "is_said"),
    [
        (Level.FRAMEWORK, Level.FRAMEWORK, False), (Level.FRAMEWORK, Level.LIBRARY, True),
        (Level.FRAMEWORK, Level.SYSTEM, True), (Level.LIBRARY, Level.SYSTEM, False),
        (Level.LIBRARY, Level.HARDWARE, True), (Level.HARDWARE, Level.HARDWARE, False),
    ],
)  # fmt: skip
def test_a_level_that_is_not_there_is_said(deepest: Level, asked: Level, *, is_said: bool) -> None:
    event = Event(1, RUN, OPERATOR, "op", Level.FRAMEWORK, 1, 2)
    said = ran(Profiled(Profile("fake", (event,), deepest, "it is shallow")), asked)["read profile"][8]
    assert ("not_deeper" in said) is is_said


def test_a_predictor_without_a_framework_is_said_to_have_no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "PROFILERS", {"no_such_framework": ("", "")})

    class Plain:
        def predict(self, inputs: Any) -> Any:
            return {"y": inputs["x"]}

    assert "no layers to show" in ran(Plain(), Level.FRAMEWORK)["start profiler"][8]["error"]


def test_a_profiler_that_saw_nothing_says_so() -> None:
    assert "saw nothing run" in ran(Profiled(), Level.FRAMEWORK)["read profile"][8]["not_deeper"]


def test_the_level_system_adds_what_the_process_used() -> None:
    found = ran(Profiled(), Level.SYSTEM)["predict"][8]
    assert found["system.rss_bytes"] > 1 << 20
    assert found["system.cpu_s"] >= 0
    assert {"system.minor_faults", "system.major_faults", "system.read_bytes"} <= found.keys()
    assert not any(key.startswith("system") for key in ran(Profiled(), Level.LIBRARY)["predict"][8])
