"""A daemon and an endpoint that a bad parent starts: they work, and end when they are asked to, in every state."""

# fault (daemon): the parent leaves signals blocked, standard files closed, another locale, a working folder that is
# gone -> nothing: all get their defaults

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from bad_parent import NOT_ALLOWED, STATES
from endpoints import descendants
from looking import WAIT_S, wait_until
from repository import SUPPORT
from trims_client import connect

from trims.control import admin
from trims.core.errors import TrimsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon

IN_COMMANDS = ["SIGCHLD ignored", "all signals blocked", "closed standard files", "a mask against its owner",
               "locale C without UTF-8"]  # fmt: skip


@pytest.fixture
def serve_badly(folder: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts `trims serve` in some states and waits until it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def start(states: list[str], *flags: str) -> subprocess.Popen[bytes]:
        serve = [
            sys.executable,
            "-m",
            "trims.cli.main",
            "serve",
            "--runtime-dir",
            str(folder / "run"),
            "--gpus",
            "none",
        ]
        serve += ["--state-dir", str(folder / "state"), "--trust", "verified", "--cpu-memory", "memfd", *flags]
        bad = [sys.executable, str(SUPPORT / "bad_parent.py"), *states, "--"]
        running.append(subprocess.Popen([*bad, *serve], cwd=folder))
        wait_until(lambda: _answers(running[-1], folder / "run"), "the daemon does not answer")
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()


def _answers(process: subprocess.Popen[bytes], runtime_dir: Path) -> bool:
    if process.poll() == NOT_ALLOWED:
        pytest.skip("this user may not have that state")
    assert process.poll() is None, "the daemon did not come up"
    try:
        with admin(runtime_dir) as daemon:
            daemon.status()
    except TrimsError:
        return False
    return True


@pytest.mark.parametrize("state", STATES)
def test_a_daemon_converts_serves_and_ends_in_whatever_state_it_was_started(
    state: str, serve_badly: Callable[..., subprocess.Popen[bytes]], folder: Path
) -> None:
    process = serve_badly([state])
    path = folder / "größe.npz"
    np.savez(path, weight=np.arange(6.0))
    with connect(folder / "run") as session, session.open_file(path, place="cpu") as weights:
        np.testing.assert_array_equal(weights["weight"], np.arange(6.0))
    with admin(folder / "run") as daemon:
        manifest = {"name": "m", "artifact": {"path": str(path)}, "description": "Größe"}
        daemon.add(manifest)
        assert daemon.check().findings == ()
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("state", IN_COMMANDS)
def test_a_command_finds_a_file_and_its_exit_status_in_any_state(
    state: str, serve: Callable[..., Daemon], folder: Path
) -> None:
    runtime_dir = str(serve().config.runtime_dir)
    path = folder / "größe.npz"
    np.savez(path, weight=np.arange(6.0))
    bad = [sys.executable, str(SUPPORT / "bad_parent.py"), state, "--", sys.executable, "-m", "trims.cli.main"]
    for source, status in ((str(path), 0), (f"{path}.not", 1)):
        command = [*bad, "add", source, "--runtime-dir", runtime_dir]
        assert subprocess.run(command, check=False).returncode == status
    with admin(runtime_dir) as control:
        assert [model.name for model in control.models()] == ["gr--e"]


@pytest.mark.parametrize("state", IN_COMMANDS)
def test_a_program_is_started_from_a_template_as_alone_in_any_state(
    state: str, serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(serve().config.runtime_dir))
    program, told = folder / "program.py", folder / "told"
    code = "import signal, subprocess, sys; status = subprocess.run(['false']).returncode"
    program.write_text(f"{code}; print(status, signal.getsignal(17), file=open({str(told)!r}, 'a')); sys.exit(3)")
    bad = [sys.executable, str(SUPPORT / "bad_parent.py"), state, "--", sys.executable]
    entry = ["-c", "import sys; from trims.cli.entry import main; sys.exit(main())", "exec", sys.executable]
    for how in ([], entry, entry, entry):
        told.touch(0o600)
        assert subprocess.run([*bad, *how, str(program)], check=False).returncode == 3
    assert len(set(told.read_text().splitlines())) == 1
    assert len(told.read_text().splitlines()) == 4


def _priority(pid: int) -> int:
    """Return the priority of a process; 0 for one that has ended."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid)
    except ProcessLookupError:
        return 0


def test_an_endpoint_and_all_processes_below_start_with_defaults(
    serve_badly: Callable[..., subprocess.Popen[bytes]],
    folder: Path,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    states = ["all signals blocked", "SIGCHLD ignored", "a timer that ends it", "a mask against its owner"]
    flags = ["--endpoint", "yes", "--endpoint-flags", "--port 0 --grpc-port 0"]
    states += ["before others", *(["spared by the out-of-memory killer"] if may_be_spared() else [])]
    process = serve_badly(states, *flags)
    path = checkpoint("m", {"factor": np.array(2.0)})
    with admin(folder / "run") as daemon:
        manifest = {"name": "m", "artifact": {"path": str(path)}, "framework": {"name": "numpy"}}
        daemon.add({**manifest, "predictor": {"call": "own_predictors:Scaler"}})
        wait_until(lambda: daemon.status().stats.endpoint, "the endpoint does not answer")
        url = daemon.status().stats.endpoint
    inputs = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [21.0]}]}
    with urllib.request.urlopen(f"{url}/v2/models/m/infer", json.dumps(inputs).encode(), timeout=WAIT_S) as answer:
        assert json.loads(answer.read())["outputs"][0]["data"] == [42.0]
    below = descendants(process.pid)
    assert len(below) >= 3, "an endpoint, a template and a worker"
    for pid in {process.pid, *below}:
        status = dict(re.findall(r"^(\w+):\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        assert int(status["SigBlk"], 16) == 0 or status["Name"] == "bwrap", "bubblewrap reads SIGCHLD from a descriptor"
        assert not int(status["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1
        assert int(status["Umask"], 8) & 0o700 == 0
    within = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text() != "bwrap\n"]
    workers = [pid for pid in within if b"template" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert workers
    for pid in workers:  # one that has just been started sets its own
        wait_until(lambda pid=pid: _priority(pid) >= 0, "a template or a predictor runs before others")
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


def may_be_spared() -> bool:
    """Return whether this user may have a process spared by the out-of-memory killer."""
    command = [sys.executable, str(SUPPORT / "bad_parent.py"), "spared by the out-of-memory killer", "--", "/bin/true"]
    return subprocess.run(command, check=False).returncode == 0


def test_a_client_that_ignores_its_children_notices_a_failed_conversion(folder: Path) -> None:
    code = f"""
import signal, trims
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with trims.connect({str(folder / "none")!r}, fallback="load") as session:
    try:
        session.open_file({str(folder / "none.npz")!r})
    except trims.errors.ConversionError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "could not be loaded without a daemon" in done.stdout
