"""Templates of programs: made from what a first run notes, without what spoils them; what they report."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from programs import Environment

from trims.process.messages import pair, send
from trims.programs import freshness
from trims.programs.inside.observed import MEMORY_BYTES, write_name
from trims.programs.inside.protocol import GO, READY
from trims.programs.making import Making, TemplateProcess, UnfitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from trims.programs.freshness import Files

    Start: TypeAlias = Callable[..., TemplateProcess]
    MakeFork: TypeAlias = Callable[..., "Fork"]

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
            "unread": [], "least_saving_s": 0.0, "loaders": {},
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
    unfit = run.hear()
    assert unfit is not None
    assert (unfit["op"], set(unfit["modules"])) == ("unfit", {"loud"})
    run.making.leave_out(unfit["modules"], unfit["why"])
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


# -- one template ------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


@pytest.fixture
def start(environment: Environment, tmp_path: Path) -> Iterator[Start]:
    """Start a template of that environment; the folder `program` is the program's."""
    made: list[TemplateProcess] = []
    (tmp_path / "program").mkdir()

    def begin(*modules: str, flags: tuple[str, ...] = (), **how: Any) -> TemplateProcess:
        plan = {
            "interpreter": str(environment.python), "flags": flags, "own": "", "unread": (), "loaders": {},
            "folder": str(tmp_path / "program"), "working_folder": str(tmp_path), **how,
            "environment": {"PATH": os.environ["PATH"], **how.get("environment", {})},
        }  # fmt: skip
        made.append(TemplateProcess(plan, modules, banned=()))
        return made[-1]

    yield begin
    for each in made:
        each.close()


def heard(template: TemplateProcess) -> dict[str, Any] | None:
    """Return its next message, which brings no descriptors; None once it is gone."""
    message, fds = received(template) or (None, [])
    assert fds == []
    return message


def received(template: TemplateProcess) -> tuple[dict[str, Any], list[int]] | None:
    template.child.socket.settimeout(WAIT_S)
    return template.receive()


def facts_of(template: TemplateProcess) -> dict[str, Any]:
    facts = heard(template)
    assert facts is not None
    assert facts["op"] == "imported", facts
    return facts


def test_a_template_reports_what_it_has_imported(start: Start, environment: Environment) -> None:
    environment.install(library="import json\n", optional="try:\n import accelerator\nexcept ImportError:\n pass\n")
    facts = facts_of(start("library", "json", "optional", "spread", "sys"))
    packages = str(environment.packages)
    assert {f"{packages}/library.py", f"{packages}/optional.py"} <= set(facts["files"])
    assert facts["tops"]["library"] == f"{packages}/library.py"
    assert facts["tops"]["json"].endswith("/json/__init__.py")
    assert "sys" not in facts["tops"]  # none of a program's own comes before it
    assert "accelerator" in facts["missing"]
    assert facts["count"] >= len(facts["tops"])
    assert (facts["failed"], facts["own"], facts["reads"]) == ({}, ["spread"], [])
    assert packages in facts["sites"]
    assert facts["prefix"] == str(environment.python.parent.parent)
    assert not any(name.partition(".")[0] == "trims" for name in facts["tops"])


def test_a_package_that_is_spread_over_folders_has_no_file(start: Start, environment: Environment) -> None:
    (environment.packages / "spread").mkdir()
    environment.install(**{"spread/inner": ""})
    facts = facts_of(start("spread", "spread.inner"))
    assert facts["tops"]["spread"] == ""
    assert f"{environment.packages}/spread/inner.py" in facts["files"]


