"""Deployments made from what the daemon says of a model."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_environments import put
from nursing import until
from trims_predictors.children.launcher import Environment
from trims_predictors.deployment import deployments
from trims_predictors.deployment.deployments import Deployments

from trims.control.answers import Model, ModelChange, TensorInfo
from trims.core.errors import DaemonAwayError, ModelNotFoundError, NotSupportedError
from trims.environments.environment_store import EnvironmentStore
from trims.formats.conversion.interpreter_selection import InterpreterSelection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


def model(key: str = "", format_name: str = "", name: str = "m", **fields: Any) -> Model:
    manifest = {"name": name, "version": "1.2.3", "artifact": {"path": "/m.safetensors"}, **fields}
    return Model(
        name=name, version="1.2.3", description="", framework="", format=format_name, key=key, replicas=(),
        manifest_json=json.dumps(manifest), image_bytes=0, license="", origin="/folder", in_memory="",
    )  # fmt: skip


class Daemon:
    """Knows models, and counts how often it is asked."""

    def __init__(self, *models: Model) -> None:
        self.models = {each.name: each for each in models}
        self.asked = 0
        self.away = False
        self.changes: asyncio.Queue[ModelChange | None] = asyncio.Queue()

    async def watch_models(self, watcher: str = "") -> AsyncGenerator[ModelChange, None]:
        while (change := await self.changes.get()) is not None:
            yield change

    async def show(self, name: str) -> Model:
        self.asked += 1
        if self.away:
            raise DaemonAwayError("no daemon answers")
        if name not in self.models:
            raise ModelNotFoundError(f"no model {name!r}")
        return self.models[name]


@pytest.fixture
def retired() -> list[str]:
    return []


def made(daemon: Daemon, retired: list[str], **environments: Path) -> Deployments:
    return Deployments(daemon, InterpreterSelection(environments), retired.append)  # type: ignore[arg-type]


def test_while_the_daemon_is_away_a_deployment_is_what_it_was(
    retired: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "_FRESH_S", -1.0)
    predictor = {"call": "m:Class"}
    daemon = Daemon(model(framework={"name": "numpy"}, predictor=predictor), model(name="other"))
    kept = made(daemon, retired)

    async def work() -> None:
        before = await kept.of("m")
        daemon.away = True
        assert await kept.of("m", "1.2.3") is before
        with pytest.raises(DaemonAwayError):
            await kept.of("other")
        daemon.away = False
        daemon.models["m"] = model(framework={"name": "numpy"}, predictor={**predictor, "threads": 3})
        assert (await kept.of("m")).threads == 3

    asyncio.run(work())


# fault (templates): an order to load meets no daemon -> `daemon_away`; running predictors answer on
def test_an_order_to_load_asks_the_daemon_now_and_loses_nothing_if_it_is_away(retired: list[str]) -> None:
    daemon = Daemon(model(framework={"name": "numpy"}, predictor={"call": "m:Class"}))
    kept = made(daemon, retired)

    async def work() -> None:
        deployment = await kept.renew("m")
        assert retired == []
        daemon.away = True
        with pytest.raises(DaemonAwayError):
            await kept.renew("m")
        assert await kept.of("m") is deployment
        assert retired == []
        daemon.away = False
        assert (await kept.renew("m")).key == deployment.key
        assert retired == [deployment.key]

    asyncio.run(work())


def test_a_question_whose_clients_have_all_hung_up_leaves_nothing_in_the_log(retired: list[str]) -> None:
    logged: list[Any] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        daemon = Daemon()
        answer = asyncio.Event()

        async def show(name: str) -> Model:
            await answer.wait()
            raise DaemonAwayError(f"no daemon tells of {name}")

        daemon.show = show  # type: ignore[method-assign]
        asking = asyncio.ensure_future(made(daemon, retired).of("m"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait((asking,))
        answer.set()
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(work())
    gc.collect()
    assert logged == []


def test_a_deployment_says_what_the_manifest_says(retired: list[str]) -> None:
    predictor = {"call": "m:Class", "instances": 2, "threads": 3, "max_batch_size": 4, "keep_alive_s": 5, "hot": 3}
    inputs = [{"name": "x", "dtype": "FP32", "shape": [-1]}]
    daemon = Daemon(model(framework={"name": "numpy"}, predictor=predictor, inputs=inputs, attributes={"a": 1}))
    deployment = asyncio.run(made(daemon, retired).of("m"))
    assert (deployment.model, deployment.version, deployment.call, deployment.origin) == (
        "m",
        "1.2.3",
        "m:Class",
        "/folder",
    )
    assert (deployment.instances, deployment.threads, deployment.batch, deployment.keep_alive_s, deployment.hot) == (
        2,
        3,
        4,
        5.0,
        3,
    )
    assert (deployment.inputs[0].name, deployment.attributes) == ("x", {"a": 1})
    assert deployment.environment == Environment("numpy")


@pytest.mark.parametrize(
    ("stated", "call", "how"),
    [
        ({"call": "m:Class"}, "m:Class", "class"),
        ({"function": "m:function"}, "m:function", "function"),
        ({"name": "my-predictor"}, "my-predictor", "plugin"),
        ({}, "trims_predictors.frameworks.torch:TorchPredictor", "class"),
    ],
)
def test_a_deployment_tells_a_class_from_a_function_and_an_installed_predictor(
    retired: list[str], stated: dict[str, Any], call: str, how: str
) -> None:
    step = {"softmax": {"input": "x"}}
    daemon = Daemon(model(framework={"name": "torch"}, predictor=stated, preprocess=[step], postprocess=[step] * 2))
    deployment = asyncio.run(made(daemon, retired).of("m"))
    assert (deployment.call, deployment.how) == (call, how)
    assert [each.kind for each in (*deployment.preprocess, *deployment.postprocess)] == ["softmax"] * 3


@pytest.mark.parametrize(
    ("fields", "format_name", "framework"),
    [
        ({"framework": {"name": "mxnet"}}, "", "mxnet"),
        ({}, "onnx", "onnxruntime"),
        ({"artifact": {"path": "/m", "format": "mxnet"}}, "", "mxnet"),
        ({"artifact": {"path": "/m", "options": {"module": "a:b"}}}, "safetensors", "torch"),
    ],
)
def test_the_framework_is_stated_or_follows_from_the_artifact(
    retired: list[str], fields: dict[str, Any], format_name: str, framework: str
) -> None:
    daemon = Daemon(model(format_name=format_name, **fields))
    deployment = asyncio.run(made(daemon, retired, mxnet=Path("/envs/mxnet/python")).of("m"))
    assert deployment.environment == Environment(framework, "/envs/mxnet/python" if framework == "mxnet" else "")
    assert deployment.call.startswith(f"trims_predictors.frameworks.{framework}:")


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"framework": {"name": "onnxruntime"}, "predictor": {"options": {"top_k": 1}}}, "the predictor for onnxr"),
        ({"predictor": {"handler": "/f.py:h", "options": {"as": "weights", "top_k": 1}}}, "a handler"),
    ],
)
def test_options_that_nothing_reads_are_refused(retired: list[str], fields: dict[str, Any], what: str) -> None:
    with pytest.raises(NotSupportedError, match=f"predictor.options of 'm' has top_k, which {what}"):
        asyncio.run(made(Daemon(model(**fields)), retired).of("m"))
    own = {"predictor": {"call": "mine:Own", "options": {"top_k": 1}}}
    assert asyncio.run(made(Daemon(model(**own)), retired).of("m")).options == {"top_k": 1}


def test_a_model_that_nothing_runs_is_told_with_what_its_manifest_lacks(retired: list[str]) -> None:
    with pytest.raises(NotSupportedError, match="its manifest needs `framework"):
        asyncio.run(made(Daemon(model(format_name="safetensors")), retired).of("m"))


def test_a_version_is_asked_of_the_daemon_and_refused_if_that_does_not_know_it(retired: list[str]) -> None:
    async def run() -> None:
        known = made(Daemon(model(framework={"name": "torch"})), retired)
        assert (await known.of("m", "1.2.3")).version == "1.2.3"
        with pytest.raises(ModelNotFoundError, match="no model 'm@2'"):
            await known.of("m", "2")

    asyncio.run(run())


def test_the_daemon_is_asked_once_for_many_requests(retired: list[str]) -> None:
    async def run() -> None:
        daemon = Daemon(model(framework={"name": "torch"}))
        known = made(daemon, retired)
        await asyncio.gather(*(known.of("m") for _ in range(20)))
        assert daemon.asked == 1
        known.forget("m")
        await known.of("m")
        assert daemon.asked == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("after", "retires"),
    [
        ({"key": "one"}, False),
        ({"key": "two"}, True),
        ({"key": ""}, False),
        ({"key": "one", "description": "changed"}, True),
    ],
)
def test_another_manifest_or_artifact_retires_the_predictors_of_the_last(
    retired: list[str], monkeypatch: pytest.MonkeyPatch, after: dict[str, Any], retires: bool
) -> None:
    async def run() -> None:
        monkeypatch.setattr(deployments, "_FRESH_S", -1.0)
        daemon = Daemon(model("one", framework={"name": "torch"}))
        known = made(daemon, retired)
        line = (await known.of("m")).key
        daemon.models["m"] = model(framework={"name": "torch"}, **after)
        await known.of("m")
        assert retired == ([line] if retires else [])

    asyncio.run(run())


def test_a_model_that_was_removed_retires_its_predictors_and_is_not_found(
    retired: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(deployments, "_FRESH_S", -1.0)
        daemon = Daemon(model(framework={"name": "torch"}))
        known = made(daemon, retired)
        line = (await known.of("m")).key
        daemon.models.clear()
        with pytest.raises(ModelNotFoundError):
            await known.of("m")
        assert retired == [line]

    asyncio.run(run())


def test_a_model_moves_to_an_environment_that_is_made_and_back_when_it_is_removed(
    retired: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deployments, "_FRESH_S", 0.0)
    env_store = EnvironmentStore(tmp_path / "environments")
    old = put(env_store.folder, 1.0, torch="900.0")
    daemon = Daemon(model(framework={"name": "torch", "version": ">=900"}))

    async def work() -> None:
        known = Deployments(daemon, InterpreterSelection(env_store=env_store), retired.append)  # type: ignore[arg-type]
        first = await known.of("m")
        assert (first.environment, retired) == (Environment("torch", str(old.python)), [])
        new = put(env_store.folder, 2.0, torch="901.0")
        second = await known.of("m")
        assert second.environment == Environment("torch", str(new.python))
        assert (second.key != first.key, retired) == (True, [first.key])
        env_store.remove(new.name)
        assert (await known.of("m")).key == first.key
        env_store.remove(old.name)
        with pytest.raises(NotSupportedError, match="trims env create 'torch>=900'"):
            await known.of("m")

    asyncio.run(work())


def test_two_versions_of_one_framework_are_planned_side_by_side(retired: list[str], tmp_path: Path) -> None:
    made = [put(tmp_path, 1.0, torch="900.0"), put(tmp_path, 2.0, torch="901.0")]
    models = [model(name=f"m{n}", framework={"name": "torch", "version": f"=={n}.*"}) for n in (900, 901)]

    async def work() -> None:
        known = Deployments(Daemon(*models), InterpreterSelection(env_store=EnvironmentStore(tmp_path)), retired.append)  # type: ignore[arg-type]
        found = [(await known.of(each.name)).environment.python for each in models]
        assert found == [str(each.python) for each in made]

    asyncio.run(work())


@pytest.mark.parametrize(
    ("fields", "inputs", "outputs", "plain"),
    [
        ({}, ["x"], ["y"], True),
        ({"predictor": {"call": "m:Class"}}, [], [], False),
        ({"predictor": {"function": "m:run"}}, [], [], False),
        ({"preprocess": [{"top_k": {"input": "x"}}]}, [], ["y"], False),
        ({"postprocess": [{"top_k": {"input": "y"}}]}, ["x"], [], False),
    ],
)
def test_tensors_of_a_graph_are_those_of_requests_where_no_code_is_between(
    retired: list[str], fields: dict[str, Any], inputs: list[str], outputs: list[str], plain: bool
) -> None:
    known = dataclasses.replace(
        model(format_name="onnx", framework={"name": "numpy"} if "predictor" in fields else None, **fields),
        inputs=(TensorInfo("x", "FP32", (-1,)),),
        outputs=(TensorInfo("y", "FP32", (-1,)),),
    )
    deployment = made(Daemon(known), retired).make(known)
    assert [each.name for each in deployment.found.inputs] == inputs
    assert [each.name for each in deployment.found.outputs] == outputs
    assert deployment.is_plain is plain


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def watching(work: Callable[[Deployments, Daemon, Clock], Any], daemon: Daemon, picker: Any = None) -> None:
    """Run `work` with deployments that hear of each change that `daemon.changes` gets."""
    clock = Clock()

    async def run() -> None:
        retired: list[Any] = []
        known = Deployments(daemon, picker or InterpreterSelection({}), retired.append, clock=clock)  # type: ignore[arg-type]
        task = asyncio.ensure_future(known.watch())
        await daemon.changes.put(ModelChange((), all=False, outside=False))
        await until(lambda: isinstance(known.daemon_life, int) and known._watch.is_complete)
        await work(known, daemon, clock)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(run())


def test_a_watched_model_is_asked_for_again_only_after_a_change() -> None:
    torch = {"name": "torch"}

    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        first = await known.of("m")
        for _ in range(20):
            clock.now_s += 2.0
            await known.look()
            assert await known.of("m") is first
            assert known.current("m") is first
        assert daemon.asked == 1
        daemon.models["m"] = model(framework=torch, predictor={"threads": 3})
        await daemon.changes.put(ModelChange(("other", "m"), all=False, outside=False))
        await until(lambda: known.current("m") is None)
        assert known.guess("m") is first
        assert (await known.of("m")).threads == 3
        assert daemon.asked == 2

    watching(work, Daemon(model(framework=torch), model(name="other", framework=torch)))


def test_a_change_while_the_daemon_is_asked_has_it_asked_again_for_who_waits() -> None:
    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        del clock
        asked, answer, show = asyncio.Event(), asyncio.Event(), daemon.show

        async def slow(name: str) -> Model:
            found = await show(name)
            asked.set()
            await answer.wait()
            return found

        daemon.show = slow  # type: ignore[method-assign]
        answer.set()
        assert (await known.of("m")).threads != 3
        known._mark(("m",))
        asked.clear()
        answer.clear()
        asking = asyncio.ensure_future(known.of("m"))
        await asked.wait()
        assert known.current("m") is None, "a request gets what was before the change that another one asks about"
        daemon.models["m"] = model(framework={"name": "torch"}, predictor={"threads": 3})
        known._mark(("m",))
        answer.set()
        found = await asking
        assert found.threads == 3
        assert known.current("m") is found
        assert daemon.asked == 3

    watching(work, Daemon(model(framework={"name": "torch"})))


def test_a_daemon_that_is_not_watched_any_more_is_asked_after_a_second() -> None:
    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        first = await known.of("m")
        await daemon.changes.put(None)
        await until(lambda: not known._watch.is_complete)
        assert await known.of("m") is first
        clock.now_s += 1.1
        await known.of("m")
        assert daemon.asked == 2

    watching(work, Daemon(model(framework={"name": "torch"})))


def test_code_beside_a_manifest_that_is_edited_makes_its_deployment_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class P: pass\n")
    described = dataclasses.replace(
        model(framework={"name": "torch"}, predictor={"call": "mine:P"}), origin=str(tmp_path)
    )

    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        del daemon
        first = await known.of("m")
        await known.look()
        assert known.current("m") is first
        (tmp_path / "mine.py").write_text("class P: edited = True\n")
        await known.look()
        assert known.current("m") is None
        second = await known.of("m")
        assert second.key != first.key
        clock.now_s += 10.0  # looks are late, as when a disk hangs
        assert known.current("m") is None

    watching(work, Daemon(described))


def test_a_model_without_requests_is_looked_at_no_more_and_asked_for_at_the_next() -> None:
    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        await known.of("m")
        clock.now_s += 301.0
        await known.look()
        assert known.current("m") is None
        await known.of("m")
        assert daemon.asked == 2

    watching(work, Daemon(model(framework={"name": "torch"})))


def test_a_model_that_cannot_run_any_more_is_refused_at_each_request() -> None:
    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        del clock
        await known.of("m")
        daemon.models["m"] = model(format_name="safetensors")
        known._mark(None)
        for _ in range(2):
            with pytest.raises(NotSupportedError):
                await known.of("m")

    watching(work, Daemon(model(framework={"name": "torch"})))


def test_a_look_that_fails_for_one_model_goes_on_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(known: Deployments, daemon: Daemon, clock: Clock) -> None:
        del daemon
        for name in ("m", "other"):
            await known.of(name)
        identity = deployments.code_identity

        def broken(manifest: Any) -> str:
            if manifest.name == "m":
                raise OSError(40, "Too many levels of symbolic links")
            return identity(manifest)

        monkeypatch.setattr(deployments, "code_identity", broken)
        clock.now_s += 2.0
        await known.look()
        assert known.current("m") is None
        assert known.current("other") is not None

    watching(work, Daemon(model(framework={"name": "torch"}), model(name="other", framework={"name": "torch"})))


def test_a_daemon_that_hangs_is_as_one_that_is_away(retired: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "_PATIENCE_S", 0.05)
    daemon = Daemon(model(framework={"name": "torch"}))
    kept = made(daemon, retired)

    async def work() -> None:
        before = await kept.of("m")

        async def hang(name: str) -> Model:
            await asyncio.sleep(60)
            return daemon.models[name]

        daemon.show = hang  # type: ignore[method-assign]
        kept._mark(None)
        assert await kept.of("m") is before
        with pytest.raises(DaemonAwayError):
            await kept.of("other")

    asyncio.run(work())


def test_names_that_clients_make_up_are_not_remembered(retired: list[str]) -> None:
    daemon = Daemon()
    daemon.away = True
    kept = made(daemon, retired)

    async def work() -> None:
        for number in range(20):
            with pytest.raises(DaemonAwayError):
                await kept.of(f"made up {number}")

    asyncio.run(work())
    assert not kept._changed


def function(of: str = "b", **fields: Any) -> Model:
    """A function `m` of another model."""
    predictor = {"handler": "own/f.py:run", "options": {"as": "torch"}}
    return model(**{"artifact": {"model": of}, "predictor": predictor, **fields})


def test_a_function_is_its_handler_in_the_environment_of_its_form(retired: list[str]) -> None:
    found = made(Daemon(), retired).make(function())
    assert (found.call, found.how, found.options) == ("/folder/own/f.py:run", "handler", {"as": "torch"})
    assert found.environment == Environment("torch")
    bare = made(Daemon(), retired).make(function(predictor={"handler": "/f.py:run"}))
    assert (bare.call, bare.options, bare.environment) == ("/f.py:run", {"as": "weights"}, Environment("numpy"))
    stated = function(framework={"name": "torch"}, predictor={"handler": "/f.py:run"})
    assert made(Daemon(), retired).make(stated).environment == Environment("torch")


def test_a_change_of_a_model_is_one_of_its_functions(retired: list[str]) -> None:
    daemon = Daemon(function(framework={"name": "numpy"}), model(name="b"))
    kept = made(daemon, retired)

    async def work() -> None:
        watching = asyncio.ensure_future(kept.watch())
        await daemon.changes.put(ModelChange((), all=False, outside=False))
        await until(lambda: kept._watch.is_complete)
        before = await kept.of("m")
        assert kept.current("m") is before
        daemon.models["b"] = model(name="b", version="2.0.0")
        await daemon.changes.put(ModelChange(("b",), all=False, outside=False))
        await until(lambda: kept.current("m") is None)
        assert (await kept.of("m")).key != before.key
        assert retired == [before.key]
        kept.forget("b")
        assert not kept.knows("m"), "its predictors hold the same weights"
        del daemon.models["b"]
        with pytest.raises(ModelNotFoundError, match="'m' has the artifact of 'b', which is not registered"):
            await kept.of("m")
        watching.cancel()

    asyncio.run(work())


# -- versions ----------------------------------------------------------------------------------------------------------


def versions(leads_to: str = "1") -> dict[str, Model]:
    """Return what a daemon with two versions of `m` shows of each reference; a label leads to 2."""
    shown = {}
    for version in ("1", "2"):
        manifest = {"name": "m", "version": version, "artifact": {"path": f"/m{version}.safetensors"}}
        shown[f"m@{version}"] = dataclasses.replace(
            model(),
            version=version,
            manifest_json=json.dumps({**manifest, "framework": {"name": "torch"}}),
            reference=f"m@{version}",
            versions=("1", "2"),
        )
    return {**shown, "m": shown[f"m@{leads_to}"], "m@next": shown["m@2"]}


def versioned() -> Daemon:
    daemon = Daemon()
    daemon.models = versions()
    return daemon


def test_references_to_one_version_share_its_deployment_and_others_have_their_own(retired: list[str]) -> None:
    async def run() -> None:
        known = made(versioned(), retired)
        plain, first, second, label = [
            await known.of("m", version) for version in ("", "1", "2", "next")
        ]  # fmt: skip
        assert plain is first
        assert second is label
        assert plain.key != second.key
        assert (plain.opened_as, second.opened_as, plain.versions_there) == ("m@1", "m@2", ("1", "2"))
        assert await known.of("m@2") is second
        assert known.current("m", "2") is known.guess("m", "2") is second

    asyncio.run(run())


def test_a_reference_that_is_switched_has_the_predictors_of_the_version_before_end(retired: list[str]) -> None:
    async def run() -> None:
        daemon = versioned()
        known = made(daemon, retired)
        first = await known.of("m")
        daemon.models = versions("2")
        known._mark(("m",))
        assert known.current("m") is None
        second = await known.of("m")
        assert (first.version, second.version) == ("1", "2")
        assert retired == [first.key]
        daemon.models = versions("1")
        known._mark(("m",))
        assert await known.of("m") == first
        assert retired == [first.key, second.key]

    asyncio.run(run())


def test_a_version_that_is_still_named_keeps_its_predictors_after_a_switch(
    retired: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        daemon = versioned()
        known = made(daemon, retired)
        first = await known.of("m")
        assert await known.of("m", "1") is first
        daemon.models = versions("2")
        known._mark(("m",))
        assert (await known.of("m")).version == "2"
        assert retired == []
        monkeypatch.setattr(deployments, "_IN_USE_S", -1.0)
        daemon.models = versions("1")
        known._mark(("m",))
        second = known.guess("m")
        assert second is not None
        assert (await known.of("m")).version == "1"
        assert retired == [second.key]

    asyncio.run(run())


def test_all_references_to_a_version_are_forgotten_with_it(retired: list[str]) -> None:
    async def run() -> None:
        daemon = versioned()
        known = made(daemon, retired)
        first, second = await known.of("m"), await known.of("m", "next")
        known.forget("m@1")
        assert retired == [first.key]
        assert known.current("m") is None
        assert known.current("m", "next") is second
        assert known.knows("m")
        known.forget("m@next")
        assert retired == [first.key, second.key]
        assert not known.knows("m")

    asyncio.run(run())


def test_a_version_of_an_older_daemon_is_that_of_its_model(retired: list[str]) -> None:
    async def run() -> None:
        daemon = Daemon(model(framework={"name": "torch"}))
        known = made(daemon, retired)
        found = await known.of("m", "1.2.3")
        assert (found.version, found.opened_as, found.versions_there) == ("1.2.3", "", ("1.2.3",))
        for version in ("2", "stable"):
            with pytest.raises(ModelNotFoundError, match="no model"):
                await known.of("m", version)

    asyncio.run(run())
