"""Converter children that misbehave: every moment x every way to die -> the error the store gets, and nothing left.

What is left is counted by the suite's own fixture (descriptors, threads, processes) and here (temporary files).
"""

# fault (converters): killed, crashed, silent, or flooding its output -> `conversion` with file and cause; nothing
# stays
# fault (converters): over its memory or time limit -> `conversion` with the limit

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ArtifactError, ConversionError, InternalError, NotSupportedError, TrimsError
from trims.formats import plugins
from trims.formats.base import Artifact, Limits
from trims.formats.conversion.conversion import start_conversion
from trims.formats.conversion.scratch import sweep_scratch
from trims.testing.converters import convert, write_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = Limits(memory_bytes=1 << 30, time_s=60.0)
SOCKET = "int(sys.argv[2])"

FAULTY = f"""
import ctypes, json, os, signal, socket, subprocess, sys, tempfile, time
from pathlib import Path
from trims.core.errors import ArtifactError
from trims.image.plan import SourceTensor, plan_image

def frame(data):
    os.write({SOCKET}, data)

def in_file(nbytes):
    with socket.socket(fileno=os.dup({SOCKET})) as sock:
        socket.send_fds(sock, [json.dumps({{"message_in_file": nbytes}}).encode()], [os.memfd_create("long")])

def say(text):
    print(text, file=sys.stderr, flush=True)

def note_pid(options, pid):
    part = Path(options["note"] + ".part")
    part.write_text(str(pid))
    part.rename(options["note"])

WAYS = dict(
    nothing=lambda options: None,
    raises=lambda options: {{}}["missing"],
    refuses=lambda options: (_ for _ in ()).throw(ArtifactError("m.faulty: byte 7 is wrong")),
    imports=lambda options: __import__("no_such_framework"),
    exits=lambda options: (say("goodbye"), sys.exit(3)),
    leaves=lambda options: os._exit(0),
    is_killed=lambda options: os.kill(os.getpid(), signal.SIGKILL),
    crashes=lambda options: ctypes.string_at(0),
    aborts=lambda options: os.abort(),
    bus_error=lambda options: os.kill(os.getpid(), signal.SIGBUS),
    eats=lambda options: bytearray(4 << 30),
    eats_in_c=lambda options: (say("terminate called after throwing an instance of 'std::bad_alloc'"), os.abort()),
    hangs_up=lambda options: (os.close({SOCKET}), time.sleep(1000)),
    babbles=lambda options: (frame(b"hello"), time.sleep(1000)),
    lists=lambda options: (frame(b"[1]"), time.sleep(1000)),
    nests=lambda options: (frame(b"[" * 90000), time.sleep(1000)),
    overflows=lambda options: (frame(b" " * 100000 + b"{{}}"), time.sleep(1000)),
    boasts=lambda options: (in_file(4294967295), time.sleep(1000)),
    half=lambda options: (frame(b'{{"planned_bytes": '), os._exit(0)),
    floods=lambda options: [say("x" * 1000) for _ in range(10000)] and os._exit(9),
    spins=lambda options: (note_pid(options, os.getpid()), all(True for _ in iter(int, 1))),
    sleeps_deaf=lambda options: (
        signal.signal(signal.SIGTERM, signal.SIG_IGN), note_pid(options, os.getpid()), time.sleep(1000)),
    stops=lambda options: (note_pid(options, os.getpid()), os.kill(os.getpid(), signal.SIGSTOP)),
    litters=lambda options: Path(tempfile.mkdtemp(), "large").write_text("x") and os.abort(),
    begets=lambda options: note_pid(options, subprocess.Popen(["sleep", "1000"]).pid),
    begets_and_dies=lambda options: (
        note_pid(options, subprocess.Popen(["sleep", "1000"]).pid), os._exit(5)),
    shuts_stderr=lambda options: os.close(2),
    forks=lambda options: os.waitpid(child, 0) if (child := os.fork()) else {{}}["missing"],
)
for name, size in dict(true=True, minus=-1, text="9", float=1.5, huge=1 << 60, none=None).items():
    WAYS["says_" + name] = lambda options, size=size: (
        frame(json.dumps({{"planned_bytes": size, "progress": size}} if options["when"] == "write"
              else {{"planned_bytes": size}}).encode()), time.sleep(1000))

class Converter:
    format = "faulty"
    version = 1
    host_specific = False
    def needs_child(self, options): return True
    def frameworks(self, options): return ()
    def claims(self, main, first_bytes): return False
    def files(self, main, options): return (main,)
    def plan(self, artifact):
        options = artifact.options
        if options["when"] == "plan":
            WAYS[options["way"]](options)
        def fill(place):
            if options["when"] == "write":
                WAYS[options["way"]](options)
            place[:] = bytes(range(8))
        return plan_image([SourceTensor("w", "U8", (8,), fill=fill)])
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The misbehaving converter, installed; temporary files go to an own folder, which must be empty afterwards."""
    site, temporary = tmp_path / "site", tmp_path / "temporary"
    site.mkdir()
    temporary.mkdir()
    write_plugin(site, "faulty_converter_of_test", FAULTY, faulty="Converter")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    plugins._entry_points.cache_clear()
    (tmp_path / "m.faulty").write_bytes(b"x")
    yield tmp_path
    plugins._entry_points.cache_clear()
    sys.modules.pop("faulty_converter_of_test", None)
    assert os.listdir(temporary) == []


