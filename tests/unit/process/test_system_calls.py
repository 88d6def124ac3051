"""Trials of system calls: none of them has an effect, and one that a sandbox refuses is named with the remedy."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from refusing import NUMBERS
from repository import SUPPORT

from trims.core.errors import NotSupportedError
from trims.process import system_calls
from trims.process.system_calls import CALLS, SystemCall, refused_calls, require

_TELLS = (
    "from trims.process.system_calls import refused_calls as r; print([(each.name, each.error[:5]) for each in r()])"
)


def test_outside_of_a_sandbox_every_call_is_allowed() -> None:
    assert refused_calls() == []
    require()


def test_every_call_that_is_tried_can_be_refused_in_tests() -> None:
    assert set(CALLS) == set(NUMBERS)


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_a_sandbox_refuses_is_found_and_no_other(call: str, error: str) -> None:
    sandbox = [sys.executable, str(SUPPORT / "refusing.py"), error, call, "--"]
    done = subprocess.run([*sandbox, sys.executable, "-c", _TELLS], capture_output=True, text=True, check=True)
    is_fine = (call, error) == ("clone3", "ENOSYS")
    assert done.stdout.strip() == ("[]" if is_fine else str([(call, error[:5])]))


def test_a_call_that_fails_for_want_of_room_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(system_calls.CALLS, "fallocate", SystemCall("to reserve", full))
    assert refused_calls() == []


def test_the_error_names_the_calls_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setitem(system_calls.CALLS, "flock", SystemCall("to keep apart", refused))
    words = (
        r"the system call flock is refused \(EPERM: .*\), which is needed to keep apart: have the sandbox .* allow it"
    )
    with pytest.raises(NotSupportedError, match=words):
        require()
    require({"prctl"})
