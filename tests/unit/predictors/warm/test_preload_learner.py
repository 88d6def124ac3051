"""Templates learn what predictors had to import; what spoils them is learned by none and costs no request."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from nursing import NUMPY, nurse, until
from trims_predictors.children import template_process
from trims_predictors.children.launcher import Environment
from trims_predictors.warm.preload_learner import PreloadLearner, Preloads, read_learned, write_learned

from trims.testing.descriptors import few_descriptors

if TYPE_CHECKING:
    from pathlib import Path

    from trims_predictors.warm.warm_pool import WarmPool

TORCH = Environment("torch")
OTHER = Environment("torch", sys.executable, "acme")


def test_what_a_predictor_imported_is_known_to_the_next_template(modules: Path) -> None:
    async def work(warm_pool: WarmPool) -> None:
        predictor = await warm_pool.take(NUMPY)
        before = warm_pool._inventory.templates[NUMPY]
        warm_pool.teach(NUMPY, ["harmless", "no_such_module", "__main__"])
        await until(lambda: warm_pool._learner.learned.get(NUMPY))
        assert warm_pool._learner.learned[NUMPY] == ["harmless"]
        assert "harmless" in warm_pool._inventory.templates[NUMPY].modules
        assert warm_pool._inventory.templates[NUMPY] is not before
        warm_pool.teach(NUMPY, ["harmless", "no_such_module"])
        assert warm_pool._learner._given[NUMPY] == 1, "nothing new is no lesson"
        assert before.lost is None, "it learns how its predictor ends"
        assert await predictor.end() == "it exited with status 0"
        await until(lambda: before.lost)

    nurse(modules, work)


def test_a_lesson_whose_template_is_killed_from_outside_is_learned_the_next_time(modules: Path) -> None:
    (modules / "slow.py").write_text("import time; time.sleep(0.5)")

    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        warm_pool.teach(NUMPY, ["slow"])
        await until(lambda: len(warm_pool._inventory.made) == 2)
        os.kill(warm_pool._inventory.made[1][1].pid, signal.SIGKILL)
        await until(lambda: not warm_pool._learner.running())
        warm_pool.teach(NUMPY, ["slow"])
        await until(lambda: warm_pool._learner.learned.get(NUMPY))
        assert warm_pool._learner.learned[NUMPY] == ["slow"]

    nurse(modules, work)


@pytest.mark.parametrize("module", ["spoils", "hangs", "exits"])
def test_a_lesson_that_spoils_a_template_costs_the_one_that_serves_nothing(
    modules: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(template_process, "_IMPORT_S", 10.0)

    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        before = warm_pool._inventory.templates[NUMPY]
        monkeypatch.setattr(template_process, "_IMPORT_S", 1.0 if module == "hangs" else 30.0)
        warm_pool.teach(NUMPY, [module])
        predictor = await warm_pool.take(NUMPY)
        assert predictor.how == "forked", "meanwhile"
        await predictor.end()
        if module != "spoils":  # it may not be the module's fault that its template is gone
            await until(lambda: not warm_pool._learner.running())
            assert not warm_pool.preloads.banned.get(NUMPY)
            warm_pool.teach(NUMPY, [module])
        await until(lambda: warm_pool.preloads.banned.get(NUMPY))
        assert warm_pool._inventory.templates[NUMPY] is before
        learner = warm_pool._learner._given[NUMPY]
        warm_pool.teach(NUMPY, [module])
        assert warm_pool._learner._given[NUMPY] == learner

    nurse(modules, work)
    assert f"cannot learn this; its predictors will import it themselves: {module}" in caplog.text


def test_a_module_that_a_manifest_names_in_vain_is_told_once_for_each_model(
    modules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (modules / "broken.py").write_text("1 / 0")

    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        for model in ("one", "two", "one"):
            warm_pool.preloads.want(NUMPY, model, ["no_such_module", "broken", "harmless"])
            warm_pool.teach(NUMPY, ["no_such_module", "broken", "harmless"])
            await until(lambda: warm_pool._learner.learned.get(NUMPY))

    nurse(modules, work)
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 4
    for model in ("one", "two"):
        mine = "".join(each for each in told if f"`preload` of {model!r} names " in each)
        assert "no_such_module, which the template for numpy cannot import: ModuleNotFoundError: No module" in mine
        assert "broken, which the template for numpy cannot import: ZeroDivisionError: division by zero" in mine


def test_more_modules_than_a_message_holds_are_learned(modules: Path) -> None:
    for number in range(700):
        (modules / f"{'long' * 40}_{number}.py").touch()
    names = [f"{'long' * 40}_{number}" for number in range(700)]

    async def work(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        warm_pool.teach(NUMPY, names)
        await until(lambda: warm_pool._learner.learned.get(NUMPY))
        assert warm_pool._learner.learned[NUMPY] == names
        warm_pool._inventory.templates[NUMPY].close()
        predictor = await warm_pool.take(NUMPY)
        assert predictor.how == "forked"
        await predictor.end()

    nurse(modules, work)


def test_a_lesson_without_descriptors_is_a_warning_and_no_bug(modules: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(warm_pool: WarmPool) -> None:
        predictor = await warm_pool.take(NUMPY)
        with few_descriptors(left=0):
            warm_pool.teach(NUMPY, ["harmless"])
            await until(lambda: not warm_pool._learner.running())
            await until(lambda: not len(warm_pool._background) or "ulimit" in caplog.text)
        await predictor.end()

    nurse(modules, work)
    assert "a template cannot be started: no template for numpy can be started: no descriptor left" in caplog.text
    assert "a bug in trims" not in caplog.text


def test_the_first_template_of_the_next_endpoint_begins_with_what_was_learned(modules: Path) -> None:
    async def learn(warm_pool: WarmPool) -> None:
        await (await warm_pool.take(NUMPY)).end()
        warm_pool.teach(NUMPY, ["harmless"])
        await until(lambda: read_learned(modules / "learned.json").get(NUMPY))

    async def begin(warm_pool: WarmPool) -> None:
        predictor = await warm_pool.take(NUMPY)
        assert (predictor.how, "harmless" in warm_pool._inventory.templates[NUMPY].modules) == ("forked", True)
        await predictor.end()

    nurse(modules, learn, learned=modules / "learned.json")
    nurse(modules, begin, learned=modules / "learned.json")


def test_what_was_learned_and_keeps_a_template_from_forking_now_is_forgotten(modules: Path) -> None:
    thread = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    (modules / "starts.py").write_text(f"import threading, time\n{thread}")
    write_learned(modules / "learned.json", {NUMPY: ["harmless", "starts"]})

    async def work(warm_pool: WarmPool) -> None:
        hows = []
        for _ in range(2):
            predictor = await warm_pool.take(NUMPY)
            hows.append(predictor.how)
            await predictor.end()
        assert hows == ["spawned", "forked"]
        await until(lambda: not read_learned(modules / "learned.json").get(NUMPY))

    nurse(modules, work, learned=modules / "learned.json")


def test_a_template_that_cannot_be_forked_is_tried_again_after_ten_minutes() -> None:
    now_s = [100.0]
    nothing: Any = None
    learner = PreloadLearner(nothing, nothing, nothing, nothing, clock=lambda: now_s[0])
    unfit: Any = SimpleNamespace(unfit="it has 2 threads")
    learner.doubt(NUMPY, unfit)
    assert (learner.may_fork(NUMPY), learner.may_fork(TORCH)) == (False, True)
    now_s[0] += 599
    assert not learner.may_fork(NUMPY)
    now_s[0] += 1
    assert learner.may_fork(NUMPY)


# -- modules that manifests ask for in vain ----------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Models and modules of the warnings since the last call."""
    found = [" ".join(map(str, each.args[:2])) for each in caplog.records if isinstance(each.args, tuple)]
    caplog.clear()
    return found


