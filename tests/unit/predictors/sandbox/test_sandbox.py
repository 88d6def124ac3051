"""Levels of isolation: what a predictor cannot do in a namespace, what it still can, and errors of the settings."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import platform
import pwd
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fleets import Driver, arrays, drive, register, text
from in_namespaces import namespaces
from looking import wait_until
from nursing import until
from trims_predictors.sandbox import sandbox as isolation
from trims_predictors.sandbox.sandbox import (
    ALL_BUT,
    CALLER_ONLY,
    IGNORED,
    NAMESPACES,
    OF_KINDS,
    OWN_PROCESS,
    REFUSED,
    Isolation,
    choose,
    filter_program,
    why_no_namespaces,
)
from trims_predictors.warm.memory_usage import footprint

from trims.core.errors import ConfigError, PredictorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon


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


#: Descriptors of files that the daemon has opened for this process.
_OWN = (
    "import os; own = [int(fd) for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}') and "
    "('.safetensors' in os.readlink(f'/proc/self/fd/{fd}') or 'trims-' in os.readlink(f'/proc/self/fd/{fd}'))]; "
    "assert own; "
)
#: Calls that fail with EPERM, which is 1.
_CALL = "import ctypes; it = ctypes.CDLL(None, use_errno=True); "


@pytest.fixture
def prober(daemon: Daemon, checkpoint: Callable[..., Path]) -> Daemon:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Prober"})
    return daemon


def probe(daemon: Daemon, *codes: str, level: str = NAMESPACES, **settings: Any) -> list[str]:
    """Return a predictor's answer to each piece of code."""

    async def work(driver: Driver) -> list[str]:
        answers = [await driver.ask(code=text(code)) for code in codes]
        return [arrays(answer)["told"][0].decode() for answer in answers]

    kept = choose(level, [str(daemon.config.state_dir)])
    found: list[str] = drive(daemon, work, isolation=kept, **settings)
    return found


@namespaces
def test_weights_are_read_in_a_namespace_as_everywhere(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})

    async def work(driver: Driver) -> None:
        first = await driver.ask(x=np.ones(1_000_000))
        assert arrays(first)["y"].sum() == 2_000_000
        assert (first.how, first.place) == ("forked", "cpu")

    drive(daemon, work, isolation=choose(NAMESPACES))


