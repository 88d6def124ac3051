"""Output of predictors: passed on by line with its process, and bounded however much that is."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from trims_predictors.ipc import output_pipes
from trims_predictors.ipc.output_pipes import BURST_BYTES, BYTES_PER_S, LINE_BYTES, Outputs, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    import pytest


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in an event loop."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


class Log:
    """Lines that were passed on, and a clock that a test sets."""

    def __init__(self) -> None:
        self.text = ""
        self.now_s = 0.0
        self.outputs = Outputs(self._write, lambda: self.now_s, line=self._line)

    @staticmethod
    def _line(whose: str, facts: Mapping[str, str], text: str) -> str:
        return f"[{' '.join([whose, *facts.values()])}] {text}"

    def _write(self, text: str) -> None:
        self.text += text

    async def until(self, met: Callable[[], bool]) -> None:
        for _ in range(2000):
            if met():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"not within ten seconds; passed on: {self.text[-500:]!r}")


@in_a_loop
async def test_lines_are_passed_on_with_their_process_once_they_are_whole() -> None:
    log = Log()
    output = log.outputs.open("predictor 7")
    os.write(output.fileno(), b"one\ntw")
    await log.until(lambda: "one" in log.text)
    assert log.text == "[predictor 7] one\n"
    output.whose = "predictor 8"
    os.write(output.fileno(), b"o\n\nend")
    output.given()
    await log.until(lambda: not len(log.outputs))
    assert log.text == "[predictor 7] one\n[predictor 8] two\n[predictor 8] \n[predictor 8] end\n"


@in_a_loop
async def test_what_would_move_a_cursor_or_is_no_text_is_replaced() -> None:
    log = Log()
    output = log.outputs.open("p")
    os.write(output.fileno(), b"\x1b[2Ja\tb\xffc\r\n" + "grün".encode() + b"\n")
    output.close()
    assert log.text == "[p] ?[2Ja    b�c\n[p] grün\n"


@in_a_loop
async def test_a_line_without_an_end_is_cut() -> None:
    log = Log()
    output = log.outputs.open("p")
    os.write(output.fileno(), b"x" * (2 * LINE_BYTES + 5))
    output.close()
    assert [len(line) for line in log.text.splitlines()] == [4 + LINE_BYTES, 4 + LINE_BYTES, 4 + 5]


@in_a_loop
async def test_of_a_flood_little_is_passed_on_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_pipes, "_TURN_S", 0.001)
    log = Log()
    output = log.outputs.open("p")
    line, lines = b"y" * 99 + b"\n", 5 * BURST_BYTES // 100

    def flood() -> None:
        for _ in range(lines):
            os.write(output.fileno(), line)

    await asyncio.to_thread(flood)  # it waits for the pipe, and ends all the same
    told = BURST_BYTES // (100 + len("[p] "))
    await log.until(lambda: output._left_out == lines - told)
    assert len(log.text) <= BURST_BYTES
    log.now_s += 1.0
    os.write(output.fileno(), b"after\n")
    output.close()
    assert log.text.endswith(f"[p] {lines - told} lines are left out: it prints more than "
                             f"{BYTES_PER_S >> 10} KiB a second\n[p] after\n")  # fmt: skip


@in_a_loop
async def test_a_flood_leaves_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading pauses between two turns; meanwhile the process that floods waits for its pipe."""
    log = Log()
    output = log.outputs.open("p")
    stop = False

    def flood() -> None:
        while not stop:
            os.write(output.fileno(), b"z" * 65536)

    monkeypatch.setattr(output_pipes, "_TURN_S", 60.0)
    flooding = asyncio.ensure_future(asyncio.to_thread(flood))
    await log.until(lambda: output._later is not None)
    stop = True
    while not flooding.done():  # the write that waits
        output._read()
        await asyncio.sleep(0.005)
    log.outputs.close()
    assert len(log.outputs) == 0


@in_a_loop
async def test_closing_twice_or_after_the_end_is_nothing() -> None:
    log = Log()
    output = log.outputs.open("p")
    os.write(output.fileno(), b"last words")
    log.outputs.close()
    output.close()
    output.given()
    assert log.text == "[p] last words\n"


@in_a_loop
async def test_without_another_place_lines_go_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    made = Outputs()
    os.write(made.open("p").fileno(), b"hello\n")
    made.close()
    assert re.fullmatch(r"[\dT:.-]+Z INFO p: hello\n", capfd.readouterr().err)


@in_a_loop
async def test_lines_name_what_the_process_works_on() -> None:
    log = Log()
    output = log.outputs.open("p")
    output.facts["model"] = "bert"
    os.write(output.fileno(), b"one\n")
    await log.until(lambda: "one" in log.text)
    output.facts["request"] = "7f"
    os.write(output.fileno(), b"two\n")
    output.given()
    await log.until(lambda: not len(log.outputs))
    assert log.text == "[p bert] one\n[p bert 7f] two\n"


@in_a_loop
async def test_empty_lines_count_with_what_stands_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_pipes, "_TURN_S", 0.001)
    log = Log()
    output = log.outputs.open("predictor 4711")
    await asyncio.to_thread(lambda: [os.write(output.fileno(), b"\n" * 60_000) for _ in range(10)])
    told = BURST_BYTES // len("[predictor 4711] \n")
    await log.until(lambda: output._left_out == 600_000 - told)
    assert len(log.text) <= BURST_BYTES
    output.close()


def test_a_log_that_is_not_read_holds_up_no_loop_and_loses_what_is_too_much() -> None:
    ours, theirs = os.pipe()
    writer = Writer(theirs)
    for number in range(40):
        writer(f"{number:07}\n" * 8192)  # 64 KiB each, of which the pipe takes one
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(iter(lambda: os.read(ours, 1 << 20), b"")))
    reader.start()
    while writer._waiting_bytes:
        time.sleep(0.001)
    writer("after\n")  # there is room for it now, and for what was left out before it
    for _ in range(2):
        writer.close()
    os.close(theirs)
    reader.join()
    os.close(ours)
    lines = b"".join(read).splitlines()
    left_out = b" lines are left out: this log is not read fast enough"
    told = [int(line.removesuffix(left_out).split()[-1]) for line in lines if line.endswith(left_out)]
    assert told
    assert sum(told) + len(lines) - len(told) - 1 == 40 * 8192
    assert lines[-1] == b"after"


@in_a_loop
async def test_at_a_terminal_all_lines_are_passed_on_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    made = Outputs(plain=True)
    output = made.open("p")
    output.whose = "p 7"
    text = "".join(f"{'-' * 99}{number}\n" for number in range(300))
    os.write(output.fileno(), text.encode())
    output.given()
    while len(made):
        await asyncio.sleep(0.001)
    assert capsys.readouterr().err == text
