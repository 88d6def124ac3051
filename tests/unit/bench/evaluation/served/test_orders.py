"""Orders of evaluations as clients give them; whole ones are in tests/e2e/test_evaluations_over_http.py."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from trims_bench.evaluation.served.orders import Evaluations, _words

from trims.core.errors import BusyError, CallerError, PredictorError

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Errand:
    """A command that prints lines and ends when it may."""

    def __init__(self, lines: list[str], error: Exception | None) -> None:
        self._lines, self._error = lines, error
        self.go_on = asyncio.Event()

    async def lines(self, take: Callable[[str], None]) -> None:
        for line in self._lines:
            take(line)
        await self.go_on.wait()
        if self._error is not None:
            raise self._error

    def interrupt(self) -> None:
        self.go_on.set()

    def end(self) -> None:
        self.go_on.set()


class Errands:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.begun: list[tuple[str, ...]] = []

    def begin(self, *words: str) -> Errand:
        self.begun.append(words)
        line = {"done": 1, "total": 2, "sample": {"tier": "cpu"}}
        self.errand = Errand([json.dumps(line)], self.error)
        return self.errand

    async def ask(self, *words: str) -> str:
        self.begun.append(words)
        return json.dumps([{"id": words[-1], "ended": True}])


def test_an_order_becomes_a_command_line() -> None:
    order = {"model": "--m", "from": ["disk", "cpu"], "how": ["hot"], "batch": [1, 2], "repeat": 3, "idle": 0.5}
    assert _words(order) == (
        "--m", ["--from=disk,cpu", "--how=hot", "--batch=1,2", "--repeat=3", "--idle=0.5"], ["--m"], "",
    )  # fmt: skip
    assert _words({"model": "m", "request": {"inputs": []}})[2] == ["m", '{"inputs": []}']
    assert _words({"resume": "1"}) == ("1", ["--resume=1"], [], "1")


def test_a_load_becomes_a_command_line() -> None:
    order = {"model": "m", "models": ["n"], "batch": [4], "scenario": {"name": "batched", "duration": 5.5, "seed": 3}}
    assert _words(order) == (
        "m", ["--batch=4", "--scenario=batched", "--duration=5.5", "--seed=3"], ["m", "n"], "",
    )  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "m", "models": ["n"]},
        {"model": "m", "scenario": {}},
        {"resume": "1", "scenario": {"name": "closed"}},
        {"model": "m", "scenario": {"name": "replay", "arrivals": "/etc/passwd"}},
        {"model": "m", "scenario": {"name": "closed", "endpoint": "http://elsewhere"}},
        {"model": "m", "scenario": {"name": "closed"}, "request": {}},
        {"model": "m", "scenario": "closed"},
        {"model": "m", "scenario": {"name": "poisson", "rate": "a"}},
        {"model": "m", "scenario": {"name": "poisson"}},
        {"model": "m", "scenario": {"name": "x"}},
        {"model": "m", "from": ["moon"]},
        {"model": "m", "repeat": 0},
        {"model": "m", "batch": [0]},
        {"model": "m", "level": "x"},
        {"model": "m", "how": []},
        {},
        {"model": 1},
        {"model": "m", "from": "cpu"},
        {"model": "m", "repeat": 1.5},
        {"model": "m", "resume": "1"},
        {"resume": "../x"},
        {"resume": "-x"},
    ],
)
def test_a_wrong_order_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CallerError):
        _words(wrong)


def test_progress_is_kept_and_a_second_one_is_refused() -> None:
    async def work() -> tuple[dict[str, Any], dict[str, Any]]:
        errands = Errands()
        given = Evaluations(errands, ["--environments=x"])  # type: ignore[arg-type]
        begun = await given.begin({"model": "m"})
        assert errands.begun[0][-4:] == ("--environments=x", "--json-lines", "--", "m")
        with pytest.raises(BusyError):
            await given.begin({"model": "m"})
        await asyncio.sleep(0)
        running = await given.read(begun["id"])
        errands.errand.go_on.set()
        while (await given.listed())["running"] is not None:
            await asyncio.sleep(0)
        found = await given.read(begun["id"])
        await given.close()
        return running, found

    running, found = asyncio.run(work())
    assert (running["state"], running["done"], running["total"]) == ("running", 1, 2)
    assert found["state"] == "ended"


def test_a_trace_that_no_sample_has_is_looked_for_among_recorded_files() -> None:
    class Recorded(Errands):
        async def ask(self, *words: str) -> str:
            self.begun.append(words)
            if words[0] == "report":
                raise CallerError("no evaluation has it")
            return json.dumps({"trace_id": TRACE})

    errands = Recorded()
    given = Evaluations(errands)  # type: ignore[arg-type]
    assert asyncio.run(given.trace(TRACE)) == {"trace_id": TRACE}
    assert errands.begun == [("report", "--json", f"--trace={TRACE}"), ("trace", "--json", f"--id={TRACE}")]


@pytest.mark.parametrize("wrong", ["", TRACE[1:], TRACE.upper(), f"{TRACE}\n", "--help"])
def test_what_is_no_id_of_a_trace_is_refused_before_a_command_runs(wrong: str) -> None:
    errands = Errands()
    with pytest.raises(CallerError, match="no id of a trace"):
        asyncio.run(Evaluations(errands).trace(wrong))  # type: ignore[arg-type]
    assert errands.begun == []


def test_traces_are_listed_up_to_a_limit() -> None:
    errands = Errands()
    given = Evaluations(errands)  # type: ignore[arg-type]
    assert list(asyncio.run(given.traces(3))) == ["traces"]
    assert errands.begun == [("trace", "--list", "--json", "--limit=3")]
    for wrong in (0, 501):
        with pytest.raises(CallerError, match="from 1 to 500"):
            asyncio.run(given.traces(wrong))


def test_an_error_and_a_cancellation_are_told() -> None:
    async def ended(error: Exception | None, *, cancel: bool) -> dict[str, Any]:
        errands = Errands(error)
        given = Evaluations(errands)  # type: ignore[arg-type]
        begun = await given.begin({"model": "m"})
        await asyncio.sleep(0)
        if cancel:
            await given.remove(begun["id"])
        else:
            errands.errand.go_on.set()
        while (await given.listed())["running"] is not None:
            await asyncio.sleep(0)
        return await given.read(begun["id"])

    failed = asyncio.run(ended(PredictorError("it broke"), cancel=False))
    assert (failed["state"], failed["code"]) == ("failed", "predictor")
    assert asyncio.run(ended(PredictorError("it was interrupted"), cancel=True))["state"] == "cancelled"


def test_a_cancelled_one_that_is_ending_is_not_removed() -> None:
    class Slow(Errand):
        def interrupt(self) -> None:
            """Take a while."""

    class SlowErrands(Errands):
        def begin(self, *words: str) -> Errand:
            self.begun.append(words)
            self.errand = Slow([], None)
            return self.errand

    async def work() -> None:
        errands = SlowErrands()
        given = Evaluations(errands)  # type: ignore[arg-type]
        begun = await given.begin({"model": "m"})
        assert (await given.remove(begun["id"]))["state"] == "cancelled"
        assert (await given.read(begun["id"]))["state"] == "ending"
        with pytest.raises(BusyError, match="is ending"):
            await given.remove(begun["id"])
        errands.errand.go_on.set()
        while (await given.listed())["running"] is not None:
            await asyncio.sleep(0)
        assert (await given.read(begun["id"]))["state"] == "cancelled"
        assert await given.remove(begun["id"]) == {}
        await given.close()

    asyncio.run(work())


def test_one_that_was_cancelled_before_anything_was_kept_is_read() -> None:
    class Empty(Errands):
        async def ask(self, *words: str) -> str:
            if "--" in words:
                raise CallerError("no evaluation has this id")
            return "[]"

    async def work() -> tuple[str, str]:
        given = Evaluations(Empty())  # type: ignore[arg-type]
        begun = await given.begin({"model": "m"})
        await given.remove(begun["id"])
        while (await given.listed())["running"] is not None:
            await asyncio.sleep(0)
        with pytest.raises(CallerError):
            await given.read("another")
        return begun["id"], str((await given.read(begun["id"]))["state"])

    assert asyncio.run(work())[1] == "cancelled"


def test_the_end_of_the_endpoint_ends_what_runs() -> None:
    async def work() -> str:
        given = Evaluations(Errands())  # type: ignore[arg-type]
        begun = await given.begin({"model": "m"})
        await given.close()
        await given.close()
        return str((await given.read(begun["id"]))["state"])

    assert asyncio.run(work()) == "cancelled"
