"""`trims exec`: what its usual form is, how a command that cannot be started ends, and what it does beside starting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from programs import AS_EVER, TRIMS

from trims.cli import exec_command
from trims.cli.exec_command import launch
from trims.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from trims.daemon.main import Daemon


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, Any]]]:
    """Starts that would have been: command and options. Each ends the process, with status 7."""
    found: list[tuple[list[str], dict[str, Any]]] = []

    class Recorded:
        def __init__(self, command: list[str], **options: Any) -> None:
            found.append((command, options))

        def run(self) -> NoReturn:
            raise SystemExit(7)

    monkeypatch.setattr("trims.programs.launch.Launch", Recorded)
    return found


@pytest.mark.parametrize(
    "words",
    [
        "", "--", "--why", "--why --", "--help", "--json x", "--forget", "--forget x", "--kernel k", "--why --kernel k",
        "-", "-x", "--keep-alive", "--ignore", "--runtime-dir", "--keep-alive 5", "--keep-alive x -- y",
        "--keep-alive -1 -- y", "--keep-alive nan -- y", "--keep-alive inf -- y", "--keep-alive=5 -- y", "--wh -- y",
    ],
)  # fmt: skip
def test_words_that_are_not_of_the_usual_form_are_left_to_the_parser(
    words: str, started: list[tuple[list[str], dict[str, Any]]]
) -> None:
    assert launch(words.split()) is None
    assert started == []


@pytest.mark.parametrize(
    ("words", "command", "options"),
    [
        ("python app.py --why", "python app.py --why", {}),
        ("-- python app.py", "python app.py", {}),
        ("-- -x", "-x", {}),
        ("-- -- y", "-- y", {}),
        ("--why x -- y", "x -- y", {"why": True}),
        ("--loaders x", "x", {"loaders": True}),
        ("--loaders --no-loaders x", "x", {"loaders": False}),
        ("--ignore A --ignore B -- x", "x", {"ignored": ["A", "B"]}),
        ("--keep-alive 0 --runtime-dir /r -- x", "x", {"keep_alive_s": 0.0, "runtime_dir": "/r"}),
        ("--ignore -- -- x", "x", {"ignored": ["--"]}),
    ],
)
def test_the_usual_form_starts_what_is_behind_the_options(
    started: list[tuple[list[str], dict[str, Any]]], words: str, command: str, options: dict[str, Any]
) -> None:
    with pytest.raises(SystemExit):
        launch(words.split())
    assert started == [(command.split(), {"ignored": [], **options})]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--keep-alive=5 -- python -c pass", {"keep_alive_s": 5.0}),
        ("--ignore=A --ignore B --why -- python -c pass", {"ignored": ["A", "B"], "why": True}),
        ("--runtime-dir=/r -- python -c pass", {"runtime_dir": "/r"}),
        ("--no-loaders --ignore=A -- python -c pass", {"loaders": False, "ignored": ["A"]}),
    ],
)
def test_another_form_starts_the_same(
    started: list[tuple[list[str], dict[str, Any]]], words: str, options: dict[str, Any]
) -> None:
    with pytest.raises(SystemExit):
        main(["exec", *words.split()])
    usual = {
        "runtime_dir": "",
        "why": False,
        "keep_alive_s": 600.0,
        "least_saving_s": 0.01,
        "ignored": [],
        "loaders": None,
    }
    assert started == [(["python", "-c", "pass"], {**usual, **options})]


@pytest.mark.parametrize("words", ["--keep-alive=-1 -- x", "--keep-alive=nan -- x", "--keep-alive", "--nothing -- x"])
def test_an_option_that_is_wrong_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["exec", *words.split()])
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def run(folder: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run `trims exec` where no daemon is."""
    command = [TRIMS, "exec", "--runtime-dir", str(folder / "none"), *words]
    how = {"capture_output": True, "text": True, "cwd": folder, "stdin": subprocess.DEVNULL, "timeout": 50, **how}
    return subprocess.run(command, check=False, **how)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("no-such-command", 127),
        ("./nothing", 127),
        ("./file", 126),
        ("./folder", 126),
        ("./file/x", 126),
    ],
)
def test_a_command_that_cannot_be_started_ends_as_in_a_shell(folder: Path, command: str, status: int) -> None:
    (folder / "file").write_text("#!/bin/sh\n")
    (folder / "folder").mkdir()
    ended = run(folder, "--", command)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert len(ended.stderr.splitlines()) == 1
    assert command in ended.stderr


@pytest.mark.parametrize(
    "words", [["sh", "-c", "echo $0 $A; exit 7", "x y"], [sys.executable, "-c", "print('x y', 1); raise SystemExit(7)"]]
)
def test_without_a_daemon_any_command_is_executed(folder: Path, words: list[str]) -> None:
    ended = run(folder, "--why", "--ignore", "A", "--keep-alive", "5", "--", *words, env={**os.environ, "A": "1"})
    assert (ended.returncode, ended.stdout) == (7, "x y 1\n")
    (line,) = ended.stderr.splitlines()
    assert AS_EVER in line


# -- Jupyter ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jupyter's folder."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["/opt/trims"])
    return tmp_path / "data"