def test_modules_of_the_programs_own_are_left_to_it(start: Start, environment: Environment, tmp_path: Path) -> None:
    environment.install(library="", shadowed="raise ValueError", program="raise ValueError")
    for name in ("mine", "shadowed"):
        (tmp_path / "program" / f"{name}.py").write_text("raise ValueError")
    paths = {"PYTHONPATH": str(tmp_path / "paths")}
    (tmp_path / "paths").mkdir()
    (tmp_path / "paths" / "beside.py").write_text("raise ValueError")
    facts = facts_of(
        start("mine", "shadowed", "beside", "nothing", "library", "program", own="program", environment=paths)
    )
    assert facts["own"] == ["beside", "mine", "nothing", "shadowed"]
    assert "library" in facts["tops"]
    assert not {"program", "mine", "shadowed", "beside"} & facts["tops"].keys()
    assert str(tmp_path / "paths") in facts["paths"]
    assert str(environment.packages) not in facts["paths"]
    assert facts["failed"] == {}


def test_a_module_that_cannot_be_imported_has_failed_and_others_go_on(start: Start, environment: Environment) -> None:
    environment.install(
        fails="raise ValueError('not here')", ends="raise SystemExit", lacks="import accelerator", library=""
    )
    facts = facts_of(start("fails", "ends", "lacks", "library", "library.nothing"))
    assert {name: why.partition(":")[0] for name, why in facts["failed"].items()} == {
        "fails": "ValueError",
        "ends": "SystemExit",
        "lacks": "ModuleNotFoundError",
    }
    assert "library" in facts["tops"]


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("import os; os.environ['TERM']", ["TERM"]),
        ("import os; os.environ.get('TERM'); os.getenv('LINES')", ["LINES", "TERM"]),
        ("import os; os.environ.get('ABSENT'); os.environ['OTHER']", ["ABSENT"]),
        ("import os; os.getcwd()", [""]),
        ("import os; os.getcwdb(); 'TERM' in os.environ", ["", "TERM"]),
        ("from pathlib import Path; Path('x').absolute()", [""]),
        ("import os; os.environ['LINES'] = '1'; len(os.environ)", []),
    ],
)
def test_what_imports_read_that_none_should_is_reported(
    start: Start, environment: Environment, code: str, reads: list[str]
) -> None:
    environment.install(library=code)
    variables = {"TERM": "x", "LINES": "5", "OTHER": "1"}
    template = start("library", unread=["TERM", "LINES", "ABSENT"], environment=variables)
    assert facts_of(template)["reads"] == reads


#: Modules that do what a fork cannot have.
SPOILERS = {
    "a thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "a connection": "import socket\npair = socket.socketpair()\n",
    "a file": "import os\nfile = open(os.devnull)\n",
    "output": "print('hello', flush=True)\n",
    "an error output": "import sys\nsys.stderr.write('hello')\n",
    "a trace": "import sys\nsys.settrace(lambda *what: None)\n",
    "a profile": "import sys\nsys.setprofile(lambda *what: None)\n",
}


@pytest.mark.parametrize("what", SPOILERS)
def test_a_template_that_cannot_be_forked_names_its_culprits(start: Start, environment: Environment, what: str) -> None:
    environment.install(harmless="", spoiler=SPOILERS[what], importer="import spoiler\nimport json\n")
    template = start("harmless", "importer", "random")
    message = heard(template)
    assert message is not None
    assert message["op"] == "unfit"
    assert {"spoiler", "importer"} <= set(message["modules"])
    assert not {"harmless", "random"} & set(message["modules"])
    assert isinstance(message["why"], str)


def test_a_file_that_is_open_only_during_an_import_spoils_nothing(start: Start, environment: Environment) -> None:
    environment.install(reads="import os\nwith open(os.devnull):\n    import harmless\n", harmless="")
    assert "reads" in facts_of(start("reads", "harmless"))["tops"]


@pytest.mark.parametrize("flags", [(), ("-S", "-E"), ("-X", "utf8"), ("-W", "error"), ("-O", "-B", "-s")])
def test_a_template_has_the_flags_of_the_program(start: Start, flags: tuple[str, ...]) -> None:
    template = start("json", flags=flags)
    facts_of(template)
    command = Path(f"/proc/{template.child.pid}/cmdline").read_text().split("\0")
    assert tuple(command[1 : 1 + len(flags)]) == flags


