"""Sandboxes that refuse system calls: a start that fails names the call and the remedy, and programs run as ever."""

# fault (daemon): a sandbox refuses a system call -> no start, with the call and the remedy; `trims doctor` tries all

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import WAIT_S, wait_until
from refusing import NUMBERS
from repository import SUPPORT

from trims.control import admin
from trims.core.errors import TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

ERRORS = ["EPERM", "ENOSYS"]
REFUSED = [(call, error) for call in NUMBERS for error in ERRORS if (call, error) != ("clone3", "ENOSYS")]


def run_refused(call: str, error: str, *words: str) -> subprocess.CompletedProcess[str]:
    sandbox = [sys.executable, str(SUPPORT / "refusing.py"), error, call, "--"]
    entry = "import sys; from trims.cli.entry import main; sys.exit(main())"
    command = [*sandbox, sys.executable, "-c", entry, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)


@pytest.mark.parametrize(("call", "error"), [each for each in REFUSED if each[0] != "prctl"])
def test_a_daemon_does_not_start_and_names_the_call(call: str, error: str, folder: Path) -> None:
    folders = ["--runtime-dir", str(folder / "run"), "--state-dir", str(folder / "state")]
    done = run_refused(call, error, "serve", *folders, "--gpus", "none")
    assert done.returncode == 1
    assert f"the system call {call} is refused ({error}: " in done.stderr
    assert "have the sandbox around this process allow it" in done.stderr
    assert not (folder / "run").exists()


@pytest.mark.parametrize(("call", "error"), REFUSED)
def test_an_endpoint_does_not_start_and_names_the_call(call: str, error: str, daemon: Daemon) -> None:
    done = run_refused(call, error, "endpoint", "--runtime-dir", str(daemon.config.runtime_dir), "--port", "0")
    assert done.returncode == 1
    assert f"the system call {call} is refused ({error}: " in done.stderr


def test_a_daemon_without_an_endpoint_says_which_call_that_lacks(folder: Path) -> None:
    command = [sys.executable, str(SUPPORT / "refusing.py"), "EPERM", "prctl", "--", sys.executable]
    command += ["-m", "trims.cli.main", "serve", "--runtime-dir", str(folder / "run"), "--gpus", "none"]
    command += ["--state-dir", str(folder / "state"), "--endpoint", "auto", "--endpoint-flags", "--port 0"]
    process = subprocess.Popen(command)
    wait_until(lambda: "prctl" in endpoint_off(folder / "run"), "the daemon does not say why there is no endpoint")
    process.terminate()
    assert process.wait(WAIT_S) == 0


def endpoint_off(runtime_dir: Path) -> str:
    """Return why a daemon has no endpoint; empty if it does not answer yet."""
    try:
        with admin(runtime_dir) as daemon:
            return daemon.status().stats.endpoint_off
    except TrimsError:
        return ""


@pytest.mark.parametrize(("call", "words"), [("fallocate", ["convert"]), ("flock", ["env", "create", "numpy"])])
def test_a_command_that_meets_a_refused_call_names_it(call: str, words: list[str], folder: Path) -> None:
    files = {"convert": [str(model(folder)), "-o", str(folder / "out")], "env": [f"--environments-dir={folder}/e"]}
    done = run_refused(call, "EPERM", *words, *files[words[0]])
    assert done.returncode == 1
    assert f"the system call {call} is refused (EPERM: " in done.stderr


def model(folder: Path) -> Path:
    np.savez(folder / "model.npz", weight=np.arange(3.0))
    return folder / "model.npz"


@pytest.mark.parametrize(("call", "error"), [*REFUSED, ("clone3", "ENOSYS")])
def test_the_doctor_finds_the_call(call: str, error: str, folder: Path) -> None:
    done = run_refused(call, error, "doctor", "--json", "--runtime-dir", str(folder / "run"))
    found = {each["what"]: each for each in json.loads(done.stdout)}
    bad = [what for what, each in found.items() if what.startswith("the system call") and each["verdict"] == "bad"]
    if error == "ENOSYS" and call == "clone3":
        assert not bad
    else:
        assert [what.split()[3] for what in bad] == [call]
        assert "seccomp" in found[bad[0]]["advice"]


@pytest.mark.parametrize(("call", "error"), [*REFUSED, ("clone3", "ENOSYS")])
def test_programs_are_started_as_ever(
    call: str, error: str, serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(serve().config.runtime_dir))
    program = folder / "program.py"
    program.write_text("import json, sys; print('here', *sys.argv[1:]); sys.exit(3)")
    for _ in range(3):  # as one that is observed, one that makes a template, and one that would be forked
        done = run_refused(call, error, "exec", sys.executable, str(program), "a")
        assert (done.returncode, done.stdout) == (3, "here a\n"), done.stderr
