"""The making of templates: from what a first run notes, without what spoils them, and again with more."""

from __future__ import annotations

import mmap
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from programs import Environment

from trims.programs import freshness
from trims.programs.inside.observed import MEMORY_BYTES, write_name
from trims.programs.making import Making, UnfitError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.programs.freshness import Files
    from trims.programs.template_process import TemplateProcess

WAIT_S = 50.0
LATER_S = 1e6


class FirstRun:
    """Notes of a first run, and the making of templates from them."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self.environment = environment
        os.utime(environment.packages.parents[2] / "pyvenv.cfg", (0, 0))
        self.names = mmap.mmap(-1, MEMORY_BYTES)
        self.plan: dict[str, Any] = {
            "interpreter": str(environment.python), "flags": [], "own": "", "folder": str(folder),
            "environment": {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}, "working_folder": str(folder),
            "unread": [], "least_saving_s": 0.0,
        }  # fmt: skip
        self.making = Making(self.plan, self.names)
        self.made: list[TemplateProcess] = []

    def install(self, **modules: str) -> None:
        """Install modules, and wait until they are as old as a template needs: younger ones spoil it."""
        self.environment.install(**modules)
        old_ns = time.time_ns() + 2 * freshness._COARSE_NS
        wait_until(lambda: time.time_ns() > old_ns, "the clock goes on")

    def note(self, *modules: str) -> None:
        for name in modules:
            write_name(self.names, name)

    def hear(self) -> dict[str, Any] | None:
        """Return what the template that is importing reports; None once it is gone."""
        assert self.making.coming is not None
        self.making.coming.child.socket.settimeout(WAIT_S)
        message, _ = self.making.coming.receive() or (None, [])
        return message

    def take(self) -> tuple[TemplateProcess, Files] | None:
        facts = self.hear()
        assert facts is not None
        assert facts["op"] == "imported"
        made = self.making.take(facts)
        if made is not None:
            self.made.append(made[0])
        return made

    def close(self) -> None:
        self.making.close()
        for each in self.made:
            each.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FirstRun]:
    (tmp_path / "program").mkdir()
    made = FirstRun(Environment(tmp_path / "venv"), tmp_path / "program")
    made.install()
    yield made
    made.close()


def test_a_template_has_what_the_first_run_noted_and_its_files_are_watched(run: FirstRun) -> None:
    run.install(fine="VALUE = 1")
    run.note("fine")
    run.making.begin()
    made = run.take()
    assert made is not None
    template, files = made
    assert run.making.coming is None
    assert template.facts is not None
    assert "fine" in template.facts["tops"]
    assert files.changed() is None
    run.environment.install(fine="VALUE = 200")
    assert files.changed() == str(run.environment.packages / "fine.py")


def test_a_module_that_ends_the_template_is_left_out(run: FirstRun) -> None:
    run.install(fine="", deadly="import os; os._exit(3)")
    run.note("fine", "deadly")
    run.making.begin()
    assert run.hear() is None
    run.making.leave_out_last()
    made = run.take()
    assert made is not None
    assert list(run.making.left_out) == ["deadly"]
    assert made[0].facts is not None
    assert set(made[0].facts["tops"]) >= {"fine"}
    assert "deadly" not in made[0].facts["tops"]


def test_what_is_left_out_already_is_not_tried_again(run: FirstRun) -> None:
    run.install(loud="print('text')")
    run.note("loud")
    run.making.begin()
    spoilt = run.hear()
    assert spoilt is not None
    assert (spoilt["op"], set(spoilt["modules"])) == ("spoilt", {"loud"})
    run.making.leave_out(spoilt["modules"], spoilt["why"])
    with pytest.raises(UnfitError):
        run.making.leave_out(["loud.below"], "it spoils once more")
    assert run.making.coming is None


def test_an_import_that_takes_too_long_is_left_out(run: FirstRun) -> None:
    run.install(fine="", slow="import time; time.sleep(600)")
    run.note("fine", "slow")
    run.making.begin()
    coming = run.making.coming
    assert coming is not None
    wait_until(lambda: coming.last_module() == "slow", "the import of `slow`")
    run.making.leave_out_slow(time.monotonic())
    assert run.making.coming is coming
    run.making.leave_out_slow(time.monotonic() + LATER_S)
    assert run.take() is not None
    assert list(run.making.left_out) == ["slow"]


def test_a_first_run_that_still_imports_is_waited_for(run: FirstRun) -> None:
    now_s = time.monotonic()
    run.making.begin_when_quiet(now_s + 10)
    assert run.making.coming is None, "it has imported nothing"
    run.note("json")
    run.making.begin_when_quiet(now_s + 20)
    run.note("csv")
    run.making.begin_when_quiet(now_s + 30)
    run.making.begin_when_quiet(now_s + 31)
    assert run.making.coming is None
    run.making.begin_when_quiet(now_s + 40)
    assert run.take() is not None


def test_a_template_is_made_again_for_new_modules_only(run: FirstRun) -> None:
    run.install(fine="", other="", broken="raise ValueError('no')")
    run.note("fine", "broken")
    run.making.begin()
    assert run.take() is not None
    assert list(run.making.failed) == ["broken"]
    run.making.learn(["fine", "broken", "@fine\tplace", "!NAME\tfile"])
    assert run.making.coming is None
    run.note("other")
    run.making.read_first_run()
    again = run.take()
    assert again is not None
    assert again[0].facts is not None
    assert {"fine", "other"} <= set(again[0].facts["tops"])


def test_files_that_are_written_while_they_are_read_make_another_try(run: FirstRun, tmp_path: Path) -> None:
    once = tmp_path / "once"
    run.install(young=f"import os\nif not os.path.exists({str(once)!r}):\n    os.utime(__file__)")
    run.note("young")
    run.making.begin()
    first = run.making.coming
    facts = run.hear()
    assert facts is not None
    once.touch()
    assert run.making.take(facts) is None
    assert run.making.coming not in (None, first)
    assert run.take() is not None


def test_an_interpreter_that_cannot_be_started_makes_no_template(run: FirstRun) -> None:
    run.plan["interpreter"] = "/nowhere/python"
    with pytest.raises(UnfitError, match="/nowhere/python"):
        run.making.begin()
