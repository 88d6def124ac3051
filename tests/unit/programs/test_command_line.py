"""Command lines of Python programs: what is read as one, and what only its interpreter or the kernel can run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from trims.programs.command_line import NotAProgram, Program, program_of

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = os.path.abspath(sys.executable)
NAME = os.path.basename(PYTHON)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with a script, another folder and an archive, and a `bin` with two interpreters and a shim."""
    (tmp_path / "script.py").write_text("print(1)\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "archive.pyz").write_bytes(b"PK\3\4and more")
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python3.11"):
        (tmp_path / "bin" / name).symlink_to(os.path.realpath(PYTHON))
    executable(tmp_path / "bin" / "python", "#!/bin/sh\nexec python3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def found(*command: str, path: str = "") -> Program:
    return program_of(command, {"PATH": path})


@pytest.mark.parametrize(
    ("words", "flags", "arguments"),
    [
        ("script.py", "", "script.py"),
        ("script.py -u --x", "", "script.py -u --x"),
        ("-u script.py", "-u", "script.py"),
        ("-uBOO script.py", "-u -B -O -O", "script.py"),
        ("-W error script.py", "-W error", "script.py"),
        ("-Werror script.py", "-W error", "script.py"),
        ("-BWerror -W ignore script.py", "-B -W error -W ignore", "script.py"),
        ("-X utf8=1 script.py", "-X utf8=1", "script.py"),
        ("-Xdev script.py", "-X dev", "script.py"),
        ("--check-hash-based-pycs never script.py", "--check-hash-based-pycs never", "script.py"),
        ("-- script.py", "", "script.py"),
        ("-u -- script.py --", "-u", "script.py --"),
        ("-m json.tool -u", "", "-m json.tool -u"),
        ("-mjson.tool -u", "", "-m json.tool -u"),
        ("-Im json.tool", "-I", "-m json.tool"),
        ("-c print(1) -m", "", "-c print(1) -m"),
        ("-cprint(1)", "", "-c print(1)"),
        ("-sEcprint(1) x", "-s -E", "-c print(1) x"),
    ],
)
def test_flags_and_arguments_are_parted_as_cpython_does(work: Path, words: str, flags: str, arguments: str) -> None:
    program = found(PYTHON, *words.split())
    assert (program.flags, program.arguments) == (flags.split(), arguments.split())
    assert (program.interpreter, program.argv, program.comm) == (PYTHON, [PYTHON, *words.split()], NAME)


@pytest.mark.parametrize(
    "words",
    [
        "", "-u", "-- ", "-i script.py", "-ui script.py", "-V", "-h", "-x script.py", "-v script.py", "-c", "-m", "-W",
        "-X", "-uW", "--help", "--version", "--check-hash-based-pycs", "-X importtime script.py", "-Xshowrefcount x",
        "-X frozen_modules_too=1 script.py", "-X tracemalloc=3 script.py", "-u\u00e9 script.py", "nothing.py", "folder",
        "archive.pyz", "/dev/null",
    ],
)  # fmt: skip
def test_a_command_line_that_only_its_interpreter_can_run_is_no_program(work: Path, words: str) -> None:
    with pytest.raises(NotAProgram):
        found(PYTHON, *words.split())


def test_standard_input_is_a_program_unless_it_is_a_terminal(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    program = found(PYTHON, "-u", "-", "x")
    assert (program.arguments, program.identity, program.folder) == (["-", "x"], ("-", ""), str(work))
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 0)
    with pytest.raises(NotAProgram):
        found(PYTHON, "-")


@pytest.mark.parametrize(
    ("words", "identity", "own", "folder"),
    [
        ("-m json.tool x", ("-m", "json.tool"), "json.tool", ""),
        ("-c pass x", ("-c", "pass"), "", ""),
        ("script.py", ("script", "script.py"), "", ""),
        ("folder/../script.py", ("script", "script.py"), "", ""),
        ("folder/link", ("script", "script.py"), "", ""),
    ],
)
def test_a_program_is_told_apart_by_how_it_is_given_and_which_it_is(
    work: Path, words: str, identity: tuple[str, str], own: str, folder: str
) -> None:
    (work / "folder" / "link").symlink_to("../script.py")
    program = found(PYTHON, *words.split())
    kind, name = identity
    assert program.identity == (kind, str(work / name) if kind == "script" else name)
    assert (program.own, program.folder) == (own, os.path.join(work, folder).rstrip("/"))


@pytest.mark.parametrize(
    ("name", "path", "interpreter"),
    [
        ("python3", "bin", "bin/python3"),
        ("python3.11", "nothing:bin", "bin/python3.11"),
        ("python3", "folder:bin", "bin/python3"),  # where a folder has the name
        ("bin/python3", "", "bin/python3"),
        ("./bin/python3", "", "bin/python3"),
    ],
)
def test_an_interpreter_is_looked_for_in_path(work: Path, name: str, path: str, interpreter: str) -> None:
    (work / "folder" / "python3").mkdir()
    program = found(name, "script.py", path=path)
    assert (program.interpreter, program.argv[0]) == (str(work / interpreter), name)


def test_an_empty_part_of_path_is_the_working_folder(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work / "bin")
    assert found("python3", "-c", "pass", path="/nothing:").interpreter == str(work / "bin" / "python3")


@pytest.mark.parametrize("name", ["nothing", "./nothing", "script.py", "./script.py", "folder", "./folder", "/bin/sh"])
def test_a_command_that_is_no_python_is_no_program(work: Path, name: str) -> None:
    with pytest.raises(NotAProgram):
        found(name, "script.py", path=str(work))


def test_a_shim_with_the_name_of_an_interpreter_is_no_interpreter(work: Path) -> None:
    with pytest.raises(NotAProgram):
        found("bin/python", "script.py")


@pytest.mark.parametrize(
    ("first", "line", "flags"),
    [
        ("#!{bin}/python3", "{bin}/python3", ""),
        ("#! {bin}/python3  -uB  ", "{bin}/python3 -uB", "-u -B"),
        ("#!/usr/bin/env python3", "python3", ""),
        ("#!/usr/bin/env -S python3 -u -Werror", "python3 -u -Werror", "-u -W error"),
        ("#!/bin/sh\n'''exec' {bin}/python3 \"$0\" \"$@\"\n' '''", "{bin}/python3", ""),
        ("#!/bin/sh\n'''exec' \"{bin}/python3\" \"$0\" \"$@\"\n' '''", "{bin}/python3", ""),
    ],
)
def test_a_script_is_a_program_by_its_first_lines(work: Path, first: str, line: str, flags: str) -> None:
    folder = work / "bin"
    executable(folder / "tool", first.format(bin=folder) + "\nprint(1)\n")
    words = line.format(bin=folder).split()
    for given, script in (("tool", str(folder / "tool")), ("bin/tool", "bin/tool")):
        program = found(given, "-x", "y", path=str(folder))
        assert (program.interpreter, program.flags) == (str(folder / "python3"), flags.split())
        assert program.argv == [*words, script, "-x", "y"]
        assert program.arguments == [script, "-x", "y"]
        assert (program.folder, program.identity) == (str(folder), ("script", str(folder / "tool")))


def test_a_script_of_a_direct_first_line_gives_the_process_its_name(work: Path) -> None:
    executable(work / "tool", f"#!{work}/bin/python3\n")
    assert found("./tool").comm == "tool"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(1)\n",
        "#!\nprint(1)\n",
        "#!/bin/sh\n",
        "#!/bin/sh\nexec {bin}/python3 \"$0\" \"$@\"\n",
        "#!/bin/sh\n'''exec' {bin}/python3 \"$0\"\n",
        "#!/bin/sh\n'''exec' /bin/cat \"$0\" \"$@\"\n",
        "#!/bin/sh -e\n'''exec' {bin}/python3 \"$0\" \"$@\"\n",
        "#!/usr/bin/env\n",
        "#!/usr/bin/env sh\n",
        "#!/usr/bin/env -S\n",
        "#!/usr/bin/env -S A=1 python3\n",
        "#!/usr/bin/env A=1\n",
        "#!/usr/bin/env -i\n",
        "#!/usr/bin/env python3 -u\n",
        "#!{bin}/python3 -u -B\n",
        "#!{bin}/python3 -i\n",
        "#!{bin}/python\n",
        "#!{bin}/nothing\n",
        "#!{bin}/python3" + " " * 300 + "\n",
    ],
)  # fmt: skip
def test_a_script_that_no_python_runs_is_no_program(work: Path, text: str) -> None:
    executable(work / "tool", text.format(bin=work / "bin"))
    with pytest.raises(NotAProgram):
        found("./tool", path=str(work / "bin"))


def test_a_script_that_may_not_be_executed_is_no_program(work: Path) -> None:
    (work / "tool").write_text(f"#!{work}/bin/python3\n")
    with pytest.raises(NotAProgram):
        found("./tool")
