"""Templates of `trims call` learn what the first process imported; what spoils a template is learned by none."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from fleets import register
from trims_predictors.children.launcher import Environment
from trims_predictors.cli.invocations import Call, invoke
from trims_predictors.warm.preload_learner import read_learned, write_learned

from trims.formats.conversion.interpreter_selection import InterpreterSelection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

STARTS = {"process_s", "connect_s", "open_s", "import_s", "load_s", "handler_s", "other_s"}
USES_HEAVY = """
import os
import beside
import {module}

def handler(model, event):
    return {{"inherited": {module}.PID != os.getpid(), "beside": beside.PID != os.getpid()}}
"""
NUMPY = Environment("numpy")


@pytest.fixture
def heavy(daemon: Daemon, checkpoint: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """One invocation of a handler that imports an installed module, `heavy`, and one that lies beside it."""
    register(daemon, checkpoint)
    installed, own = folder / "installed", folder / "own"
    for each in (installed, own):
        each.mkdir()
    (installed / "heavy.py").write_text("import os; PID = os.getpid()")
    spoils = "import os, threading, time; PID = os.getpid()\n"
    spoils += "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    (installed / "threaded.py").write_text(spoils)
    (installed / "exits.py").write_text(
        "import os, sys; PID = os.getpid()\nif 'uses_exits' not in sys.modules: os._exit(3)"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(installed), os.environ.get("PYTHONPATH")))))
    (own / "beside.py").write_text("import os; PID = os.getpid()")
    for module in ("heavy", "threaded", "exits"):
        (own / f"uses_{module}.py").write_text(USES_HEAVY.format(module=module))
    return Call(
        runtime_dir=str(daemon.config.runtime_dir), handler=f"{own}/uses_heavy.py:handler", model="m", form="weights",
        event=[b"{}"], repeat=0, compare=False, timeout_s=60.0, preload=(), picker=InterpreterSelection(),
    )  # fmt: skip


def inherited(invocation: Any) -> bool:
    return bool(json.loads(invocation.answer)["inherited"])


def test_later_cold_starts_find_in_their_template_what_the_first_one_imported(heavy: Call) -> None:
    found = invoke(dataclasses.replace(heavy, cold_repeat=2, repeat=1))
    assert found.learned == ("heavy",), "what lies beside the handler may be edited, and is imported by each process"
    assert not inherited(found.cold)
    assert [inherited(each) for each in found.later] == [True, True]
    assert not any(json.loads(each.answer)["beside"] for each in (found.cold, *found.later))
    assert [each.start for each in (found.cold, *found.later, *found.warm)] == ["forked"] * 3 + ["running"]
    assert all(each.stages.keys() == STARTS for each in found.later)


def test_what_was_learned_is_kept_for_the_next_command_beside_the_endpoint_s_file(daemon: Daemon, heavy: Call) -> None:
    write_learned(daemon.config.state_dir / "learned.json", {NUMPY: ["colorsys"]})
    first = invoke(heavy)
    assert (inherited(first.cold), first.learned, first.knew, first.later) == (False, ("heavy",), 1, ())
    second = invoke(heavy)
    assert (inherited(second.cold), second.learned, second.unlearned) == (True, (), 0)
    assert second.knew == 2, "what the endpoint has learned counts, too"
    assert read_learned(daemon.config.state_dir / "learned.json") == {NUMPY: ["colorsys"]}, (
        "that file is the endpoint's"
    )


def test_without_a_state_folder_nothing_is_kept_and_what_was_imported_is_counted(
    heavy: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims_predictors.cli.call_templates.os.access", lambda *_: False)
    found = invoke(heavy)
    assert (found.learned, found.unlearned, found.knew) == ((), 1, 0)
    assert invoke(dataclasses.replace(heavy, cold_repeat=1)).learned == ("heavy",)
    assert invoke(heavy).knew == 0


@pytest.mark.parametrize(("module", "why"), [("threaded", "it has 2 threads"), ("exits", "it closed its socket")])
def test_a_module_that_no_template_can_learn_leaves_the_last_template_and_is_told(
    daemon: Daemon, heavy: Call, module: str, why: str
) -> None:
    heavy = dataclasses.replace(heavy, handler=heavy.handler.replace("uses_heavy", f"uses_{module}"), cold_repeat=1)
    found = invoke(heavy)
    assert found.not_learned is not None
    assert why in found.not_learned
    assert found.learned == ()
    assert [each.start for each in found.later] == ["forked"]
    assert not inherited(found.later[0])
    assert read_learned(daemon.config.state_dir / "learned-by-calls.json") == {}


def test_what_was_learned_and_spoils_a_template_now_is_forgotten(daemon: Daemon, heavy: Call) -> None:
    kept = daemon.config.state_dir / "learned-by-calls.json"
    write_learned(kept, {NUMPY: ["threaded"], Environment("torch"): ["json"]})
    found = invoke(heavy)
    assert found.forgot is not None
    assert "it has 2 threads" in found.forgot
    assert (found.cold.start, found.unfit, found.knew) == ("forked", None, 0)
    assert read_learned(kept) == {NUMPY: ["heavy"], Environment("torch"): ["json"]}
