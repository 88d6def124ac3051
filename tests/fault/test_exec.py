"""Bad days of `trims exec`: whatever dies, stops, changes or is shut, a program runs once and nothing is left over."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import random
import secrets
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until
from programs import AS_EVER, DEADLINE_S, FORKED, OBSERVED, Programs

from trims.core.errors import CallerError
from trims.process.messages import receive, send
from trims.programs.door import Door
from trims.programs.identity import proof
from trims.wire.address import ATTACH_SOCKET
from trims.wire.frames import Decoder, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.timeout(120)
#: Prints its number, waits for a line, and ends with a status of its own.
WAITS = "import os, sys\nprint(os.getpid(), flush=True)\nprint(sys.stdin.readline(), end='')\nsys.exit(5)\n"
#: Has a process connect that ends and is reaped, and another one with its socket say hello.
CONNECTS_AND_ENDS = """
import os, socket, sys
from trims.process.messages import receive, send
reads, writes = os.pipe()
connects = os.fork()
if connects:
    os.waitpid(connects, 0)
    os.write(writes, b"x")
    sys.exit()
conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
conn.connect(f"\\0{sys.argv[1]}")
if os.fork():
    os._exit(0)
os.read(reads, 1)
conn.settimeout(30)
try:
    send(conn, {"op": "hello", "key": sys.argv[2], "nonce": "mine", "leads": True})
    received = receive(conn)
except OSError:
    received = None
print("nothing" if received is None else received[0]["op"], flush=True)
"""


def made(folder: Path, daemon: Daemon) -> Programs:
    (folder / "work").mkdir(exist_ok=True)
    return Programs(folder / "work", daemon.config.runtime_dir)


@pytest.fixture
def programs(folder: Path, daemon: Daemon) -> Iterator[Programs]:
    found = made(folder, daemon)
    yield found
    subprocess.run([found.command(["x"])[0], "exec", "--forget"], env=found.env, check=False, capture_output=True)
    found.await_no_process()


@pytest.fixture
def waiting(programs: Programs) -> Iterator[subprocess.Popen[str]]:
    """A program that was forked, and waits for a line."""
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    process = programs.start("python", "waits.py", options=("--why",), stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate(timeout=DEADLINE_S)


def started(process: subprocess.Popen[str]) -> int:
    """Return the number of the process that the program has."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def running(programs: Programs, script: str) -> list[str]:
    return [line for line in programs.processes().values() if script in line]


def ready(programs: Programs, template: dict[str, Any]) -> dict[str, Any]:
    """Return what the daemon answers to a caller of a template."""
    door = Door.open(f"{programs.env['TRIMS_RUNTIME_DIR']}/{ATTACH_SOCKET}")
    try:
        return door.ask({"op": "program", "key": template["key"], "name": template["name"], "unread": {}})
    finally:
        door.close()


def caller_of(found: dict[str, Any]) -> socket.socket:
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.settimeout(DEADLINE_S)
    conn.connect(f"\0{found['address']}")
    return conn


def asked(conn: socket.socket, message: dict[str, Any], fds: list[int] = []) -> dict[str, Any]:  # noqa: B006
    send(conn, message, fds)
    answer, _ = receive(conn) or ({"op": "closed"}, [])
    return answer


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def forks_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ends_with(process: subprocess.Popen[str], status: int, out: str = "line\n") -> str:
    """Give a waiting program its line. Return what it wrote to standard error."""
    found, error = process.communicate("line\n", timeout=DEADLINE_S)
    assert (process.returncode, found) == (status, out)
    return error


# -- processes that die ----------------------------------------------------------------------------------------------


# fault (exec): no daemon, another version, a silent one, or one that ends -> the program starts as ever, within a
# second; a running one goes on
def test_without_a_daemon_a_program_starts_as_ever(folder: Path) -> None:
    alone = Programs(folder, folder / "no daemon")
    alone.write("waits.py", WAITS)
    ended = alone.run("python", "waits.py", options=("--why",), input="line\n")
    assert AS_EVER in ended.stderr
    assert ended.returncode == 5


# fault (exec): no daemon, another version, a silent one, or one that ends
def test_a_program_goes_on_when_the_daemon_ends(
    waiting: subprocess.Popen[str], programs: Programs, daemon: Daemon
) -> None:
    started(waiting)
    (template,) = programs.templates()
    daemon.ask_to_end(purge=True)
    daemon.stop()
    assert is_there(template["pid"]), "it is the parent of the program"
    assert FORKED in ends_with(waiting, 5)
    wait_until(lambda: not is_there(template["pid"]), "the template stays")
    assert AS_EVER in programs.way("python", "waits.py", input="\n")
    programs.await_no_process()


# fault (exec): the template is killed, or ends beside the program
def test_a_program_that_has_ended_before_its_template_keeps_its_status(
    waiting: subprocess.Popen[str], programs: Programs, daemon: Daemon
) -> None:
    pid = started(waiting)
    host = parent_of(programs.templates()[0]["pid"])
    os.kill(host, signal.SIGSTOP)
    assert waiting.stdin is not None
    waiting.stdin.write("line\n")
    waiting.stdin.flush()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the program goes on")
    daemon.ask_to_end(purge=True)  # which the host sees first
    daemon.stop()
    os.kill(host, signal.SIGCONT)
    ends_with(waiting, 5)


# fault (exec): the template is killed, or ends beside the program -> the program goes on with its status; the next
# run is observed
def test_a_program_goes_on_when_its_template_is_killed(waiting: subprocess.Popen[str], programs: Programs) -> None:
    pid = started(waiting)
    template = programs.templates()[0]["pid"]
    assert parent_of(pid) == template
    os.kill(template, signal.SIGKILL)
    wait_until(lambda: parent_of(pid) != template, "the host has not adopted the program")
    ends_with(waiting, 5)
    wait_until(lambda: programs.templates() == [], "a dead template is listed")
    assert OBSERVED in programs.way("python", "waits.py", input="\n")


def test_a_signal_reaches_a_program_whose_template_was_killed(
    waiting: subprocess.Popen[str], programs: Programs
) -> None:
    pid = started(waiting)
    os.kill(programs.templates()[0]["pid"], signal.SIGKILL)
    wait_until(lambda: programs.templates() == [], "a dead template is listed")
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(DEADLINE_S) == -signal.SIGTERM
    assert not is_there(pid)


