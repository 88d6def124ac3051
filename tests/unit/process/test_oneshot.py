"""Programs that run once: their words, and that nothing of them stays."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

import pytest

from trims.process.oneshot import run
from trims.process.python import run_code

if TYPE_CHECKING:
    from pathlib import Path

#: Starts a process that holds both outputs, and waits for it.
BEGETS = 'sleep 100 & echo $! > "$0.part"; mv "$0.part" "$0"; wait'


def test_a_program_is_run_to_its_end_without_input_and_its_words_are_kept() -> None:
    code = "print(sys.stdin.read() == '', sys.argv[1:]); sys.stderr.write('one\\ntwo\\nthree\\n'); sys.exit(3)"
    finished = run(run_code(code, "a"), seconds=60.0)
    assert (finished.status, finished.out) == (3, "True ['a']\n")
    assert (finished.last_words(2), finished.last_words(9)) == ("two\nthree", "one\ntwo\nthree")
    assert run(run_code("sys.stdout.buffer.write(b'\\xff')"), seconds=60.0).last_words(1, "none") == "none"


def test_a_program_inherits_the_descriptors_that_it_is_given() -> None:
    fd = os.memfd_create("words")
    assert run(run_code("import os; os.write(int(sys.argv[1]), b'here')", str(fd)), seconds=60.0, fds=[fd]).status == 0
    assert os.pread(fd, 10, 0) == b"here"
    os.close(fd)


def test_a_program_that_takes_too_long_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"did not end within 3 s"):
        run(["sh", "-c", BEGETS, str(tmp_path / "pid")], seconds=3.0)
    try:
        grandchild = os.pidfd_open(int((tmp_path / "pid").read_text()))
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(grandchild, select.POLLIN)
    assert poll.poll(20_000), "a process that a killed program has started goes on"
    os.close(grandchild)


def test_an_interrupt_of_this_process_ends_the_program() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(["sleep", "100"], seconds=90.0)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_program_that_is_none_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/no/program"], seconds=1.0)