def test_a_kernel_starts_its_python_by_trims_exec(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # its own file is written once more
        assert main(["exec", "--json", "--kernel", "a.b-c_1", "--", sys.executable]) == 0
        file = data / "kernels" / "a.b-c_1" / "kernel.json"
        assert json.loads(capsys.readouterr().out)["file"] == str(file)
    spec = json.loads(file.read_text())
    argv = spec["argv"]
    assert argv[:2] == ["/opt/trims", "exec"]
    assert argv[argv.index("--") + 1 :] == [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert spec["language"] == "python"
    assert spec["metadata"] == {"debugger": True}
    options = argv[2 : argv.index("--")]
    assert options[::2] == ["--ignore"] * (len(options) // 2)
    assert "JPY_PARENT_PID" in options


def test_a_kernel_of_no_python_is_that_of_python3(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(data.parent))
    (data.parent / "python3").symlink_to(sys.executable)
    assert main(["exec", "--kernel", "k"]) == 0
    argv = json.loads((data / "kernels" / "k" / "kernel.json").read_text())["argv"]
    assert argv[argv.index("--") + 1] == str(data.parent / "python3")


def test_kernels_are_where_the_user_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTER_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert main(["exec", "--kernel", "k", "--", sys.executable]) == 0
    assert (tmp_path / "xdg" / "jupyter" / "kernels" / "k" / "kernel.json").exists()
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert main(["exec", "--kernel", "k", "--", sys.executable]) == 0
    assert (tmp_path / "home" / ".local" / "share" / "jupyter" / "kernels" / "k" / "kernel.json").exists()


@pytest.mark.parametrize("argv", [["python3", "-m", "ipykernel_launcher"], ["/opt/trims", "run"], [], None])
def test_another_kernel_of_the_name_is_kept(
    data: Path, capsys: pytest.CaptureFixture[str], argv: list[str] | None
) -> None:
    file = data / "kernels" / "k" / "kernel.json"
    file.parent.mkdir(parents=True)
    file.write_text(text := json.dumps({} if argv is None else {"argv": argv}))
    assert main(["exec", "--kernel", "k", "--", sys.executable]) == 1
    assert file.read_text() == text
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", [sys.executable]),
        ("a/b", [sys.executable]),
        ("../k", [sys.executable]),
        ("a b", [sys.executable]),
        ("k\n", [sys.executable]),
        ("\u00e9", [sys.executable]),
        ("k", ["/nothing/python"]),
        ("k", [sys.executable, "-u"]),
        ("k", [sys.executable, "app.py"]),
    ],
)
def test_a_kernel_with_a_wrong_name_or_python_is_not_written(data: Path, name: str, words: list[str]) -> None:
    assert main(["exec", "--kernel", name, "--", *words]) == 1
    assert not data.exists()


# -- templates that there are -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "--why", "--forget -- x", "--forget x -- y", "--json"])
def test_a_command_too_many_or_too_few_is_refused(
    folder: Path, started: list[tuple[list[str], dict[str, Any]]], words: str
) -> None:
    assert main(["exec", "--runtime-dir", str(folder), *words.split()]) == 1
    assert started == []


@pytest.mark.parametrize("command", ["exec --forget", "exec --forget x", "ps --templates"])
def test_without_a_daemon_there_are_no_templates_to_ask_for(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(["--runtime-dir", str(folder), *command.split()]) == 1
    assert capsys.readouterr().err.startswith("trims: ")


def test_without_templates_a_daemon_lists_and_forgets_none(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--runtime-dir", str(daemon.config.runtime_dir)]
    assert main([*where, "ps", "--templates", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main([*where, "ps", "--templates"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main([*where, "exec", "--json", "--forget"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == []
    assert main([*where, "exec", "--forget", "x"]) == 1


def test_templates_are_listed_in_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    template = {
        "key": "0123456789abcdef" * 2, "name": "/app.py", "state": "ready", "pid": 4711, "nbytes": 3 << 20,
        "modules": 815, "left_out": {"m": "it prints"}, "starts": 12, "idle_s": 34.0,
    }  # fmt: skip
    monkeypatch.setattr(exec_command, "_ask", lambda options, message: {"templates": [template]})
    assert main(["ps", "--templates"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    for word in ("/app.py", "01234567", "ready", "4711", "815", "12", "m (it prints)"):
        assert word in row
    assert main(["ps", "--templates", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [template]


def test_an_executable_without_a_first_line_is_run_by_a_shell(folder: Path) -> None:
    (folder / "text").write_text("exit 9\n")
    (folder / "text").chmod(0o755)
    assert run(folder, "--", "./text").returncode == 9


@pytest.mark.parametrize("options", [(), ("--keep-alive=5",)])
def test_a_missing_command_has_one_exit_status(folder: Path, options: tuple[str, ...]) -> None:
    assert run(folder, *options, "--", "no-such-command").returncode == 127


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}"])
def test_a_specification_that_is_not_ours_is_kept(folder: Path, text: str) -> None:
    file = folder / "kernels" / "k" / "kernel.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    ended = run(folder, "--kernel", "k", env={**os.environ, "JUPYTER_DATA_DIR": str(folder)})
    assert (ended.returncode, file.read_text()) == (1, text)


@pytest.mark.parametrize("name", [".", "..", ".hidden"])
def test_a_kernel_is_written_into_the_folder_of_kernels_only(folder: Path, name: str) -> None:
    ended = run(folder, "--kernel", name, env={**os.environ, "JUPYTER_DATA_DIR": str(folder)})
    assert ended.returncode == 1
    assert list(folder.rglob("kernel.json")) == []