def test_a_module_that_was_asked_for_before_or_after_its_ban_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    preloads = Preloads()
    preloads.want(NUMPY, "before", ["m", "fine"])
    assert told(caplog) == []
    preloads.ban(NUMPY, {"m": "ModuleNotFoundError: No module named 'm'", "not_asked_for": "because"})
    assert "No module named 'm'" in caplog.text
    assert told(caplog) == ["before m"]
    preloads.want(NUMPY, "after", ["m", "fine"])
    assert told(caplog) == ["after m"]
    preloads.want(NUMPY, "before", ["m"])
    preloads.ban(NUMPY, {"m": "again"})
    assert told(caplog) == []


def test_a_ban_holds_for_its_environment_only(caplog: pytest.LogCaptureFixture) -> None:
    preloads = Preloads()
    preloads.ban(NUMPY, {"m": "because"})
    preloads.want(TORCH, "model", ["m"])
    assert told(caplog) == []
    assert preloads.banned == {NUMPY: {"m": "because"}}


# -- the file that keeps what was learned ------------------------------------------------------------------------------


def test_what_was_learned_is_read_as_it_was_written(tmp_path: Path) -> None:
    learned = {TORCH: ["transformers.models.bert", "regex"], OTHER: ["scipy"]}
    write_learned(tmp_path / "learned.json", learned)
    assert read_learned(tmp_path / "learned.json") == learned
    write_learned(tmp_path / "learned.json", {TORCH: []})
    assert read_learned(tmp_path / "learned.json") == {TORCH: []}
    assert [path.name for path in tmp_path.iterdir()] == ["learned.json"]


def test_an_environment_that_was_removed_is_left_out(tmp_path: Path) -> None:
    write_learned(tmp_path / "learned.json", {TORCH: ["a"], Environment("mxnet", str(tmp_path / "python")): ["b"]})
    assert read_learned(tmp_path / "learned.json") == {TORCH: ["a"]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"version": 2, "environments": []}',
        '{"version": 1, "environments": [{"framework": "torch"}]}',
        '{"version": 1, "environments": [{"framework": 1, "python": "", "tenant": "", "modules": []}]}',
        '{"version": 1, "environments": [{"framework": "torch", "python": "", "tenant": "", "modules": [[]]}]}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass"),
    ],
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "learned.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read_learned(tmp_path / "learned.json") == {}


def test_names_that_no_module_has_are_left_out(tmp_path: Path) -> None:
    row = {"framework": "torch", "python": "", "tenant": "", "modules": ["a.b", "..", "import os", "", "x" * 9]}
    (tmp_path / "learned.json").write_text(json.dumps({"version": 1, "environments": [row]}))
    assert read_learned(tmp_path / "learned.json") == {TORCH: ["a.b", "x" * 9]}


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_learned(tmp_path / "gone" / "learned.json", {TORCH: ["a"]})
    assert "is not kept" in caplog.text