@namespaces
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("open('/etc/trims-was-here', 'w')", "OSError: [Errno 30] Read-only file system"),
        ("import os; value = os.listdir({state!r})", "[]"),
        ("import os; value = sorted(os.listdir({run!r}))", "['attach.sock']"),
        ("import os; value = [name for name in os.listdir('/dev/shm') if 'trims' in name]", "[]"),
        ("import socket; socket.create_connection(('127.0.0.1', {port}), 5)", "ConnectionRefusedError"),
        ("import os; os.kill({pid}, 0)", "ProcessLookupError"),
        ("import os; value = len([name for name in os.listdir('/proc') if name.isdigit()]) < 5", "True"),
        (_CALL + "it.ptrace(0, 0, 0, 0); value = ctypes.get_errno()", "1"),
        (
            _CALL + "import os; pidfd = os.pidfd_open(os.getpid()); it.syscall(438, pidfd, 0, 0); os.close(pidfd); "
            "value = ctypes.get_errno()",
            "1",
        ),
        (_CALL + "it.unshare(0x10000000); value = ctypes.get_errno()", "1"),
        (_CALL + "it.mount(0, 0, 0, 0, 0); value = ctypes.get_errno()", "1"),
        ("value = [line for line in open('/proc/self/status') if line.startswith('CapEff')]", "0000000000000000"),
        (_OWN + "[os.open(f'/proc/self/fd/{fd}', os.O_RDWR) for fd in own]", "PermissionError"),
        (_OWN + "[os.fchmod(fd, 0o600) for fd in own]", "PermissionError: [Errno 1]"),
        (
            _OWN + "before = [os.stat(fd)[:] for fd in own]; [os.utime(fd, (1, 1)) for fd in own]; "
            "[os.chmod(f'/proc/self/fd/{fd}', 0o777) for fd in own]; value = before == [os.stat(fd)[:] for fd in own]",
            "True",
        ),
        ("open('/proc/sys/kernel/core_pattern', 'r+')", "Read-only file system"),
        ("import os; open(f'/proc/{os.getppid()}/mem', 'rb')", "PermissionError"),
        ("import os, signal; os.kill(os.getppid(), signal.SIGTERM)", "PermissionError"),
        ("open('/proc/self/fd/2', 'r+b')", "UnsupportedOperation"),
    ],
)  # fmt: skip
def test_a_predictor_in_a_namespace_cannot(prober: Daemon, code: str, told: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        facts = {
            "state": str(prober.config.state_dir), "run": str(prober.config.runtime_dir), "pid": os.getpid(),
            "port": listener.getsockname()[1],
        }  # fmt: skip
        found = code
        for name, value in facts.items():
            found = found.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
        assert told in probe(prober, found)[0]


@namespaces
def test_a_predictor_in_a_namespace_still_has_temporary_files_threads_and_children(prober: Daemon) -> None:
    told = probe(
        prober,
        "import tempfile\nwith tempfile.TemporaryFile() as file: value = file.write(b'x')",
        "import threading; it = threading.Thread(target=lambda: None); it.start(); it.join(); value = 'fine'",
        "import subprocess; value = subprocess.check_output(['echo', 'fine'])",
        "import os, shutil, tempfile\nwith tempfile.TemporaryDirectory() as folder:\n"
        "    shutil.copytree(os.path.dirname(os.__file__) + '/json', folder + '/json')\n"
        "    value = len(os.listdir(folder + '/json')) > 3",
    )
    assert told == ["1", "'fine'", "b'fine\\n'", "True"]


@namespaces
def test_files_in_a_namespace_are_bounded_and_lie_in_a_folder_of_the_predictor(prober: Daemon) -> None:
    writes = (
        "import os, tempfile\nfor _ in range(3):\n"
        "    with tempfile.NamedTemporaryFile(delete=False) as file: file.write(bytes(1 << 20))\n"
        "value = os.path.dirname(file.name)"
    )
    isolation = dataclasses.replace(choose(NAMESPACES), scratch_bytes=8 << 20)

    async def work(driver: Driver) -> None:
        folder = arrays(await driver.ask(code=text(writes)))["told"][0].decode().strip("'")
        assert folder.startswith("/dev/shm/predictor-")
        fills = f"open('{folder}/full', 'wb').write(bytes(8 << 20))"
        assert b"No space left on device" in arrays(await driver.ask(code=text(fills)))["told"][0]
        elsewhere = "open('/dev/elsewhere', 'wb')"
        assert b"Read-only file system" in arrays(await driver.ask(code=text(elsewhere)))["told"][0]

    drive(prober, work, isolation=isolation)


@namespaces
def test_a_daemon_that_comes_back_is_found_from_within_a_namespace(
    daemon: Daemon, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Prober"})
    reads = "value = float(weights['factor'])"
    opens = "import trims_client\nwith trims_client.connect({!r}) as it: value = it.open('m').place"

    async def work(driver: Driver) -> list[str]:
        told = [arrays(await driver.ask(code=text(reads)))["told"][0]]
        await asyncio.to_thread(daemon.stop)
        again = await asyncio.to_thread(serve)
        code = opens.format(str(again.config.runtime_dir))
        return [told[0].decode(), arrays(await driver.ask(code=text(code)))["told"][0].decode()]

    assert drive(daemon, work, isolation=choose(NAMESPACES)) == ["2.0", "'cpu'"]


@namespaces
def test_processes_in_a_namespace_are_known_by_their_numbers_here_and_end(prober: Daemon) -> None:
    seen: list[int] = []

    async def work(driver: Driver) -> None:
        await driver.ask(code=text("value = 1"))
        (running,) = driver.pool._running.values()
        (template,) = driver.pool._warm_pool._inventory.templates.values()
        seen.extend([running.process.pid, template.pid, *template.predictors])
        assert all(footprint(pid) is not None for pid in seen)
        assert running.process.pid in template.predictors
        os.kill(running.process.pid, signal.SIGKILL)
        assert (await running.process.ended).startswith("it was ended by SIGKILL (by the kernel for lack of memory, or")
        assert arrays(await driver.ask(code=text("value = 2")))["told"][0] == b"2"

    drive(prober, work, isolation=choose(NAMESPACES))
    for pid in seen:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"process {pid} is left")  # type: ignore[misc]


#: Writes to each pipe and socket that it has, or can open for writing. (Files of weights may be written at the level
#: `process`.)
_MEDDLES = """
import os
for fd in map(int, os.listdir('/proc/self/fd')):
    for way in (lambda: os.open(f'/proc/self/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK), lambda: fd):
        try:
            if fd > 2 and os.readlink(f'/proc/self/fd/{fd}').startswith(('pipe:', 'socket:')):
                os.write(way(), b'x')
        except OSError:
            pass
"""
_DETACHES = """
import os, time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in map(int, os.listdir('/proc/self/fd')):
            if fd > 2 and fd != writing:
                try:
                    os.close(fd)
                except OSError:
                    pass
        os.write(writing, b'%d' % os.getpid())
        os.close(writing)
        time.sleep(600)
    os._exit(0)
value = int(os.read(reading, 100))
"""
every_level = pytest.mark.parametrize("level", ["process", pytest.param(NAMESPACES, marks=namespaces)])


@every_level
def test_a_predictor_that_writes_wherever_it_can_ends_no_other(
    level: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    for name in ("m", "other"):
        register(daemon, checkpoint, name, predictor={"call": "own_predictors:Prober"})

    async def work(driver: Driver) -> None:
        ask = text("import os; value = os.getpid()")
        before = arrays(await driver.ask("other", code=ask))["told"][0]
        with contextlib.suppress(PredictorError):  # what it says to its supervisor without being asked is its end
            await driver.ask(code=text(_MEDDLES))
        assert arrays(await driver.ask("other", code=ask))["told"][0] == before
        assert (await driver.ask(code=ask)).how == "forked"

    drive(daemon, work, isolation=choose(level))


#: Acts of one process on another one of its user by its number; each must fail, and name why.
_CRIPPLES = """
import ctypes, glob, os, resource, signal
libc, found = ctypes.CDLL(None, use_errno=True), []
def call(name, *arguments):
    ctypes.set_errno(0)
    found.append((name, pid, getattr(libc, name)(*arguments) < 0 and ctypes.get_errno() == 1))
def attempt(name, do):
    try:
        do()
        found.append((name, pid, False))
    except PermissionError:
        found.append((name, pid, True))
mask, attributes = ctypes.c_ulong(1), (ctypes.c_uint * 14)(56, 5)
for pid in {pids}:
    attempt("prlimit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    attempt("affinity", lambda: os.sched_setaffinity(pid, {{0}}))
    attempt("scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    attempt("parameters", lambda: os.sched_setparam(pid, os.sched_param(0)))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    attempt("priority of a group", lambda: os.setpriority(os.PRIO_PGRP, pid, 19))
    attempt("kill", lambda: os.kill(pid, signal.SIGTERM))
    attempt("group", lambda: os.killpg(pid, signal.SIGTERM))
    attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGTERM))
    call("syscall", {sched_setattr}, pid, attributes, 0)
    call("syscall", {ioprio_set}, 1, pid, 3 << 13)
    call("syscall", {migrate_pages}, pid, 64, mask, mask)
    call("syscall", {move_pages}, pid, 0, None, None, None, 0)
    call("syscall", {get_robust_list}, pid, mask, mask)
    call("prctl", 62, 1, pid, 0, 0)
    for name in ("oom_score_adj", "autogroup", "coredump_filter", "timerslack_ns", "comm", "clear_refs", "mem"):
        for path in glob.glob(f"/proc/{{pid}}/{{name}}"):
            attempt(path, lambda: open(path, "r+b"))
pid = "all"
attempt("priority of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("everybody", lambda: os.kill(-1, 0))
call("syscall", {ioprio_set}, 3, 0, 3 << 13)
value = [each for each in found if not each[2]] or len(found)
"""
_STATE = """
import os, resource
value = [resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0), os.sched_getscheduler(0), os.nice(0)]
"""


# fault (code): it touches another predictor's limits, in a namespace -> EPERM
@namespaces
def test_a_predictor_in_a_namespace_cannot_cripple_a_peer_or_its_template(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    for name in ("m", "other"):
        register(daemon, checkpoint, name, predictor={"call": "own_predictors:Prober"})
    numbers = {"sched_setattr": (314, 274), "ioprio_set": (251, 30), "get_robust_list": (274, 100)}
    numbers |= {"migrate_pages": (256, 238), "move_pages": (279, 239)}
    column = 0 if platform.machine() == "x86_64" else 1
    calls = {name: each[column] for name, each in numbers.items()}

    async def work(driver: Driver) -> None:
        async def ask(name: str, code: str) -> Any:
            return eval(arrays(await driver.ask(name, code=text(code)))["told"][0])

        peer, template = await ask("other", "import os; value = [os.getpid(), os.getppid()]")
        state = await ask("other", _STATE)
        found = await ask("m", _CRIPPLES.format(pids=[peer, template], **calls))
        assert isinstance(found, int), found
        assert await ask("other", "import os; value = os.getpid()") == peer
        assert await ask("other", _STATE) == state
        assert driver.pool.report()["templates"]["numpy"]["ended"] == 0

    drive(daemon, work, isolation=choose(NAMESPACES))


@namespaces
def test_a_predictor_in_a_namespace_may_change_its_own_scheduling_and_limits(prober: Daemon) -> None:
    told = probe(
        prober,
        "import os; os.sched_setaffinity(0, {0}); value = os.sched_getaffinity(0)",
        "import os; os.setpriority(os.PRIO_PROCESS, 0, 5); value = os.nice(0)",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); value = resource.getrlimit(4)",
        "import os, resource; value = resource.prlimit(os.getpid(), resource.RLIMIT_CORE)",
        "import subprocess; it = subprocess.Popen(['sleep', '60']); it.kill(); value = it.wait()",
    )
    assert told == ["{0}", "5", "(0, 0)", "(0, 0)", "-9"]


@every_level
@pytest.mark.parametrize("first", ["predictor", "template and predictor", "endpoint"])
def test_what_makes_a_session_of_its_own_ends_with(first: str, level: str, prober: Daemon) -> None:
    marked = f"{level}-{first}-{os.getpid()}"
    code = _DETACHES.replace("time.sleep(600)", f"os.execvp('sleep', ['{marked}', '600'])")

    def living() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    found += [entry.name] if marked.encode() in (entry / "cmdline").read_bytes()[:100] else []
        return found

    async def work(driver: Driver) -> None:
        await driver.ask(code=text(code))
        await asyncio.to_thread(wait_until, lambda: living(), "it has not started")
        if first != "endpoint":
            (running,) = driver.pool._running.values()
            if first == "template and predictor":
                ((_, template),) = driver.pool._warm_pool._inventory.made
                os.kill(template.pid, signal.SIGKILL)
                await asyncio.to_thread(wait_until, lambda: template.lost, "it was not seen to end")
            os.kill(running.process.pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: not living(), "it outlives its predictor")

    drive(prober, work, isolation=choose(level))
    wait_until(lambda: not living(), "it outlives the endpoint")


@namespaces
def test_a_predictor_that_fills_the_temporary_files_of_its_namespace_ends_no_other(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    for name in ("m", "other"):
        register(daemon, checkpoint, name, predictor={"call": "own_predictors:Prober"})
    fills = "f = open('/dev/shm/full', 'wb')\nwhile True: f.write(bytes(1 << 20))"

    async def work(driver: Driver) -> None:
        assert "No space left" in str(arrays(await driver.ask(code=text(fills)))["told"][0])
        answer = await driver.ask("other", code=text("value = 1"))
        assert (answer.how, arrays(answer)["told"][0]) == ("forked", b"1")
        for running in list(driver.pool._running.values()):
            running.process.kill("it is not needed any more")
            assert await running.process.ended == "it is not needed any more"
        assert (await driver.ask("other", code=text("value = 1"))).how == "forked"
        assert driver.pool.report()["templates"]["numpy"]["ended"] == 0

    drive(daemon, work, isolation=dataclasses.replace(choose(NAMESPACES), scratch_bytes=8 << 20))


@namespaces
@pytest.mark.parametrize("by", ["its supervisor", "the end of its supervisor"])
def test_a_template_that_hangs_in_a_namespace_is_ended_by(
    by: str, prober: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trims_predictors.children.launcher import Environment, Launcher
    from trims_predictors.children.template_process import Template

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    (folder / "hangs.py").write_text("import time; time.sleep(600)")

    async def work() -> int:
        launcher = Launcher(str(prober.config.runtime_dir), choose(NAMESPACES))
        template = Template(launcher, Environment("numpy"), ["hangs"])
        await until(lambda: template._pidfd >= 0)
        pid = template.pid
        if by == "the end of its supervisor":
            launcher.close()  # closes the lifeline, as the kernel does when the supervisor is killed
            await asyncio.to_thread(wait_until, lambda: not Path(f"/proc/{pid}").exists(), "the template is left")
        template.close()
        await template.gone
        launcher.close() if by == "its supervisor" else None
        return pid

    pid = asyncio.run(work())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the template is left")


@namespaces
def test_secrets_and_folders_are_hidden_and_what_must_be_seen_is_not(prober: Daemon, folder: Path) -> None:
    secret, inner = folder / "token", folder / "state" / "environment"
    secret.write_text("very secret")
    inner.mkdir()
    (inner / "python").write_text("seen")
    (folder / "link").symlink_to(inner)
    wrapped = Isolation(NAMESPACES, (str(secret), str(folder / "state"))).wrapped(
        ["sh", "-c", f"cat {secret}; cat {inner}/python; ls {folder}/state"],
        str(prober.config.runtime_dir), [str(folder / "link"), str(folder)],
    )  # fmt: skip
    done = subprocess.run(wrapped.command, pass_fds=[wrapped.fd], capture_output=True, text=True, check=False)
    wrapped.close()
    assert done.stdout == "seenenvironment\n"
    assert "Permission denied" in done.stderr


@namespaces
def test_a_program_in_a_namespace_is_in_no_session_of_the_endpoint(folder: Path) -> None:
    """Programs in such a session could push input to the terminal that the endpoint was started in."""
    wrapped = Isolation(NAMESPACES).wrapped(["cut", "-d ", "-f6", "/proc/self/stat"], str(folder))
    done = subprocess.run(wrapped.command, pass_fds=[wrapped.fd], capture_output=True, text=True, check=True)
    wrapped.close()
    assert int(done.stdout) > 0, "a session that was begun outside has the number 0 inside"


_STARTS_AND_WAITS = """
import subprocess, sys
process = subprocess.Popen(sys.argv[2:], pass_fds=[int(sys.argv[1])])
print(process.pid, flush=True)
process.wait()
"""


@namespaces
def test_a_program_in_a_namespace_ends_with_the_process_that_started_it(folder: Path) -> None:
    wrapped = Isolation(NAMESPACES).wrapped(["sh", "-c", "echo begun; exec sleep 3600"], str(folder))
    command = [sys.executable, "-c", _STARTS_AND_WAITS, str(wrapped.fd), *wrapped.command]
    with subprocess.Popen(command, pass_fds=[wrapped.fd], stdout=subprocess.PIPE, text=True) as parent:
        wrapped.close()
        assert parent.stdout is not None
        started = os.pidfd_open(int(parent.stdout.readline()))
        assert parent.stdout.readline() == "begun\n"
        parent.kill()
    poll = select.poll()
    poll.register(started, select.POLLIN)
    assert poll.poll(60_000), "it goes on without the process that started it"
    os.close(started)


@namespaces
@pytest.mark.parametrize("spares", [0, 1])
def test_what_is_replaced_while_a_template_runs_is_hidden_from_the_next_predictor(
    spares: int, prober: Daemon, folder: Path
) -> None:
    token, again = folder / "token", folder / "again"
    token.write_text("secret")
    reads = f"value = open({str(token)!r}).read()"

    async def work(driver: Driver) -> None:
        assert "PermissionError" in await told(driver)
        await until(lambda: not spares or driver.pool.report()["spares"])
        again.write_text("new secret")
        again.rename(token)
        deployment = await driver.deployment()
        driver.pool.retire(deployment.key)
        await until(lambda: not any(driver.pool.state(deployment.key).values()))
        assert "PermissionError" in await told(driver)

    async def told(driver: Driver) -> str:
        return str(arrays(await driver.ask(code=text(reads)))["told"][0].decode())

    drive(prober, work, isolation=choose(NAMESPACES, [str(token)]), spares=spares)


@namespaces
@pytest.mark.parametrize(
    ("options", "told", "remedied"),
    [
        ({"file": "/usr/not-there"}, "Read-only file system", True),
        ({"host": "example.invalid"}, "gaierror", True),
        ({}, "Input/output error", False),
    ],
    ids=["a file", "a host", "something else"],
)
def test_an_error_that_a_namespace_may_cause_says_how_to_do_without(
    daemon: Daemon, checkpoint: Callable[..., Path], options: dict[str, str], told: str, remedied: bool
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Errs", "options": options})

    async def work(driver: Driver) -> None:
        with pytest.raises(PredictorError, match=told) as raised:
            await driver.ask(x=[1.0])
        assert ("--isolation process` gives it the rights" in str(raised.value)) == remedied

    drive(daemon, work, isolation=choose(NAMESPACES))


# fault (templates): the daemon's files lie elsewhere than known -> nothing; templates that see them fork no more
@namespaces
@pytest.mark.parametrize("spares", [0, 1])
def test_a_folder_that_is_hidden_later_is_not_seen_by_the_next_predictor(
    spares: int, prober: Daemon, folder: Path
) -> None:
    (folder / "files").mkdir()
    (folder / "files" / "catalog").write_text("secret")
    lists = f"import os; value = os.listdir({str(folder / 'files')!r})"

    async def work(driver: Driver) -> None:
        assert arrays(await driver.ask(code=text(lists)))["told"][0] == b"['catalog']"
        await until(lambda: not spares or driver.pool.report()["spares"])
        for _ in range(2):  # the same once more changes nothing
            driver.pool.hide(str(folder / "files"))
            deployment = await driver.deployment()
            driver.pool.retire(deployment.key)
            await until(lambda key=deployment.key: not any(driver.pool.state(key).values()))
            assert arrays(await driver.ask(code=text(lists)))["told"][0] == b"[]"
        assert len(driver.pool._launcher.isolation.hidden) == 1

    drive(prober, work, isolation=choose(NAMESPACES), spares=spares)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_another_user_s_process_has_that_user_s_rights() -> None:
    wrapped = choose("user:nobody").wrapped(["sh", "-c", "id -u; id -G; cat /etc/shadow"], "/run")
    done = subprocess.run(wrapped.command, capture_output=True, text=True, check=False, **wrapped.how)
    assert done.stdout.split() == [str(pwd.getpwnam("nobody").pw_uid), str(pwd.getpwnam("nobody").pw_gid)]
    assert "Permission denied" in done.stderr


def test_memory_of_a_predictor_is_limited(prober: Daemon) -> None:
    told = probe(
        prober,
        "import numpy; value = numpy.ones(200_000_000, dtype='u1').sum()",
        "import numpy; value = numpy.ones(1_000_000, dtype='u1').sum()",
        level="process",
        most_predictor_bytes=64 << 20,
    )
    assert told[0].startswith(("_ArrayMemoryError", "MemoryError", "numpy._core._exceptions._ArrayMemoryError"))
    assert "1000000" in told[1]


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "why"),
    [
        ("container", "--isolation is 'container'; it must be auto, process, user:NAME or namespaces"),
        ("user:no-such-user", "there is no user 'no-such-user' on this machine"),
    ],
)
def test_a_level_that_is_none_is_named(level: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        choose(level)


def test_another_user_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="--isolation user:root needs root"):
        choose("user:root")


def test_without_bubblewrap_auto_says_why_and_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    chosen = choose("auto")
    assert chosen.level == "process"
    assert chosen.why_not_more == "bwrap is not installed (Debian, Fedora: the package bubblewrap)"
    with pytest.raises(ConfigError, match="--isolation namespaces does not work here: bwrap is not installed"):
        choose("namespaces")


def test_a_bubblewrap_that_fails_is_quoted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bwrap"
    program.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert "bwrap says: No permissions to create new namespace" in why_no_namespaces()
    monkeypatch.setattr(isolation, "_PROBE_S", 0.2)
    program.write_text("#!/bin/sh\nsleep 5\n")
    assert "bwrap cannot be run" in why_no_namespaces()


def test_a_process_of_its_own_is_the_command_as_it_is() -> None:
    wrapped = OWN_PROCESS.wrapped(["python", "-c", "pass"], "/run")
    assert (wrapped.command, wrapped.how, wrapped.fd) == (["python", "-c", "pass"], {}, -1)


@namespaces
def test_auto_takes_namespaces_where_they_work() -> None:
    assert choose("auto", ["/state"]) == Isolation(NAMESPACES, ("/state",))