def artifact(folder: Path, way: str, when: str) -> Artifact:
    options = {"way": way, "when": when, "note": str(folder / "note")}
    return Artifact("faulty", (folder / "m.faulty",), options)


def run(folder: Path, way: str, when: str, limits: Limits = LIMITS) -> Path:
    return convert(artifact(folder, way, when), folder / "image", limits=limits)


DEATHS: dict[str, tuple[type[TrimsError], str]] = {
    "raises": (ConversionError, "KeyError: 'missing'"),
    "refuses": (ArtifactError, r"m\.faulty: byte 7 is wrong"),
    "imports": (NotSupportedError, "has no 'no_such_framework'; install it there: .* -m pip install no_such_framework"),
    "exits": (ConversionError, "exited with status 3 and without an answer; its last words: goodbye"),
    "leaves": (ConversionError, "exited with status 0 and without an answer"),
    "is_killed": (ConversionError, "was ended by SIGKILL .by the kernel for lack of memory, or by another process"),
    "crashes": (ConversionError, "(?s)was ended by SIGSEGV; its last words: Fatal Python error.*string_at"),
    "aborts": (ConversionError, "was ended by SIGABRT"),
    "bus_error": (ConversionError, "was ended by SIGBUS"),
    "eats": (
        ConversionError,
        r"exceeded its memory limit of 1\.0 GiB \(raise the setting converter_memory_bytes\): .*MemoryError",
    ),
    "eats_in_c": (
        ConversionError,
        r"exceeded its memory limit of 1\.0 GiB \(raise the setting converter_memory_bytes\): .*bad_alloc",
    ),
    "babbles": (ConversionError, "sent what is no message .a message is not JSON"),
    "lists": (ConversionError, "sent what is no message .a message is a list; an object is expected"),
    "nests": (ConversionError, "sent what is no message .a message is not JSON"),
    "overflows": (ConversionError, "sent what is no message .a message is longer than 98304 bytes"),
    "boasts": (ConversionError, "sent what is no message .a message of 4294967295 bytes is too long; 262144 are"),
    "half": (ConversionError, "sent what is no message .a message is not JSON"),
    "floods": (ConversionError, "(?s)exited with status 9 and without an answer; its last words: x.*x{1000}"),
    "litters": (ConversionError, "was ended by SIGABRT"),
    "begets_and_dies": (ConversionError, "exited with status 5"),
}