# fault (exec): the host is killed -> the program goes on; its status is lost: 70
def test_a_program_goes_on_when_its_host_is_killed_and_its_status_is_lost(
    waiting: subprocess.Popen[str], programs: Programs
) -> None:
    started(waiting)
    host = parent_of(programs.templates()[0]["pid"])
    os.kill(host, signal.SIGKILL)
    error = ends_with(waiting, 70)
    assert "nothing can tell how process" in error
    wait_until(lambda: programs.templates() == [], "a dead template is listed")


def test_a_template_that_dies_while_it_forks_leaves_the_program_to_start_as_ever(programs: Programs) -> None:
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    template = programs.templates()[0]["pid"]
    os.kill(template, signal.SIGSTOP)
    process = programs.start("python", "waits.py", options=("--why",), stdin=subprocess.PIPE)
    host = parent_of(template)
    wait_until(lambda: any(Path(f"/proc/{host}/fd").iterdir()), "the host has no files")
    wait_until(lambda: programs.templates()[0]["starts"] == 1, "the program did not ask for its template")
    os.kill(template, signal.SIGKILL)
    started(process)
    assert AS_EVER in ends_with(process, 5)


# fault (exec): the template dies or hangs in a fork -> the program starts as ever within 5 s, once
@pytest.mark.parametrize("which", ["template", "host"])
def test_a_template_or_host_that_hangs_is_not_waited_for(programs: Programs, which: str) -> None:
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    template = programs.templates()[0]["pid"]
    stopped = template if which == "template" else parent_of(template)
    os.kill(stopped, signal.SIGSTOP)
    process = programs.start("python", "waits.py", options=("--why",), stdin=subprocess.PIPE)
    pid = started(process)
    assert pid == process.pid  # it was executed in the caller's process
    # to the end of its output, which nothing else holds open
    assert AS_EVER in ends_with(process, 5)
    if which == "template":
        wait_until(lambda: programs.templates() == [], "a template that hangs stays")
    else:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: not running(programs, "waits.py"), "a second one runs")


# fault (exec): the caller dies
@pytest.mark.parametrize("caught", [False, True])
def test_a_caller_that_is_killed_takes_the_program_and_its_children_along(programs: Programs, caught: bool) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if caught else ""
    code = "import os, subprocess, sys\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\n"
    programs.write("waits.py", ignore + code + WAITS)
    first = programs.start("python", "waits.py", stdin=subprocess.PIPE)
    os.kill(started(first), signal.SIGKILL)
    first.communicate("\n", timeout=DEADLINE_S)
    programs.await_templates()
    process = programs.start("python", "waits.py", stdin=subprocess.PIPE)
    child, pid = started(process), started(process)
    process.kill()
    wait_until(lambda: not is_there(pid) and not is_there(child), "the program goes on")
    process.communicate(timeout=DEADLINE_S)


