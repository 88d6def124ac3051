"""Settings of a process that a fork is given: only where they differ from this process's."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

from trims.programs.settings import differences

#: Changes a setting, says that it is there, and ends with its standard input.
PROGRAM = "import os, resource, sys\n{}\nprint(flush=True)\nsys.stdin.read()"


def settings_of(code: str) -> dict[str, Any]:
    """Return the settings of a process that has run this."""
    command = [sys.executable, "-c", PROGRAM.format(code)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"\n"
            return differences(process.pid)
        finally:
            process.communicate(timeout=60)


def umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before


def test_a_child_process_differs_in_nothing_but_states_its_umask() -> None:
    assert settings_of("") == differences(os.getpid()) == {"umask": umask()}


_HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
_NICE, _CPU = os.getpriority(os.PRIO_PROCESS, 0), min(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.umask(0o027)", {"umask": 0o027}),
        ("os.nice(1)", {"niceness": _NICE + 1}),
        (f"os.sched_setaffinity(0, [{_CPU}])", {"affinity": [_CPU]}),
        (
            f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {_HARD}))",
            {"limits": {resource.RLIMIT_NOFILE: (64, _HARD)}},
        ),
        ("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", {"scheduler": [os.SCHED_BATCH, 0]}),
        ("print('1000', file=open('/proc/self/oom_score_adj', 'w'))", {"oom": 1000}),
    ],
)
def test_a_setting_that_differs_is_found(code: str, expected: dict[str, Any]) -> None:
    if expected.get("affinity") == sorted(os.sched_getaffinity(0)):
        pytest.skip("this process may use one processor only")
    assert settings_of(code) == {"umask": umask(), **expected}


def test_all_settings_that_differ_are_found_together() -> None:
    code = "os.umask(0o077); os.nice(2); resource.setrlimit(resource.RLIMIT_CPU, (700, 701))"
    found = settings_of(code)
    assert found == {"umask": 0o077, "niceness": _NICE + 2, "limits": {resource.RLIMIT_CPU: (700, 701)}}


def test_a_process_that_has_ended_has_no_settings() -> None:
    process = subprocess.Popen(["true"])
    process.wait(timeout=60)
    with pytest.raises(OSError):
        differences(process.pid)
