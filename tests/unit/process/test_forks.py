"""Code that forks inside the block: the child ends there as a program would, the parent goes on."""

from __future__ import annotations

import os

import pytest

from trims.process.forks import fork_count, parent_only


def _status_of_child(leave: str) -> int:
    """Fork in the block; returns the exit status of the child, which ends with the block."""
    child = -1
    with parent_only():
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            exec(leave)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("leave", "status"),
    [
        ("pass", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('words')", 1),
        ("raise SystemExit(-1)", 255),
        ("1 / 0", 1),
        ("raise KeyboardInterrupt", 1),
    ],
)
def test_a_child_ends_with_the_status_of_a_program(leave: str, status: int) -> None:
    assert _status_of_child(leave) == status


def test_the_parent_leaves_the_block_with_its_value_or_its_error() -> None:
    with pytest.raises(ZeroDivisionError), parent_only():
        raise ZeroDivisionError
    with pytest.raises(SystemExit), parent_only():
        raise SystemExit(2)


def test_forks_are_counted_in_the_parent() -> None:
    before = fork_count()
    assert _status_of_child("pass") == 0
    assert fork_count() == before + 1
