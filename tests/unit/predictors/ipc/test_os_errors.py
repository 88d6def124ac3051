"""Errors of the system in words that name what lacks, and the remedy."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest
from trims_predictors.ipc.os_errors import as_trims_error, as_trims_errors

from trims.core.errors import CapacityError, DeadlineError, PredictorError, TrimsError


def of_the_system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            of_the_system(errno.EMFILE),
            CapacityError,
            r"no fork: no descriptor left: this process may have \d+ open files.*",
        ),
        (
            of_the_system(errno.ENFILE),
            CapacityError,
            r"no fork: no descriptor left: this machine has no more open files",
        ),
        (of_the_system(errno.EAGAIN), CapacityError, r"no fork: Resource temporarily unavailable: .*`ulimit -u`"),
        (of_the_system(errno.ENOMEM), CapacityError, r"no fork: Cannot allocate memory: no process or memory left"),
        (of_the_system(errno.ENOENT), PredictorError, r"no fork: \[Errno 2\] No such file or directory"),
        (subprocess.SubprocessError("odd"), PredictorError, "no fork: odd"),
    ],
)
def test_an_error_of_the_system_is_told_by_whether_it_passes(
    error: Exception, kind: type[TrimsError], message: str
) -> None:
    found = as_trims_error(error, "no fork")
    assert type(found) is kind
    with pytest.raises(kind, match=message):
        raise found


def test_errors_of_ours_stay_as_they_are_also_those_that_are_errors_of_the_system() -> None:
    late = DeadlineError("late")
    assert as_trims_error(late, "no fork") is late
    with pytest.raises(DeadlineError, match=r"^late$"), as_trims_errors("no fork"):
        raise late


def test_other_errors_pass_because_they_are_bugs() -> None:
    with pytest.raises(ZeroDivisionError), as_trims_errors("no fork"):
        raise ZeroDivisionError
    with pytest.raises(CapacityError, match="no fork: no descriptor left"), as_trims_errors("no fork"):
        raise of_the_system(errno.EMFILE)