def test_a_template_that_dies_names_the_module_and_its_last_words(start: Start, environment: Environment) -> None:
    environment.install(
        harmless="", kills="import os, sys\nsys.stderr.write('x' * 500 + 'last words\\n')\nos.abort()\n"
    )
    template = start("harmless", "kills", "json")
    assert heard(template) is None
    assert template.last_module() == "kills"
    assert template.last_words() == "x" * (399 - len("last words")) + "last words"
    assert template.facts is None


def test_a_python_that_is_too_old_or_none_ends_before_its_first_module(tmp_path: Path) -> None:
    code = "import os, sys\nprint('no templates', flush=True)\nos.read(int(sys.argv[4]), 1)\n"
    (tmp_path / "python3").write_text(f"#!{sys.executable}\n{code}")
    (tmp_path / "python3").chmod(0o755)
    plan = {"own": "", "folder": "", "working_folder": "/nothing", "unread": (), "flags": (), "environment": {},
            "loaders": {}}  # fmt: skip
    template = TemplateProcess({"interpreter": str(tmp_path / "python3"), **plan}, ["json"], banned=())
    try:
        assert heard(template) is None
        assert (template.last_module(), template.last_words()) == ("", "no templates")
    finally:
        template.close()
    with pytest.raises(OSError):
        TemplateProcess({"interpreter": str(tmp_path / "nothing"), **plan}, ["json"], banned=())


def test_a_template_leads_a_group_of_its_own_takes_memory_and_waits(start: Start, tmp_path: Path) -> None:
    template = start("json")
    facts_of(template)
    pid = template.child.pid
    assert (os.getpgid(pid), os.getsid(pid)) == (pid, os.getsid(0))
    assert os.getpgid(pid) != os.getpgid(0)
    assert template.memory_bytes() > 1 << 20
    assert template.last_module() == "json"
    assert template.last_words() == ""
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert template.since_ns > 0


def test_a_template_that_is_closed_is_gone(start: Start) -> None:
    template = start("json")
    facts_of(template)
    template.close()
    template.close()
    assert template.child.status == -signal.SIGKILL
    with pytest.raises(OSError):
        template.memory_bytes()