@pytest.mark.parametrize("when", ["plan", "write"])
@pytest.mark.parametrize("way", DEATHS)
def test_a_child_that_dies_or_babbles_is_an_error_that_names_the_file_and_the_death(
    faulty: Path, way: str, when: str
) -> None:
    error, words = DEATHS[way]
    with pytest.raises(error, match=words) as caught:
        run(faulty, way, when)
    assert type(caught.value) is error
    assert "m.faulty" in str(caught.value)
    assert len(str(caught.value)) < 6000


@pytest.mark.parametrize("lie", ["true", "minus", "text", "float", "huge", "none"])
@pytest.mark.parametrize(("when", "field"), [("plan", "planned_bytes"), ("write", "progress")])
def test_a_size_that_is_none_is_not_believed(faulty: Path, when: str, field: str, lie: str) -> None:
    with pytest.raises(ConversionError, match=f"sent {field} = "):
        convert(artifact(faulty, f"says_{lie}", when), faulty / "image", limits=LIMITS, on_progress=lambda _: None)


def test_a_child_that_hangs_up_is_killed(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims.formats.conversion.child_process._BURIAL_S", 0.05)
    with pytest.raises(ConversionError, match="hung up without an answer"):
        run(faulty, "hangs_up", "plan")


@pytest.mark.parametrize("when", ["plan", "write"])
@pytest.mark.parametrize("way", ["spins", "stops", "sleeps_deaf"])
def test_a_child_that_takes_too_long_is_killed(faulty: Path, way: str, when: str) -> None:
    with pytest.raises(ConversionError, match="not done within the time limit of 1 s"):
        run(faulty, way, when, Limits(memory_bytes=1 << 30, time_s=1.0))


def test_a_child_that_shuts_its_standard_error_is_heard_to_the_end(faulty: Path) -> None:
    assert run(faulty, "shuts_stderr", "plan").stat().st_size > 0


@pytest.mark.parametrize("when", ["plan", "write"])
def test_a_fork_of_a_converter_that_raises_ends_and_answers_nothing(faulty: Path, when: str) -> None:
    limits = Limits(memory_bytes=1 << 30, time_s=20.0)
    assert run(faulty, "forks", when, limits).read_bytes() == run(faulty, "nothing", when, limits).read_bytes()


def test_what_a_child_begot_dies_with_it(faulty: Path) -> None:
    with start_conversion(artifact(faulty, "begets", "plan"), limits=LIMITS) as conversion:
        conversion.plan()
        grandchild = os.pidfd_open(int((faulty / "note").read_text()))
    assert_ends(grandchild)


def test_what_a_child_begot_dies_though_its_lifeline_ends_last(faulty: Path) -> None:
    """The kernel closes the descriptors of a daemon that was killed one after the other."""
    with start_conversion(artifact(faulty, "begets", "plan"), limits=LIMITS) as conversion:
        conversion.plan()
        grandchild = os.pidfd_open(int((faulty / "note").read_text()))
        assert conversion._child is not None
        conversion._child._child.socket.shutdown(socket.SHUT_WR)
        assert_ends(grandchild)


@pytest.mark.parametrize("way", ["spins", "stops", "sleeps_deaf"])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_from_another_thread_ends_the_child_at_once(faulty: Path, way: str, end: str) -> None:
    with start_conversion(artifact(faulty, way, "plan"), limits=LIMITS) as conversion:
        errors: list[BaseException] = []

        def plan() -> None:
            try:
                conversion.plan()
            except ConversionError as error:
                errors.append(error)

        planner = threading.Thread(target=plan)
        planner.start()
        child = os.pidfd_open(pid_noted(faulty))
        getattr(conversion, end)()
        planner.join()
        assert_ends(child)
        why = {"cancel": "no request waits for it any more", "close": "it was closed before its end"}[end]
        assert [str(error) for error in errors] == [f"{faulty / 'm.faulty'}: its conversion was stopped: {why}"]
        with pytest.raises(ConversionError, match="its conversion was stopped"):
            conversion.write(0)


# fault (converters): killed while it waits for room -> `conversion`
def test_a_child_killed_while_it_waits_for_room_is_noticed_when_it_is_wanted(faulty: Path) -> None:
    with start_conversion(artifact(faulty, "begets", "plan"), limits=LIMITS) as conversion:
        conversion.plan()
        group = os.getpgid(int((faulty / "note").read_text()))
        os.killpg(group, signal.SIGKILL)
        with (faulty / "image").open("w+b") as image, pytest.raises(ConversionError, match="ended by SIGKILL"):
            conversion.write(image.fileno())


def test_after_writing_no_child_can_reach_the_image(faulty: Path) -> None:
    with start_conversion(artifact(faulty, "begets", "write"), limits=LIMITS) as conversion:
        nbytes = conversion.plan()
        with (faulty / "image").open("w+b") as image:
            image.truncate(nbytes)
            conversion.write(image.fileno())
            assert_ends(os.pidfd_open(int((faulty / "note").read_text())))
            with pytest.raises(InternalError, match="twice"):
                conversion.write(image.fileno())


def test_progress_that_raises_ends_the_child(faulty: Path) -> None:
    def stop(_: int) -> None:
        raise RuntimeError("enough")

    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(8 << 20)}, faulty / "m.pt")
    large = Artifact("torch", (faulty / "m.pt",))
    with pytest.raises(RuntimeError, match="enough"):
        convert(large, faulty / "image", on_progress=stop)


