"""The filter of system calls: well formed for each machine, and refusing what its table says."""

from __future__ import annotations

import errno
import platform
import struct

import pytest
from trims_predictors.seccomp import IGNORED, REFUSED, filter_program

_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}


def outcome(program: bytes, number: int, architecture: int, first_argument: int = 0) -> int:
    """What the kernel would make of a call: the few instructions of the filter, carried out here."""
    steps = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    facts = {0: number, 4: architecture, 16: first_argument}
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            loaded = facts[value]
            continue
        holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
        at += if_true if holds else if_false


@pytest.mark.parametrize("machine", _MACHINES)
def test_calls_of_the_tables_fail_or_do_nothing_and_others_are_let_through(machine: str) -> None:
    program = filter_program(machine)
    assert program is not None
    column, architecture = _MACHINES[machine]
    refused, ignored = ({numbers[column] for numbers in table.values()} for table in (REFUSED, IGNORED))
    for number in range(460):
        expected = _FAIL | errno.EPERM if number in refused else _ALLOW
        expected = _FAIL if number in ignored else expected
        expected = _FAIL | errno.ENOSYS if number == 435 else expected
        assert outcome(program, number, architecture) == expected, number


@pytest.mark.parametrize("machine", _MACHINES)
def test_a_clone_may_make_a_process_and_no_namespace(machine: str) -> None:
    program = filter_program(machine)
    assert program is not None
    column, architecture = _MACHINES[machine]
    clone = (56, 220)[column]
    for flag in (0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000):
        assert outcome(program, clone, architecture, flag | 17) == _FAIL | errno.EPERM
    assert outcome(program, clone, architecture, 0x0000_0100 | 17) == _ALLOW


def test_calls_of_another_architecture_fail() -> None:
    program = filter_program("x86_64")
    assert program is not None
    assert outcome(program, 0, 0x4000_0003) == _FAIL | errno.EPERM
    assert outcome(program, 0x4000_0000 + 1, 0xC000_003E) == _FAIL | errno.EPERM


def test_a_machine_without_a_table_has_no_filter_and_this_one_has_its_own() -> None:
    assert filter_program("s390x") is None
    assert filter_program() == filter_program(platform.machine())
