from __future__ import annotations

import errno
import platform
import struct

import pytest
from trims_predictors.sandbox.sandbox import ALL_BUT, CALLER_ONLY, IGNORED, OF_KINDS, REFUSED, filter_program

# The filter of system calls: well formed for each machine, and refusing what its table says.

_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}


def outcome(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """Return the kernel's action on a call: the few instructions of the filter, carried out here."""
    steps = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    facts = {0: number, 4: architecture}
    for index, argument in enumerate((*arguments, 0, 0, 0)[:3]):
        facts |= {16 + 8 * index: argument & 0xFFFF_FFFF, 20 + 8 * index: argument >> 32 & 0xFFFF_FFFF}
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


@pytest.mark.parametrize("machine", _MACHINES)
@pytest.mark.parametrize("other", [1, 4711, -1])
def test_calls_that_change_a_process_may_name_the_caller_only(machine: str, other: int) -> None:
    program = filter_program(machine)
    assert program is not None
    column, architecture = _MACHINES[machine]
    refused = _FAIL | errno.EPERM
    for numbers in CALLER_ONLY.values():
        assert outcome(program, numbers[column], architecture, 0, 5) == _ALLOW
        assert outcome(program, numbers[column], architecture, other, 5) == refused
    for numbers, of_user in OF_KINDS.values():
        for kind in range(of_user + 2):
            allowed = _ALLOW if kind < of_user else refused
            assert outcome(program, numbers[column], architecture, kind, 0) == allowed
            assert outcome(program, numbers[column], architecture, kind, other) == refused
    prlimit = (302, 261)[column]
    assert outcome(program, prlimit, architecture, 0, 7, 0x7FFF_0000_1000) == _ALLOW
    assert outcome(program, prlimit, architecture, other, 7, 0) == _ALLOW, "it reads"
    for address in (0x7FFF_0000_1000, 0x1000, 0x7FFF_0000_0000):
        assert outcome(program, prlimit, architecture, other, 7, address) == refused


@pytest.mark.parametrize("machine", _MACHINES)
def test_a_signal_to_every_process_and_the_sharing_of_cores_fail(machine: str) -> None:
    program = filter_program(machine)
    assert program is not None
    column, architecture = _MACHINES[machine]
    for numbers, refused in ALL_BUT.values():
        assert outcome(program, numbers[column], architecture, refused) == _FAIL | errno.EPERM
        for other in (0, 1, 15, -2):
            assert outcome(program, numbers[column], architecture, other) == _ALLOW


def test_calls_of_another_architecture_fail() -> None:
    program = filter_program("x86_64")
    assert program is not None
    assert outcome(program, 0, 0x4000_0003) == _FAIL | errno.EPERM
    assert outcome(program, 0x4000_0000 + 1, 0xC000_003E) == _FAIL | errno.EPERM


def test_a_machine_without_a_table_has_no_filter_and_this_one_has_its_own() -> None:
    assert filter_program("s390x") is None
    assert filter_program() == filter_program(platform.machine())
