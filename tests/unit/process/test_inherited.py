"""Defaults of a process that a program has started with other ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from trims.process.inherited import favour_none

_TELLS = """
import os, signal
{setup}
from trims.process.inherited import take_defaults
take_defaults()
ignored = sorted(each.name for each in signal.Signals if signal.getsignal(each) is signal.SIG_IGN)
print(ignored, len(signal.pthread_sigmask(signal.SIG_BLOCK, ())), signal.getitimer(signal.ITIMER_REAL)[0])
print(oct(os.umask(0)))
"""


def told(setup: str = "") -> list[str]:
    command = [sys.executable, "-c", _TELLS.format(setup=setup)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, umask=0o022, restore_signals=True)
    return done.stdout.splitlines()


def test_a_process_with_defaults_keeps_them() -> None:
    assert told() == ["['SIGPIPE', 'SIGXFSZ'] 0 0.0", "0o22"]


@pytest.mark.parametrize(
    "setup",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGRTMIN, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "signal.setitimer(signal.ITIMER_REAL, 100)",
        "os.umask(0o722)",
    ],
)
def test_what_a_process_must_not_keep_is_given_its_default(setup: str) -> None:
    assert told(setup) == told()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTSTP", "SIGTTIN", "SIGTTOU"])
def test_what_nohup_and_shells_ignore_stays_ignored(name: str) -> None:
    assert (
        told(f"signal.signal(signal.{name}, signal.SIG_IGN)")[0] == str(sorted([name, "SIGPIPE", "SIGXFSZ"])) + " 0 0.0"
    )


def test_the_masks_bits_for_others_are_the_operators() -> None:
    assert told("os.umask(0o077)")[1] == "0o77"


def test_a_child_is_not_before_other_programs_and_keeps_its_place_behind_them() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        os.setpriority(os.PRIO_PROCESS, child.pid, 7)
        favour_none(child.pid)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 7
        if os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, child.pid, -7)
            favour_none(child.pid)
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == 0
        child.send_signal(signal.SIGKILL)
    favour_none(child.pid)


@pytest.mark.parametrize("how", ["-m", "-c"])
def test_a_program_in_another_encoding_is_started_once_more_with_its_arguments(how: str) -> None:
    code = (
        "import sys; from trims.process.inherited import use_utf8; use_utf8(); print(sys.flags.utf8_mode, sys.argv[1:])"
    )
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    command = [sys.executable, "-W", "error", how, *([code] if how == "-c" else ["trims.cli.main", "help"]), "ä b"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    if how == "-c":
        assert (done.stdout, done.stderr) == ("1 ['ä b']\n", "")
    else:
        assert "there is no command 'ä b'" in done.stderr