def test_an_interpreter_that_does_not_start_is_named(faulty: Path) -> None:
    silent = artifact(faulty, "nothing", "plan")
    for python, error, words in (
        (faulty / "missing", NotSupportedError, "no converter can be started with .*missing"),
        (Path("/bin/false"), ConversionError, "exited with status 1 and without an answer"),
    ):
        with start_conversion(silent, python=python, limits=LIMITS) as conversion, pytest.raises(error, match=words):
            conversion.plan()


def test_a_conversion_that_was_never_planned_costs_nothing(faulty: Path) -> None:
    conversion = start_conversion(artifact(faulty, "nothing", "plan"), limits=LIMITS)
    conversion.close()
    conversion.close()
    with pytest.raises(ConversionError, match="its conversion was stopped: it was closed"):
        conversion.plan()


def test_calls_out_of_order_are_our_bug_and_said_so(faulty: Path) -> None:
    with start_conversion(artifact(faulty, "nothing", "plan"), limits=LIMITS) as conversion:
        with pytest.raises(InternalError, match="before plan"):
            conversion.write(0)
        conversion.plan()
        with pytest.raises(InternalError, match="twice"):
            conversion.plan()


PARENT = """
import sys
from pathlib import Path
from trims.formats.base import Artifact, Limits
from trims.formats.conversion.conversion import start_conversion
folder = Path(sys.argv[1])
options = {"way": sys.argv[2], "when": "plan", "note": str(folder / "note")}
start_conversion(Artifact("faulty", (folder / "m.faulty",), options), limits=Limits()).plan()
print("planned", flush=True)
sys.stdin.read()
"""


# fault (converters): its daemon is killed -> nothing stays but sessions of their own (`setsid`)
@pytest.mark.parametrize("way", ["begets", "spins", "sleeps_deaf"])
def test_children_die_with_a_daemon_that_is_killed_and_what_they_left_is_swept(
    faulty: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "TMPDIR": str(faulty)}
    command = [sys.executable, "-c", PARENT, str(faulty), way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        child = os.pidfd_open(pid_noted(faulty))
        parent.kill()
        assert_ends(child)
    monkeypatch.setattr(tempfile, "tempdir", str(faulty))
    (left,) = faulty.glob("trims-child-*")
    assert sweep_scratch() == 1
    assert not left.exists()


def pid_noted(folder: Path) -> int:
    """The process that the child noted; waits for the note."""
    while not (folder / "note").exists():  # the test's own time limit ends a wait in vain
        os.sched_yield()
    return int((folder / "note").read_text())


def assert_ends(pidfd: int) -> None:
    """Wait until the process is dead; closes the descriptor."""
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        assert poll.poll(20_000), "the process is still alive"
    finally:
        os.close(pidfd)