class Fork:
    """Program that a template has forked, as `trims exec` and the template's host have it."""

    def __init__(self, template: TemplateProcess, code: str, folder: Path, **plan: Any) -> None:
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(WAIT_S)
        given, self.input = os.pipe()
        self.output, taken = os.pipe()
        words = ["-c", code, "word"]
        plan = {
            "argv": ["python", *words], "arguments": words, "comm": "program", "folder": str(folder), "numbers": [0, 1],
            "environment": {"A": "1"}, "blocked": [], "ignored": [], "umask": 0o027, **plan,
        }  # fmt: skip
        where = os.open(folder, os.O_PATH)
        try:
            plans, forks = pair()
            with plans, forks:
                send(template.child.socket, {"op": "fork", "leads": True}, [forks.fileno()])
                send(plans, plan, [theirs.fileno(), where, given, taken], long=True)
        finally:
            theirs.close()
            for fd in (where, given, taken):
                os.close(fd)
        found = received(template)
        assert found is not None
        self.answer, (self.pidfd,) = found

    def begin(self) -> bytes:
        """Have the program begin. Return its answer."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and left why
            self.ours.send(GO)
        return self.ours.recv(1 << 12)

    def end_input(self) -> None:
        """Let the program's standard input end."""
        os.close(self.input)
        self.input = os.open(os.devnull, os.O_RDONLY)

    def has_ended(self) -> bool:
        """Wait for the end of the program."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(WAIT_S * 1000))

    def read(self) -> str:
        """Return all that the program writes, once it has ended."""
        with open(self.output, closefd=False) as file:
            return file.read()

    def close(self) -> None:
        """Kill the program if it is still there."""
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.ours.close()
        for fd in (self.input, self.output, self.pidfd):
            os.close(fd)
        with contextlib.suppress(ChildProcessError):  # where this process adopts what others leave
            os.waitpid(self.answer["pid"], 0)


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[MakeFork]:
    made: list[Fork] = []

    def make(template: TemplateProcess, code: str, **plan: Any) -> Fork:
        made.append(Fork(template, code, tmp_path / "program", **plan))
        return made[-1]

    yield make
    for each in made:
        each.close()


SHOWS = "import json, os, sys; print(sys.argv, os.environ, os.umask(0), os.getcwd(), os.getpgid(0) == os.getpid())\n"


def test_a_program_that_is_forked_has_what_its_caller_gives(start: Start, fork: MakeFork, tmp_path: Path) -> None:
    template = start("json", environment={"LC_ALL": "C.UTF-8"})
    facts_of(template)
    program = fork(template, SHOWS + "import queue; print(sys.stdin.read()); sys.exit(5)")
    assert program.answer["op"] == "forked"
    assert program.begin() == READY
    os.write(program.input, b"words")
    program.end_input()
    assert program.has_ended()
    shown = f"['-c', 'word'] environ({{'A': '1'}}) {0o027} {tmp_path}/program True\nwords\n"
    assert program.read() == shown
    ended = heard(template)
    assert ended is not None
    modules = ended.pop("modules")
    assert ended == {"op": "ended", "pid": program.answer["pid"], "status": 5}
    assert "queue" in modules
    assert "json" not in modules


def test_a_program_whose_caller_never_begins_does_nothing(start: Start, fork: MakeFork) -> None:
    template = start("json")
    facts_of(template)
    program = fork(template, SHOWS)
    program.ours.close()
    assert program.has_ended()
    assert program.read() == ""


@pytest.mark.parametrize("plan", [None, {}, {"numbers": "none"}], ids=["none", "without descriptors", "of no sense"])
def test_a_fork_whose_plan_cannot_be_read_does_nothing(
    start: Start, capfd: pytest.CaptureFixture[str], plan: dict[str, Any] | None
) -> None:
    template = start("json")
    facts_of(template)
    plans, forks = pair()
    with plans, forks:
        send(template.child.socket, {"op": "fork", "leads": True}, [forks.fileno()])
        if plan is not None:
            given = [forks.fileno(), forks.fileno()] if plan else []
            send(plans, plan, given)
    forked = received(template)
    assert forked is not None
    os.close(forked[1][0])
    ended = heard(template)
    assert ended is not None
    assert (ended["op"], ended["pid"], ended["status"]) == ("ended", forked[0]["pid"], 0 if plan is None else 70)
    assert capfd.readouterr() == ("", "")


def test_a_template_that_ends_before_a_plan_comes_is_seen_to_end(start: Start) -> None:
    template = start("json")
    facts_of(template)
    plans, forks = pair()
    with plans:
        with forks:
            send(template.child.socket, {"op": "fork", "leads": True}, [forks.fileno()])
        forked = received(template)
        assert forked is not None
        os.close(forked[1][0])
        os.kill(template.child.pid, signal.SIGKILL)
        assert heard(template) is None


def test_a_fork_that_cannot_have_its_surroundings_says_why_and_ends(start: Start, fork: MakeFork) -> None:
    template = start("json")
    facts_of(template)
    program = fork(template, SHOWS, affinity=[100_000])
    assert program.begin() not in (READY, b"")
    assert program.has_ended()
    assert program.read() == ""


def test_a_program_stops_and_goes_on_and_its_template_reports_it(start: Start, fork: MakeFork) -> None:
    template = start("json")
    facts_of(template)
    program = fork(template, "import sys; sys.stdin.readline()")
    assert program.begin() == READY
    pid = program.answer["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert heard(template) == {"op": "stopped", "pid": pid, "signal": signal.SIGSTOP}
    os.kill(pid, signal.SIGKILL)
    ended = heard(template)
    assert ended is not None
    assert (ended["op"], ended["pid"], ended["status"]) == ("ended", pid, -signal.SIGKILL)


def test_what_is_no_message_ends_a_template(start: Start) -> None:
    template = start("json")
    facts_of(template)
    template.child.socket.send(b"no message")
    assert heard(template) is None
    assert template.child.reap() == 70
    assert "BadMessageError" in template.last_words()