# fault (exec): the caller dies -> the program and its group end; none begins
def test_a_caller_that_is_killed_before_it_begins_starts_nothing(programs: Programs) -> None:
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    template = programs.templates()[0]["pid"]
    os.kill(template, signal.SIGSTOP)
    process = programs.start("python", "waits.py", stdin=subprocess.PIPE)
    wait_until(lambda: programs.templates()[0]["starts"] == 1, "the program did not ask for its template")
    process.kill()
    os.kill(template, signal.SIGCONT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert out == ""
    assert FORKED in programs.way("python", "waits.py", input="\n")
    wait_until(lambda: not running(programs, "waits.py"), "it has begun")


@pytest.mark.parametrize("ends", ["caller", "template"])
def test_a_caller_that_says_hello_and_no_more_leaves_nothing(programs: Programs, ends: str) -> None:
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    (template,) = programs.templates()
    found = ready(programs, template)
    with caller_of(found) as conn:
        welcome = asked(conn, {"op": "hello", "key": template["key"], "nonce": "mine", "leads": True})
        assert welcome["proof"] == proof(found["token"], "host", "mine")
        wait_until(lambda: forks_of(template["pid"]), "it has not forked")
        (fork,) = forks_of(template["pid"])
        if ends == "template":
            os.kill(template["pid"], signal.SIGKILL)
            wait_until(lambda: programs.templates() == [], "the template stays")
            plan = {"folder": "/", "proof": proof(found["token"], "caller", welcome["nonce"])}
            assert asked(conn, plan, [conn.fileno()])["op"] == "refused"
    wait_until(lambda: not is_there(fork), "the fork stays")


@pytest.mark.parametrize("wrong", ["key", "proof"])
def test_a_caller_that_means_another_template_is_refused_and_its_fork_ends(programs: Programs, wrong: str) -> None:
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    (template,) = programs.templates()
    found = ready(programs, template)
    with caller_of(found) as conn:
        key = template["key"] if wrong == "proof" else "0" * 32
        answer = asked(conn, {"op": "hello", "key": key, "nonce": "mine", "leads": True})
        if wrong == "proof":
            plan = {"folder": "/", "proof": proof("0" * 32, "caller", answer["nonce"])}
            answer = asked(conn, plan, [conn.fileno()])
        assert answer["op"] == "refused"
    wait_until(lambda: not forks_of(template["pid"]), "the fork stays")
    assert FORKED in programs.way("python", "waits.py", input="\n")


# fault (exec): another process answers at a template's address -> the program starts as ever; only key and nonce were
# sent
def test_a_caller_sends_nothing_to_a_host_that_does_not_know_its_templates_token(programs: Programs) -> None:
    programs.write("script.py", "print('program')")
    programs.learn("python", "script.py")
    (template,) = programs.templates()
    heard: list[Any] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0trims-test-{secrets.token_hex(8)}")
        listener.listen()
        listener.settimeout(DEADLINE_S)
        door = Door.open(f"{programs.env['TRIMS_RUNTIME_DIR']}/{ATTACH_SOCKET}")
        other = "0" * 32
        assert door.ask({"op": "program", "key": other, "name": "own", "unread": {}})["state"] == "observe"
        claim = {"address": listener.getsockname()[1:].decode(), "pid": 1, "nbytes": 1, "modules": 1}
        with pytest.raises(CallerError):
            door.ask({"op": "template", "key": template["key"], **claim, "left_out": {}, "reads": []})
        assert door.ask({"op": "template", "key": other, **claim, "left_out": {}, "reads": []})["accepted"]

        def answer() -> None:
            conn, _ = listener.accept()
            with conn:
                heard.append((receive(conn) or ({}, []))[0])
                send(conn, {"op": "welcome", "proof": "0" * 32, "nonce": "theirs"})
                heard.append(receive(conn))

        thread = threading.Thread(target=answer)
        thread.start()
        launch = (
            "import sys; from trims.programs import launch; key = sys.argv.pop(1); launch.key_of = lambda *_: key; "
            "launch.Launch(sys.argv[1:], why=True).run()"
        )
        ended = programs.alone("python", "-c", launch, other, sys.executable, "script.py")
        thread.join()
        door.close()
    assert (ended.stdout, AS_EVER in ended.stderr) == ("program\n", True)
    assert [heard[0]["op"], heard[1]] == ["hello", None]


# fault (exec): a process passes its socket on and its number is reused -> refused
def test_a_process_that_connects_for_another_one_and_ends_starts_nothing(programs: Programs) -> None:
    programs.write("waits.py", WAITS)
    programs.learn("python", "waits.py", input="\n")
    (template,) = programs.templates()
    found = ready(programs, template)
    ended = programs.alone("python", "-c", CONNECTS_AND_ENDS, found["address"], template["key"])
    assert ended.stdout in ("nothing\n", "refused\n"), ended.stderr
    wait_until(lambda: not forks_of(template["pid"]), "the fork stays")


#: Asks for a signal at the end of its parent, and prints after a line whether that is still the same.
PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
parent = os.getppid()
print(os.getpid(), flush=True)
sys.stdin.readline()
print(os.getppid() == parent)
"""


@pytest.mark.parametrize("ends", ["more imports", "a changed file", "forget"])
def test_a_program_that_runs_keeps_its_parent_though_its_template_is_used_no_more(
    programs: Programs, environment: Environment, ends: str
) -> None:
    environment.install("library", "")
    more = "if len(sys.argv) > 1: import colorsys\n"
    programs.write("parent.py", f"import library{PARENT}{more}")
    words = (environment.python, "parent.py")
    programs.learn(*words, input="\n")
    process = programs.start(*words, options=("--why",), stdin=subprocess.PIPE)
    started(process)
    (template,) = programs.templates()
    if ends == "more imports":
        programs.run(*words, "more", input="\n")
        wait_until(lambda: programs.templates()[0]["pid"] != template["pid"], "the template is not made again")
    elif ends == "a changed file":
        environment.install("library", "VALUE = 1")
        assert FORKED not in programs.way(*words, input="\n")
    else:
        subprocess.run(
            [programs.command(["x"])[0], "exec", "--forget"], env=programs.env, check=True, capture_output=True
        )
        wait_until(lambda: programs.templates() == [], "the template stays")
    assert is_there(template["pid"])
    out, errors = process.communicate("\n", timeout=DEADLINE_S)
    assert (out, process.returncode) == ("True\n", 0), errors
    wait_until(lambda: not is_there(template["pid"]), "the old template stays")


def test_a_caller_that_was_stopped_goes_on(waiting: subprocess.Popen[str]) -> None:
    started(waiting)
    waiting.send_signal(signal.SIGSTOP)
    assert waiting.stdin is not None
    waiting.stdin.write("line\n")
    waiting.stdin.flush()
    waiting.send_signal(signal.SIGCONT)
    ends_with(waiting, 5)


# -- a terminal ------------------------------------------------------------------------------------------------------


class Terminal:
    """Terminal on which a program runs, as the foreground process of a session."""

    def __init__(self, programs: Programs, *words: str) -> None:
        self.screen, self._line = pty.openpty()
        line = self._line

        def take() -> None:
            import fcntl
            import termios

            os.setsid()
            fcntl.ioctl(line, termios.TIOCSCTTY, 0)

        streams = dict.fromkeys(("stdin", "stdout", "stderr"), line)
        self.process = programs.start(*words, preexec_fn=take, **streams)
        self.shown = ""

    def await_text(self, text: str, again: Callable[[], None] = lambda: None) -> None:
        """Wait until a text is shown, and do something again and again meanwhile."""
        end_s = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            assert time.monotonic() < end_s, self.shown
            again()
            if select.select([self.screen], [], [], 0.1)[0]:
                self.shown += os.read(self.screen, 1000).decode()

    def press(self, keys: bytes) -> None:
        os.write(self.screen, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)
        os.close(self._line)


@pytest.fixture
def terminal(programs: Programs) -> Iterator[Terminal]:
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: print('size', os.get_terminal_size(), flush=True))\n"
        "print('number', os.getpid(), os.get_terminal_size(), sys.stdin.isatty(), flush=True)\n"
        "while True:\n print('read', input(), flush=True)\n"
    )
    programs.write("talks.py", code)
    code_of_first = code.replace("os.get_terminal_size()", "0")
    programs.write("talks.py", code_of_first)
    programs.learn("python", "talks.py", input="")
    programs.write("talks.py", code)
    made = Terminal(programs, "python", "talks.py")
    yield made
    made.close()


def test_a_terminal_has_a_size_and_takes_lines(terminal: Terminal) -> None:
    import fcntl
    import struct
    import termios

    terminal.await_text("number")
    terminal.press(b"hello\n")
    terminal.await_text("read hello")

    lines = itertools.count(33)

    def resize() -> None:  # again: Python sees no signal that comes just before it begins to read
        fcntl.ioctl(terminal.screen, termios.TIOCSWINSZ, struct.pack("HHHH", next(lines), 77, 0, 0))

    terminal.await_text("size os.terminal_size(columns=77, lines=", resize)


def test_control_c_interrupts_the_program(terminal: Terminal) -> None:
    terminal.await_text("number")
    terminal.press(b"\x03")
    terminal.await_text("KeyboardInterrupt")
    assert terminal.process.wait(DEADLINE_S) == -signal.SIGINT


# fault (exec): Ctrl-C, Ctrl-Z, terminal sizes, a stopped caller -> what the program alone would see
def test_control_z_stops_the_program_and_it_goes_on(terminal: Terminal) -> None:
    terminal.await_text("True")
    pid = int(terminal.shown.split()[1])
    assert pid != terminal.process.pid
    terminal.press(b"\x1a")
    wait_until(lambda: state_of(pid) == "T" and state_of(terminal.process.pid) == "T", "it was not stopped")
    terminal.process.send_signal(signal.SIGCONT)
    wait_until(lambda: state_of(pid) != "T", "it does not go on")
    terminal.press(b"again\n")
    terminal.await_text("read again")


# -- standard files --------------------------------------------------------------------------------------------------

FILES = {
    "standard input that is closed": "<&-",
    "standard output that is closed": ">&-",
    "all that is closed": "<&- >&- 2>&-",
    "a pipe that nothing reads": "| true",
    "a full disk": ">/dev/full",
}


# fault (exec): standard files closed, full or unread -> what the program alone would see
@pytest.mark.parametrize("what", FILES)
def test_a_program_is_itself_with(programs: Programs, what: str) -> None:
    code = (
        "import os, sys\nprint('x' * 100_000, file=sys.stdout)\n"
        "open('seen', 'w').write(repr([sys.stdin, sys.stdout, sys.stderr, sorted(os.listdir('/proc/self/fd'))[:4]]))\n"
    )
    programs.write("writes.py", code)
    programs.learn("python", "writes.py")

    def outcome(command: list[str]) -> tuple[Any, ...]:
        line = f"{' '.join(command)} {FILES[what]}; echo ${{PIPESTATUS[0]}} >status"
        ended = subprocess.run(
            ["bash", "-c", line],
            cwd=programs.folder,
            env=programs.env,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        status = (programs.folder / "status").read_text()
        seen = (programs.folder / "seen").read_text() if (programs.folder / "seen").exists() else ""
        (programs.folder / "seen").unlink(missing_ok=True)
        return status, ended.stdout, ended.stderr, seen

    (programs.folder / "seen").unlink()
    alone = outcome([sys.executable, "writes.py"])
    assert outcome(programs.command(["python", "writes.py"])) == alone
    assert programs.templates()[0]["starts"] == 1


def test_a_full_pipe_is_waited_for(programs: Programs) -> None:
    programs.write("writes.py", "print('x' * 1_000_000)")
    programs.learn("python", "writes.py")
    process = programs.start("python", "writes.py", options=("--why",))
    assert process.stderr is not None
    assert FORKED in process.stderr.readline()
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert len(out) == 1_000_001


# -- code and surroundings that change -------------------------------------------------------------------------------


class Environment:
    """Virtual environment in which modules are installed."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=DEADLINE_S)
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.packages = next((folder / "lib").glob("python3*")) / "site-packages"

    def install(self, name: str, code: str) -> None:
        (self.packages / f"{name}.py").write_text(code)
        old = time.time() - 60
        for each in (self.packages / f"{name}.py", self.packages):
            os.utime(each, (old, old))


@pytest.fixture
def environment(folder: Path) -> Environment:
    return Environment(folder / "venv")


# fault (exec): a package, or anything an import read, changes -> an ordinary run; the next template has it
def test_an_upgraded_package_is_never_forked_in_its_old_version(programs: Programs, environment: Environment) -> None:
    environment.install("library", "VERSION = 1\n")
    programs.write("script.py", "import library; print(library.VERSION)")
    words = (environment.python, "script.py")
    assert programs.learn(*words).stdout == "1\n"
    assert FORKED in programs.way(*words)
    (environment.packages / "library.py").write_text("VERSION = 22\n")
    ended = programs.run(*words, options=("--why",))
    assert ended.stdout == "22\n"
    assert "library.py has changed since" in ended.stderr
    wait_until(lambda: programs.templates() == [], "the old template stays")
    assert programs.learn(*words).stdout == "22\n"
    ended = programs.run(*words, options=("--why",))
    assert (ended.stdout, FORKED in ended.stderr) == ("22\n", True)


class Changes:
    """Files around a program, whose imports make of them what the program prints.

    Args:
        environment: With a module `library`, whose code a test writes.
        home: Folder of the user.
    """

    def __init__(self, environment: Environment, home: Path) -> None:
        self.environment, self.home, self.packages = environment, home, environment.packages
        self.extra = home / "extra"
        self.extra.mkdir(parents=True)

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def library(self, code: str, name: str = "library.py") -> None:
        self.write(self.packages / name, code)

    def rewrite_in_place(self) -> None:
        path = self.packages / "library.py"
        before = path.stat()
        path.write_text("VALUE = 2\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def store(self, order: str) -> None:
        base = sqlite3.connect(self.home / "base")
        with base:
            base.execute(order)
        base.close()

    def zip(self, value: int) -> None:
        with zipfile.ZipFile(self.home / "more.zip", "w") as archive:
            archive.writestr("zipped.py", f"VALUE = {value}\n")

    def build(self, value: int) -> None:
        """Make a shared library anew, under another inode."""
        source, target = self.home / "lib.c", self.packages / "library.libs" / "libvalue.so"
        self.write(source, f"int value(void) {{ return {value}; }}")
        target.parent.mkdir(exist_ok=True)
        made = target.with_suffix(".new")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
        made.replace(target)


_READS = "import os, json; VALUE = {}\n"
_OPTIONAL = "try:\n    from library import fast\nexcept ImportError:\n    VALUE = 1\nelse:\n    VALUE = fast.VALUE\n"
_CTYPES = "import ctypes, os\nVALUE = ctypes.CDLL(os.path.dirname(__file__) + '/library.libs/libvalue.so').value()\n"
_META = "import importlib.metadata as m; VALUE = m.version('library')\n"
_CUSTOM = "import sys; VALUE = getattr(sys, 'custom', None)\n"
#: What is there at the first run, and what is changed then; the program prints another value after that.
STALE: dict[str, tuple[Callable[[Changes], object], Callable[[Changes], object]]] = {
    "a sitecustomize that is edited": (
        lambda at: (at.library(_CUSTOM), at.library("import sys; sys.custom = 1", "sitecustomize.py")),
        lambda at: at.library("import sys; sys.custom = 22", "sitecustomize.py"),
    ),
    "a sitecustomize that appears in PYTHONPATH": (
        lambda at: at.library(_CUSTOM),
        lambda at: at.write(at.extra / "sitecustomize.py", "import sys; sys.custom = 2"),
    ),
    "a module that a path file imports": (
        lambda at: (
            at.library(_CUSTOM), at.library("import early", "early.pth"),
            at.library("import sys; sys.custom = 1", "early.py"),
        ),
        lambda at: at.library("import sys; sys.custom = 22", "early.py"),
    ),
    "a shared library": (lambda at: (at.library(_CTYPES), at.build(1)), lambda at: at.build(2)),
    "an optional module of a package that appears": (
        lambda at: at.library(_OPTIONAL, "library/__init__.py"), lambda at: at.library("VALUE = 2", "library/fast.py"),
    ),
    "an optional module of a package that goes": (
        lambda at: (at.library(_OPTIONAL, "library/__init__.py"), at.library("VALUE = 2", "library/fast.py")),
        lambda at: (at.packages / "library" / "fast.py").unlink(),
    ),
    "an archive on the path": (
        lambda at: (at.library("from zipped import VALUE"), at.zip(1), at.library(f"{at.home}/more.zip", "more.pth")),
        lambda at: at.zip(22),
    ),
    "the version of a distribution": (
        lambda at: (at.library(_META), at.library("Name: library\nVersion: 1\n", "library-1.dist-info/METADATA")),
        lambda at: at.library("Name: library\nVersion: 22\n", "library-1.dist-info/METADATA"),
    ),
    "a file in a package": (
        lambda at: (
            at.library(_READS.format("json.load(open(os.path.dirname(__file__) + '/data.json'))")),
            at.library("1", "data.json"),
        ),
        lambda at: at.library("2", "data.json"),
    ),
    "a file of the user": (
        lambda at: (
            at.library(_READS.format("open(os.path.expanduser('~/.config/library')).read()")),
            at.write(at.home / ".config" / "library", "1"),
        ),
        lambda at: at.write(at.home / ".config" / "library", "2"),
    ),
    "a file that is looked for": (
        lambda at: at.library(_READS.format("os.path.exists(os.path.expanduser('~/.libraryrc'))")),
        lambda at: at.write(at.home / ".libraryrc", ""),
    ),
    "the names in a folder": (
        lambda at: at.library(_READS.format("sorted(os.listdir(os.path.expanduser('~/extra')))")),
        lambda at: at.write(at.extra / "plugin", ""),
    ),
    "a link that is read": (
        lambda at: (
            at.library(_READS.format("os.readlink(os.path.expanduser('~/current'))")),
            (at.home / "current").symlink_to("1"),
        ),
        lambda at: ((at.home / "current").unlink(), (at.home / "current").symlink_to("2")),
    ),
    "a link to nothing that appears": (
        lambda at: at.library(_READS.format("os.path.lexists(os.path.expanduser('~/current'))")),
        lambda at: (at.home / "current").symlink_to("nowhere"),
    ),
    "a file that is opened beside an open folder": (
        lambda at: (
            at.library(
                "import os; folder = os.open(os.path.expanduser('~/extra'), 0); file = os.open('g', 0, dir_fd=folder)\n"
                "VALUE = os.read(file, 9); os.close(file); os.close(folder)\n"
            ),
            at.write(at.extra / "g", "1"),
        ),
        lambda at: at.write(at.extra / "g", "2"),
    ),
    "a database": (
        lambda at: (
            at.library(
                "import os, sqlite3; base = sqlite3.connect(os.path.expanduser('~/base'))\n"
                "VALUE = base.execute('SELECT * FROM t').fetchall(); base.close()\n"
            ),
            at.store("CREATE TABLE t (a)"),
        ),
        lambda at: at.store("INSERT INTO t VALUES (2)"),
    ),
    "an attribute of a file": (
        lambda at: (
            at.library(_READS.format("os.listxattr(os.path.expanduser('~/extra/g'))")), at.write(at.extra / "g", "1"),
        ),
        lambda at: os.setxattr(at.extra / "g", "user.more", b"1"),
    ),
    "an edit of one length whose time was put back": (
        lambda at: at.library("VALUE = 1\n"), lambda at: at.rewrite_in_place(),
    ),
}  # fmt: skip


#: Writes to a file that it has begun, and waits until there is more in it before it imports something else.
SLOW = """
import os, time
with open({gate!r}, "a") as file: file.write("x")
while os.path.getsize({gate!r}) == 1: time.sleep(0.01)
import dis
"""


def test_an_import_that_is_silent_for_long_is_in_the_template(programs: Programs, environment: Environment) -> None:
    gate = programs.folder / "gate"
    environment.install("slow", SLOW.format(gate=str(gate)))
    programs.write("script.py", "import slow, sys; print('dis' in sys.modules, flush=True); sys.stdin.readline()")
    words = (environment.python, "script.py")
    process = programs.start(*words, stdin=subprocess.PIPE)
    # A template is tried in the middle of the import, and imports what the first run has not.
    wait_until(lambda: gate.exists() and gate.stat().st_size > 1, "no template is tried")
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    programs.await_templates()
    way = programs.way(*words, input="\n")
    assert (FORKED in way, "without" in way) == (True, False)
    process.communicate("\n", timeout=DEADLINE_S)


def test_a_first_run_that_is_killed_in_an_import_is_completed_by_the_next(
    programs: Programs, environment: Environment
) -> None:
    gate = programs.folder / "gate"
    environment.install("slow", SLOW.format(gate=str(gate)))
    programs.write("script.py", "import slow, sys; print('dis' in sys.modules)")
    words = (environment.python, "script.py")
    process = programs.start(*words)
    wait_until(gate.exists, "it does not begin")
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    programs.await_templates()
    assert "without slow" in programs.way(*words)
    wait_until(lambda: "without" not in programs.way(*words), "what the next run imports is not learned")


def test_a_program_whose_imports_take_no_time_starts_as_ever_after_its_first_run(programs: Programs) -> None:
    programs.write("small.py", "import json; print('program')")
    by_default = [programs.command(["x"])[0], "exec", "--why", "--", "python", "small.py"]
    assert OBSERVED in programs.alone(*by_default, env={"PATH": f"{Path(sys.executable).parent}"}).stderr

    def second() -> bool:
        ended = programs.alone(*by_default, env={"PATH": f"{Path(sys.executable).parent}"})
        assert ended.stdout == "program\n"
        assert FORKED not in ended.stderr
        return "--least-saving" in ended.stderr

    wait_until(second, "the daemon does not know that it is not worth it")
    wait_until(lambda: programs.templates() == [], "a template stays")


# fault (exec): a package, or anything an import read, changes
@pytest.mark.parametrize("what", STALE)
def test_what_an_import_depends_on_is_never_used_once_it_has_changed(
    programs: Programs, environment: Environment, folder: Path, what: str
) -> None:
    before, change = STALE[what]
    changes = Changes(environment, folder / "home")
    before(changes)
    programs.env |= {"HOME": str(changes.home), "PYTHONPATH": str(changes.extra), "PYTHONDONTWRITEBYTECODE": "1"}
    programs.write("script.py", "import library; print(library.VALUE)")
    words = (environment.python, "script.py")
    first = programs.learn(*words).stdout
    assert FORKED in programs.way(*words)
    change(changes)
    ended = programs.run(*words, options=("--why",))
    assert (ended.stdout, FORKED in ended.stderr) == (programs.alone(*words).stdout, False)
    assert ended.stdout != first
    wait_until(lambda: programs.templates() == [], "the old template stays")
    programs.learn(*words)
    again = programs.run(*words, options=("--why",))
    assert (again.stdout, FORKED in again.stderr) == (ended.stdout, True)


def test_a_relative_file_that_an_import_reads_is_that_of_the_working_folder(
    programs: Programs, environment: Environment
) -> None:
    environment.install("library", "VALUE = open('value').read()\n")
    script = programs.folder / programs.write("script.py", "import library; print(library.VALUE)")
    folders = [programs.folder / name for name in ("one", "two")]
    for path in folders:
        path.mkdir()
        (path / "value").write_text(path.name)
    words = (environment.python, str(script))
    programs.learn(*words, cwd=folders[0])
    ended = programs.run(*words, options=("--why",), cwd=folders[1])
    assert (ended.stdout, FORKED in ended.stderr) == ("two\n", False)
    programs.await_templates(2)
    for path in folders:
        ended = programs.run(*words, options=("--why",), cwd=path)
        assert (ended.stdout, FORKED in ended.stderr) == (f"{path.name}\n", True)


@pytest.mark.parametrize("what", ["a new path file", "a new package", "a changed environment"])
def test_a_changed_environment_ends_the_template(programs: Programs, environment: Environment, what: str) -> None:
    environment.install("library", "VERSION = 1\n")
    programs.write("script.py", "import library, sys; print(sys.path[-1])")
    words = (environment.python, "script.py")
    programs.learn(*words)
    if what == "a new path file":
        (environment.packages / "more.pth").write_text("/\n")
    elif what == "a new package":
        (environment.packages / "more.py").write_text("")
    else:
        with (environment.folder / "pyvenv.cfg").open("a") as file:
            file.write("prompt = other\n")
    ended = programs.run(*words, options=("--why",))
    assert FORKED not in ended.stderr
    assert ended.stdout == programs.alone(*words).stdout


# fault (exec): another variable, folder, group, namespace or user that imports read -> another template, or an
# ordinary run
@pytest.mark.parametrize(
    "variable", ["HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1", "TZ=Asia/Tokyo", "LC_ALL=C", "PYTHONHASHSEED=3"]
)
def test_another_environment_has_another_template(programs: Programs, variable: str) -> None:
    name, _, value = variable.partition("=")
    programs.write("script.py", f"import os, time, json; print(os.environ.get({name!r}), time.tzname, hash('x') % 10)")
    programs.learn("python", "script.py", env={"PYTHONHASHSEED": "1"})
    given = {"PYTHONHASHSEED": "1", name: value}
    ended = programs.run("python", "script.py", options=("--why",), env=given)
    assert OBSERVED in ended.stderr
    programs.await_templates(2)
    ended = programs.run("python", "script.py", options=("--why",), env=given)
    assert FORKED in ended.stderr
    assert ended.stdout == programs.alone("python", "script.py", env=given).stdout


def test_a_variable_that_is_named_does_not_tell_templates_apart(programs: Programs) -> None:
    programs.write("script.py", "import os; print(os.environ['PORT'])")
    options = ("--why", "--ignore", "PORT")
    programs.learn("python", "script.py", options=options, env={"PORT": "1"})
    ended = programs.run("python", "script.py", options=options, env={"PORT": "2"})
    assert (ended.stdout, FORKED in ended.stderr) == ("2\n", True)


def test_a_working_folder_that_imports_read_tells_templates_apart(programs: Programs, environment: Environment) -> None:
    environment.install("library", "import os\nFOLDER, TERM = os.getcwd(), os.environ.get('TERM')\n")
    programs.write("script.py", "import library; print(library.FOLDER, library.TERM)")
    script = str(programs.folder / "script.py")
    programs.learn(environment.python, script)
    assert FORKED in programs.way(environment.python, script)
    for changed in ({"cwd": "/"}, {"env": {"TERM": "other"}}):
        ended = programs.run(environment.python, script, options=("--why",), **changed)
        assert ended.stdout == programs.alone(environment.python, script, **changed).stdout
        assert FORKED not in ended.stderr
        programs.await_templates(2 if "cwd" in changed else 3)
        ended = programs.run(environment.python, script, options=("--why",), **changed)
        assert FORKED in ended.stderr
        assert ended.stdout == programs.alone(environment.python, script, **changed).stdout


# fault (exec): a folder with modules named as a template's -> an ordinary run
@pytest.mark.parametrize("first", [True, False])
def test_a_folder_of_modules_with_the_names_of_others(programs: Programs, first: bool) -> None:
    """Python looks into a script's folder first, whatever a template has imported."""
    programs.write("script.py", "import queue, random, json\nprint(queue.__file__, random.__file__, json.__file__)")
    if not first:
        programs.learn("python", "script.py")
    for name in ("queue", "random"):
        programs.write(f"{name}.py", "print('imported', __file__)")
    if first:
        programs.learn("python", "script.py")
    ended = programs.run("python", "script.py", options=("--why",))
    assert ended.stdout == programs.alone("python", "script.py").stdout
    assert (FORKED in ended.stderr) is first  # they are the program's own, and in no template


# -- modules that cannot be in a template ----------------------------------------------------------------------------

SPOILERS = {
    "starts a thread": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "opens a connection": "import socket\npair = socket.socketpair()\n",
    "keeps a file open": "import os\nfile = open(os.devnull)\n",
    "prints": "print('hello from the library')\n",
    "starts a process": "import subprocess\nprocess = subprocess.Popen(['sh', '-c', 'exit 3'])\n",
    "traces": "import sys\nsys.settrace(lambda *what: None)\n",
}


# fault (exec): a module starts threads, opens files, prints or crashes in a template -> left out and named; the
# program imports it
@pytest.mark.parametrize("what", SPOILERS)
def test_a_module_that_does_what_a_fork_cannot_have_is_left_out(
    programs: Programs, environment: Environment, what: str
) -> None:
    environment.install("harmless", "import json\n")
    environment.install("spoiler", SPOILERS[what])
    environment.install("importer", "import harmless\nimport spoiler\nimport random\n")
    programs.write("script.py", "import importer, queue, sys, threading\nprint('program', threading.active_count())\n")
    words = (environment.python, "script.py")
    alone = programs.alone(*words).stdout
    assert programs.learn(*words).stdout == alone
    (template,) = programs.templates()
    assert {"spoiler", "importer"} <= template["left_out"].keys()
    assert "harmless" not in template["left_out"]
    ended = programs.run(*words, options=("--why",))
    assert ended.stdout == alone
    assert FORKED in ended.stderr
    assert "spoiler" in ended.stderr


#: Program with a finder of its own.
_FINDER = """
import sys, importlib.machinery
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == 'library' else None
    def create_module(self, spec): return None
    def exec_module(self, module): module.VALUE = 'made'
sys.meta_path.insert(0, Finder())
import library
print(library.VALUE)
"""
#: Modules and programs whose imports see what the program did before: name -> a module, and the program.
LATE = {
    "a variable": (
        "import os\nVALUE = os.environ.get('DEMO')\n",
        "import os\nos.environ['DEMO'] = '1'\nimport library\nprint(library.VALUE)\n",
    ),
    "a variable of libraries": (
        "import json\nVALUE = 5\n",
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport library\nprint(library.VALUE)\n",
    ),
    "the command line": (
        "import argparse\nPARSER = argparse.ArgumentParser()\n",
        "import library\nprint(library.PARSER.format_usage())\n",
    ),
    "a command line by its name": (
        "from sys import argv\ndef last(): return argv[-1]\n",
        "import library\nprint(library.last())\n",
    ),
    "a folder of modules before the installed ones": (
        "VALUE = 'installed'\n",
        "import sys\nsys.path.insert(0, 'own')\nimport library\nprint(library.VALUE)\n",
    ),
    "a finder of the program": (
        "VALUE = 'installed'\n",
        _FINDER,
    ),
}


@pytest.mark.parametrize("what", LATE)
def test_imports_see_what_the_program_did_before(programs: Programs, environment: Environment, what: str) -> None:
    module, code = LATE[what]
    environment.install("library", module)
    environment.install("user", "import library\n")
    programs.write("own/library.py", "VALUE = 'own'\n")
    programs.write("script.py", f"import json\n{code}import user\n")
    words = (environment.python, "script.py", "argument")
    alone = programs.alone(*words)
    assert alone.returncode == 0, alone.stderr
    programs.learn(*words)
    for _ in range(2):  # the second one knows what the first has reported
        ended = programs.run(*words, options=("--why",))
        assert FORKED in ended.stderr
        assert ended.stdout == alone.stdout
        programs.await_templates()


def test_a_package_that_is_run_is_not_imported_by_its_template(programs: Programs, environment: Environment) -> None:
    (environment.packages / "tool").mkdir()
    (environment.packages / "tool" / "__init__.py").write_text("import json\n")
    code = "with open('runs', 'a') as file: file.write('run ')\n"
    (environment.packages / "tool" / "__main__.py").write_text(code)
    words = (environment.python, "-m", "tool")
    programs.learn(*words)
    assert FORKED in programs.way(*words)
    assert (programs.folder / "runs").read_text() == "run run "


def test_a_submodule_that_an_earlier_run_did_not_import_can_be_imported(programs: Programs) -> None:
    code = "import sys, importlib\nif sys.argv[1:]:\n import importlib.machinery\n importlib.import_module('json')\n"
    programs.write("script.py", code + "print('done')\n")
    programs.learn("python", "script.py")
    ended = programs.run("python", "script.py", "more", options=("--why",))
    assert (ended.stdout, FORKED in ended.stderr) == ("done\n", True)


def test_a_module_whose_import_fails_or_kills_in_a_template_is_left_out(
    programs: Programs, environment: Environment
) -> None:
    environment.install("fails", "import sys\nif sys.argv[0] != 'script.py': raise ValueError('not here')\n")
    environment.install("kills", "import os, sys\nif sys.argv[0] != 'script.py': os.abort()\n")
    environment.install("harmless", "")
    programs.write("script.py", "import fails, kills, harmless; print('program')")
    words = (environment.python, "script.py")
    assert programs.learn(*words).stdout == "program\n"
    (template,) = programs.templates()
    assert template["left_out"].keys() == {"fails", "kills"}
    ended = programs.run(*words, options=("--why",))
    assert (ended.stdout, FORKED in ended.stderr) == ("program\n", True)


# fault (exec): a library's fork handler crashes -> the program starts as ever, with the reason
@pytest.mark.cc
@pytest.mark.parametrize("when", ["child", "prepare"])
def test_a_library_whose_handler_of_forks_crashes_has_no_template(
    programs: Programs, environment: Environment, when: str
) -> None:
    handlers = "abort, 0, 0" if when == "prepare" else "0, 0, abort"
    source = f"#include <pthread.h>\n#include <stdlib.h>\nvoid begin(void) {{ pthread_atfork({handlers}); }}\n"
    (environment.packages / "handler.c").write_text(source)
    library = environment.packages / "handler.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, environment.packages / "handler.c"], check=True)
    environment.install("crashes", f"import ctypes\nctypes.CDLL({str(library)!r}).begin()\n")
    programs.write("script.py", "import crashes; print('program')")
    words = (environment.python, "script.py")
    assert programs.run(*words).stdout == "program\n"
    wait_until(lambda: all(each["state"] == "ready" for each in programs.templates()), "it is being made for ever")
    ended = programs.run(*words, options=("--why",))
    assert (ended.returncode, ended.stdout) == (0, "program\n")
    if programs.templates():
        assert "crashes" in programs.templates()[0]["left_out"]
    else:
        assert AS_EVER in ended.stderr


# -- programs that leave ----------------------------------------------------------------------------------------------


def test_a_program_that_becomes_a_daemon_outlives_its_caller(programs: Programs) -> None:
    code = (
        "import os, sys, time\n"
        "if os.fork(): sys.exit(3)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.closerange(0, 100)\n"
        "open('number', 'w').write(str(os.getpid()))\n"
        "while not os.path.exists('end'): time.sleep(0.02)\n"
        "open('ended', 'w').close()\n"
    )
    programs.write("leaves.py", code)
    for way in ("first", "second"):
        ended = programs.run("python", "leaves.py")
        assert ended.returncode == 3
        wait_until((programs.folder / "number").exists, "no daemon")
        wait_until((programs.folder / "number").read_text, "no number")
        assert is_there(int((programs.folder / "number").read_text()))
        programs.write("end", "")
        wait_until((programs.folder / "ended").exists, "the daemon was killed")
        for name in ("end", "ended", "number"):
            (programs.folder / name).unlink()
        if way == "first":
            programs.await_templates()
    assert programs.templates()[0]["starts"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_program_that_changes_its_user(programs: Programs) -> None:
    programs.write(
        "changes.py", "import os\nos.setgid(65534); os.setuid(65534)\nprint(os.getresuid())\nos.kill(os.getpid(), 9)"
    )
    programs.learn("python", "changes.py")
    ended = programs.run("python", "changes.py", options=("--why",))
    assert (ended.returncode, ended.stdout) == (-9, "(65534, 65534, 65534)\n")
    assert FORKED in ended.stderr


# -- room, homes, versions --------------------------------------------------------------------------------------------


def test_a_template_beyond_the_bound_of_memory_is_refused_with_the_setting(
    folder: Path, serve: Callable[..., Daemon]
) -> None:
    programs = made(folder, serve(template_capacity_bytes="1MiB"))
    programs.write("script.py", "print('program')")
    programs.run("python", "script.py")
    wait_until(lambda: programs.templates() == [], "a template that is too large stays")
    ended = programs.run("python", "script.py", options=("--why",))
    assert "template_capacity_bytes" in ended.stderr
    assert ended.stdout == "program\n"
    programs.await_no_process()


# fault (exec): templates over their memory -> the longest unused of the largest user ends; too large: refused with
# the setting
def test_the_template_that_was_not_used_for_longest_makes_room(folder: Path, serve: Callable[..., Daemon]) -> None:
    programs = made(folder, serve(template_capacity_bytes="30MiB"))
    for name in ("one", "two", "three"):
        programs.write(f"{name}.py", "import json")
        programs.run("python", f"{name}.py")
        wait_until(
            lambda name=name: any(name in each["name"] and each["state"] == "ready" for each in programs.templates()),
            name,
        )
        if name == "two":
            assert FORKED in programs.way("python", "one.py")
    assert sorted(Path(each["name"]).name for each in programs.templates()) == ["one.py", "three.py"]
    subprocess.run([programs.command(["x"])[0], "exec", "--forget"], env=programs.env, check=True, capture_output=True)
    subprocess.run([programs.command(["x"])[0], "exec", "--forget"], env=programs.env, check=True, capture_output=True)
    programs.await_no_process()


def test_a_template_that_is_not_used_ends(programs: Programs) -> None:
    programs.write("script.py", "print('program')")
    programs.run("python", "script.py", options=("--keep-alive", "0"))
    wait_until(lambda: programs.templates() == [], "it stays")
    programs.await_no_process()


def test_a_home_that_cannot_be_written(programs: Programs) -> None:
    home = {"HOME": "/proc/nothing", "XDG_CACHE_HOME": "/proc/nothing", "TMPDIR": "/proc/nothing"}
    programs.write("script.py", "import json; print('program')")
    before = programs.run("python", "script.py", env=home)
    assert before.stdout == "program\n"
    programs.await_templates()
    ended = programs.run("python", "script.py", options=("--why",), env=home)
    assert (ended.stdout, FORKED in ended.stderr) == ("program\n", True)


@pytest.mark.parametrize("answer", ["refuses", "closes", "is silent"])
def test_a_daemon_of_another_version_lets_a_program_start_as_ever(folder: Path, answer: str) -> None:
    programs = Programs(folder, folder / "run")
    (folder / "run").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "run" / "attach.sock"))
    listener.listen()
    done = threading.Event()

    def serve() -> None:
        conn, _ = listener.accept()
        with conn:
            if answer == "refuses":
                assert Decoder().feed(conn.recv(1000))[0]["op"] == "hello"
                error = {"code": "not_supported", "message": "the client speaks another protocol"}
                conn.sendall(encode({"id": None, "error": error}))
            elif answer == "is silent":
                done.wait(DEADLINE_S)

    thread = threading.Thread(target=serve)
    thread.start()
    programs.write("script.py", "print('program')")
    ended = programs.run("python", "script.py", options=("--why",))
    done.set()
    thread.join()
    listener.close()
    assert (ended.stdout, AS_EVER in ended.stderr) == ("program\n", True)


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_a_program_in_another_mount_namespace_starts_as_ever(programs: Programs) -> None:
    programs.write("script.py", "print('program')")
    command = ["unshare", "--mount", *programs.command(["python", "script.py"], "--why")]
    ended = programs.alone(*command)
    assert (ended.stdout, "another mount namespace" in ended.stderr) == ("program\n", True)


# -- many at once ------------------------------------------------------------------------------------------------------


def crowd(programs: Programs, count: int, at_once: int, harm: Callable[[int, subprocess.Popen[str]], bool]) -> None:
    """Start many programs, each of which writes a file of its own; a harmed one may have written it or not."""
    programs.write(
        "marks.py", "import json, os, sys\nos.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))\nprint(sys.argv[1])\n"
    )
    programs.learn("python", "marks.py", "first")

    def one(number: int) -> None:
        with programs.start("python", "marks.py", f"mark {number}") as process:
            harmed = harm(number, process)
            out, error = process.communicate(timeout=DEADLINE_S)
            if not harmed:
                assert (process.returncode, out, error) == (0, f"mark {number}\n", ""), number

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(one, range(count)))
    wait_until(lambda: not running(programs, "marks.py"), "a program is left")


def zombies_of(programs: Programs) -> list[int]:
    """Return the processes of this daemon's programs that have ended and were not waited for."""
    return [pid for pid in programs.processes() if state_of(pid) == "Z"]


def test_forty_programs_ten_at_once_all_start_from_the_template(programs: Programs) -> None:
    crowd(programs, 40, 10, lambda *_: False)
    (template,) = programs.templates()
    assert template["starts"] == 40
    assert zombies_of(programs) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_programs_fifty_at_once_with_callers_and_templates_killed(programs: Programs) -> None:
    chance = random.Random(34)

    def harm(number: int, process: subprocess.Popen[str]) -> bool:
        if number % 200 == 199:
            for each in programs.templates():
                if each["state"] == "ready":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each["pid"], signal.SIGKILL)
        if number % 10 == 3:
            time.sleep(chance.random() / 10)
            process.kill()
        return number % 10 == 3

    crowd(programs, 1000, 50, harm)
    assert zombies_of(programs) == []
