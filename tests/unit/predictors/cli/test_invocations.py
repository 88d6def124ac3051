"""A handler is invoked cold, warm and in a fresh process, in real processes over a real daemon; none is left."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from fleets import SUPPORT, register
from trims_predictors.cli.invocations import Call, invoke

from trims.core.errors import (
    CallerError,
    DaemonAwayError,
    DeadlineError,
    ModelNotFoundError,
    NotSupportedError,
    PredictorError,
)
from trims.formats.conversion.interpreter_selection import InterpreterSelection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
HANDLERS = f"{SUPPORT}/own_handlers.py"
STARTS = {"process_s", "connect_s", "open_s", "import_s", "load_s", "handler_s", "other_s"}


@pytest.fixture
def call(daemon: Daemon, checkpoint: Callable[..., Path]) -> Call:
    """One cold invocation of `handler` over the model `m`."""
    register(daemon, checkpoint)
    return Call(
        runtime_dir=str(daemon.config.runtime_dir), handler=f"{HANDLERS}:handler", model="m", form="weights",
        event=[b'{"x": 3}'], repeat=0, compare=False, timeout_s=60.0, preload=(), picker=InterpreterSelection(),
    )  # fmt: skip


def change(call: Call, name: str = "handler", **fields: Any) -> Call:
    return dataclasses.replace(call, handler=f"{HANDLERS}:{name}", **fields)


def test_a_cold_invocation_is_forked_and_its_stages_make_up_its_time(
    call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    found = invoke(call)
    assert json.loads(found.cold.answer)["y"] == 6.0
    assert (found.cold.start, found.cold.place, found.cold.resident) == ("forked", "cpu", False)
    assert found.cold.stages.keys() == STARTS
    assert sum(found.cold.stages.values()) == pytest.approx(found.cold.total_s)
    assert (found.warm, found.fresh, found.unfit, found.not_imported) == ((), None, None, ())
    told = capfd.readouterr()
    assert told.out == "", "standard output is for the answer"
    assert told.err == "imported\nasked\n"


def test_warm_invocations_use_the_same_process_and_a_fresh_one_is_another(call: Call) -> None:
    found = invoke(change(call, repeat=2, compare=True))
    assert found.fresh is not None
    pids = [json.loads(each.answer)["pid"] for each in (found.cold, *found.warm, found.fresh)]
    assert pids[0] == pids[1] == pids[2] != pids[3]
    assert os.getpid() not in pids
    assert [each.start for each in (*found.warm, found.fresh)] == ["running", "running", "spawned"]
    assert found.warm[0].stages.keys() == {"handler_s", "other_s"}
    assert found.fresh.stages.keys() == STARTS
    assert found.fresh.resident is True


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "fail",
            PredictorError,
            r"own_handlers.py:fail: the predictor failed in predict: ZeroDivisionError: by hand \(own",
        ),
        ("die", PredictorError, r"own_handlers.py:die: the predictor's process ended: it exited with status 3"),
        ("answer_bytes", PredictorError, r"own_handlers.py:answer_bytes: the handler returned what JSON cannot hold"),
        ("refuse", CallerError, r"^it takes none of these"),
        ("later", NotSupportedError, r"own_handlers.py:later is `async def`"),
        ("missing", NotSupportedError, r"own_handlers.py has no function 'missing'; it has .*handler, names, "),
    ],
)
def test_a_handler_that_fails_is_named(call: Call, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        invoke(change(call, name))


def test_the_traceback_of_a_handler_begins_in_its_own_file(call: Call, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PredictorError):
        invoke(change(call, "fail"))
    lines = capfd.readouterr().err.splitlines()
    begin = lines.index("Traceback (most recent call last):")
    assert lines[begin + 1].startswith(f'  File "{HANDLERS}"')
    assert lines[-1] == "ZeroDivisionError: by hand"


def test_a_handler_that_hangs_is_ended_and_what_it_printed_is_told(
    call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DeadlineError, match=r"hang did not answer within 2 s, and was ended; .* \(--timeout\)"):
        invoke(change(call, "hang", timeout_s=2.0))
    assert "hangs" in capfd.readouterr().err


def test_a_file_that_hangs_or_is_broken_while_it_is_imported_is_told(call: Call, folder: Path) -> None:
    for text, error, message in (
        ("import time; time.sleep(600)", DeadlineError, "was not ready within 2 s"),
        ("def handler(", PredictorError, "could not load the model: SyntaxError"),
        ("raise SystemExit(3)", PredictorError, "could not load the model: SystemExit: 3"),
    ):
        (folder / "broken.py").write_text(text)
        with pytest.raises(error, match=message):
            invoke(dataclasses.replace(call, handler=f"{folder}/broken.py:handler", timeout_s=2.0))


def test_a_file_that_has_the_name_of_a_module_is_refused(call: Call, folder: Path) -> None:
    (folder / "json.py").write_text("def handler(model, event): return 1")
    with pytest.raises(NotSupportedError, match="cannot be imported as 'json': a module of that name is there"):
        invoke(dataclasses.replace(call, handler=f"{folder}/json.py:handler"))


def test_a_handler_s_file_imports_what_lies_beside_it(call: Call, folder: Path) -> None:
    (folder / "beside.py").write_text("NAME = 'beside'")
    (folder / "mine.py").write_text("import beside\ndef handler(model, event): return beside.NAME")
    assert invoke(dataclasses.replace(call, handler=f"{folder}/mine.py:handler")).cold.answer == b'"beside"'


def test_modules_that_spoil_the_template_or_are_not_there_are_told(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
    found = invoke(change(call, preload=("threaded", "missing_module")))
    assert found.not_imported == ("missing_module",)
    assert found.unfit is not None
    assert "it has 2 threads" in found.unfit
    assert found.cold.start == "spawned"


def test_a_model_or_a_daemon_that_is_not_there_is_told(call: Call, folder: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'unknown' is registered"):
        invoke(change(call, model="unknown"))
    with pytest.raises(DaemonAwayError):
        invoke(change(call, runtime_dir=str(folder / "nowhere")))


def test_a_torch_model_is_a_module(daemon: Daemon, call: Call, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    from trims.control import admin
    from trims.testing.torch_modules import conv_net

    torch.save(conv_net().state_dict(), folder / "plain.pt")
    options = {"module": "trims.testing.torch_modules:conv_net"}
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": "t", "artifact": {"path": str(folder / "plain.pt"), "options": options}})
    found = invoke(change(call, "name_form", model="t", form="torch", cold_repeat=1))
    assert [json.loads(each.answer) for each in (found.cold, *found.later)] == [type(conv_net()).__name__] * 2
    assert [each.start for each in (found.cold, *found.later)] == ["forked", "forked"]
    assert "trims.testing.torch_modules" in found.learned, "its skeleton imports that in the stage load"
    with pytest.raises(NotSupportedError, match="needs a model converted from ONNX"):
        invoke(change(call, "name_form", model="t", form="onnxruntime"))
