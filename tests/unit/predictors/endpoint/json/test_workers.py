"""Large JSON in turns: who waits for whom, and that small requests wait for none. Processes are stood in for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_predictors.endpoint.bodies import TooLargeBodyError
from trims_predictors.endpoint.generate.openai_requests import CHAT, COMPLETIONS, EMBEDDINGS
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.json import child
from trims_predictors.endpoint.json.process import Done, TooMuchWorkError
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.tensors import Tensor, from_array, join_bytes, to_array

from trims.core.errors import BusyError, CallerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

JOBS = {
    child.READ: child.read, child.WRITE: child.write, child.COUNT: child.count,
    child.PACK: child.pack, child.READ_OPENAI: child.read_openai, child.WRITE_OPENAI: child.write_openai,
    child.READ_EVENT: child.read_event,
}  # fmt: skip


class StandIn:
    """Does jobs here, each when the test lets it."""

    def __init__(self, ledger: list[int]) -> None:
        self.ledger = ledger
        self.may = asyncio.Event()
        self.too_much = False
        self.closed = False

    async def do(self, what: int, head: dict[str, Any], data: Any, limit_s: float) -> Done:
        """Do a job as JsonProcess does."""
        del limit_s
        self.ledger.append(sum(memoryview(each).nbytes for each in data))
        await self.may.wait()
        if self.too_much:
            raise TooMuchWorkError
        told, parts = JOBS[what](json.loads(json.dumps(head)), memoryview(b"".join(data)))
        return Done(told, memoryview(b"".join(parts)))

    async def close(self) -> None:
        """Close as JsonProcess does."""
        self.closed = True


def run(
    work: Callable[[JsonWorkers, list[StandIn]], Awaitable[None]], *, free: bool = True, most: int = 1 << 30
) -> list[int]:
    """Work with two stand-ins; returns the sizes of the jobs in the order in which they began."""
    ledger: list[int] = []

    async def whole() -> None:
        workers, ours = JsonWorkers(most), [StandIn(ledger), StandIn(ledger)]
        workers._processes, workers._idle = list(ours), list(ours)  # type: ignore[arg-type]
        for each in ours:
            if free:
                each.may.set()
        await work(workers, ours)

    asyncio.run(whole())
    return ledger


def request_of(numbers: int) -> memoryview:
    inputs = [{"name": "x", "datatype": "INT64", "shape": [numbers], "data": [7] * numbers}]
    return memoryview(json.dumps({"inputs": inputs}).encode())


LARGE, LARGER, SMALL = request_of(50_000), request_of(60_000), request_of(5)


async def _begun() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_large_requests_are_read_elsewhere_and_small_ones_here() -> None:
    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        for body, numbers in ((SMALL, 5), (LARGE, 50_000)):
            (tensor,) = (await workers.parse("", body, None)).inputs
            assert to_array(tensor).tolist() == [7] * numbers

    assert run(work) == [len(LARGE)]


def test_the_binary_part_of_a_request_stays_here() -> None:
    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        described = {"name": "y", "datatype": "UINT8", "shape": [100_000], "parameters": {"binary_data_size": 100_000}}
        text = json.dumps({**json.loads(bytes(LARGE)), "inputs": [described]}).encode() + b" " * 100_000
        (tensor,) = (await workers.parse("", memoryview(text + bytes(100_000)), str(len(text)))).inputs
        assert tensor.nbytes == 100_000

    assert run(work)[0] < 200_200


def test_small_requests_are_read_while_large_ones_of_the_same_caller_are_in_work() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        large = asyncio.ensure_future(workers.parse("", LARGE, None))
        await _begun()
        assert len((await workers.parse("", SMALL, None)).inputs) == 1
        assert not large.done()
        for each in ours:
            each.may.set()
        await large

    run(work, free=False)


def test_a_caller_has_one_job_done_at_a_time_and_another_is_not_behind_its_line() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        first = [asyncio.ensure_future(workers.parse("a", LARGE, None)) for _ in range(3)]
        await _begun()
        other = asyncio.ensure_future(workers.parse("b", LARGER, None))
        await _begun()
        assert ours[0].ledger == [len(LARGE), len(LARGER)]
        for each in ours:
            each.may.set()
        await asyncio.gather(*first, other)

    assert run(work, free=False) == [len(LARGE), len(LARGER), len(LARGE), len(LARGE)]


def test_callers_take_turns_whatever_each_has_waiting() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        jobs = [asyncio.ensure_future(workers.parse(whose, LARGE, None)) for whose in "aabb"]
        await _begun()
        jobs.append(asyncio.ensure_future(workers.parse("c", LARGER, None)))
        await _begun()
        for each in ours:
            each.may.set()
        await asyncio.gather(*jobs)

    assert run(work, free=False).index(len(LARGER)) == 2


def test_a_wait_that_is_given_up_lets_the_next_one_in() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        jobs = [asyncio.ensure_future(workers.parse("a", LARGE, None)) for _ in range(3)]
        await _begun()
        for each in jobs[:2]:
            each.cancel()
        for each in ours:
            each.may.set()
        assert len((await jobs[2]).inputs) == 1

    assert run(work, free=False) == [len(LARGE), len(LARGE)]


def test_a_line_that_holds_too_many_bytes_takes_no_more() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        jobs = [asyncio.ensure_future(workers.parse("a", LARGE, None)) for _ in range(4)]
        await _begun()
        with pytest.raises(BusyError, match="wait already, the most for this --max-body; send binary tensors"):
            await workers.parse("a", LARGE, None)
        for each in ours:
            each.may.set()
        await workers.parse("b", LARGE, None)
        await asyncio.gather(*jobs)
        await workers.parse("a", LARGE, None)

    run(work, free=False, most=len(LARGE))


def test_what_takes_too_much_is_refused_with_the_remedy() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        for each in ours:
            each.too_much = True
        with pytest.raises(TooLargeBodyError, match=r"of JSON take too much memory.*send binary tensors"):
            await workers.parse("", LARGE, None)
        with pytest.raises(CallerError, match="too large for JSON; ask for them with binary_data: true"):
            await workers.write("", [from_array("y", np.arange(5000))])
        with pytest.raises(TooLargeBodyError, match="BYTES take longer than 60 s to count"):
            await workers.check("", [Tensor("x", "BYTES", (25_000,), bytes(100_000))])

    run(work)


def test_many_outputs_are_written_elsewhere_and_few_where_they_are() -> None:
    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        few, many = from_array("y", np.arange(4096)), from_array("z", np.arange(5000.0))
        assert await workers.write("", []) is None
        assert await workers.write("", [few]) is None
        texts = await workers.write("", [many, few])
        assert texts is not None
        assert [json.loads(bytes(each)) for each in texts] == [list(range(5000)), list(range(4096))]
        assert await workers.write("", [from_array("t", np.array(["x" * 70_000], dtype=object))]) is not None

    run(work)


def test_many_tensors_of_bytes_are_counted_elsewhere_until_few_bytes_are_left() -> None:
    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        tensors = [Tensor(f"x{number}", "BYTES", (10_000,), bytes(40_000)) for number in range(5)]
        tensors.append(Tensor("y", "BOOL", (5 << 20,), bytes(5 << 20)))
        await workers.check("", tensors)
        assert [each.checked for each in tensors[:5]].count(False) == 1
        assert tensors[5].checked

    assert run(work) == [4 * 40_000 + (5 << 20)]


def test_elements_of_grpc_are_packed_elsewhere_and_counted() -> None:
    contents = pb.InferTensorContents(fp64_contents=[0.5] * 20_000).SerializeToString()
    texts = pb.InferTensorContents(bytes_contents=[b"text"] * 20_000).SerializeToString()

    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        tensors = [
            Tensor("x", "FP64", (20_000,), b""),
            Tensor("y", "FP32", (1,), bytes(4)),
            Tensor("z", "BYTES", (20_000,), b""),
        ]
        pieces = [memoryview(contents)[:70], memoryview(contents)[70:]]
        await workers.pack("", tensors, {0: pieces, 2: [memoryview(texts)]})
        assert to_array(tensors[0]).tolist() == [0.5] * 20_000
        assert to_array(tensors[2]).tolist() == [b"text"] * 20_000
        assert [each.checked for each in tensors] == [True, False, True]
        await workers.pack("", tensors, {})
        for dtype, shape in (("FP64", (19_999,)), ("FP32", (20_000,))):
            with pytest.raises(CallerError, match="'x'"):
                await workers.pack("", [Tensor("x", dtype, shape, b"")], {0: pieces})

    assert run(work) == [len(contents) + len(texts), len(contents), len(contents)]


def test_large_bytes_are_counted_elsewhere_once() -> None:
    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        tensors = [Tensor("x", "BYTES", (25_000,), bytes(100_000)), Tensor("y", "BYTES", (1,), bytes(4))]
        await workers.check("", tensors)
        await workers.check("", tensors)
        assert [each.checked for each in tensors] == [True, False]
        with pytest.raises(CallerError, match="'x' has 25000 elements; its shape says 7"):
            await workers.check("", [Tensor("x", "BYTES", (7,), bytes(100_000))])

    assert run(work) == [100_000, 100_000]


def test_its_processes_end_with_it() -> None:
    async def work(workers: JsonWorkers, ours: list[StandIn]) -> None:
        await workers.close()
        assert all(each.closed for each in ours)

    run(work)


@pytest.mark.parametrize("texts", [["one", "two"], ["word"] * 20_000])
def test_a_request_of_openai_is_the_same_wherever_it_is_read(texts: list[str]) -> None:
    body = memoryview(json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode())

    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        request = await workers.read_openai("", EMBEDDINGS, body)
        assert (request.model, request.as_base64, request.trouble) == ("m", True, "")
        assert to_array(request.inputs[0]).tolist() == [each.encode() for each in texts]
        refused = await workers.read_openai("", CHAT, body)
        assert "'input'" in refused.trouble
        with pytest.raises(CallerError, match="model"):
            await workers.read_openai("", EMBEDDINGS, memoryview(json.dumps(texts).encode()))

    assert len(run(work)) == (0 if len(texts) == 2 else 3)


def test_a_large_event_in_structured_mode_is_read_elsewhere() -> None:
    event = {"id": "1", "source": "/a", "type": "t", "specversion": "1.0", "data": list(range(50_000))}

    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        found = await workers.read_event("", memoryview(json.dumps(event).encode()))
        assert found.value() == event
        with pytest.raises(CallerError, match="no attribute id"):
            await workers.read_event("", memoryview(json.dumps({**event, "id": ""}).encode()))

    assert len(run(work)) == 2


@pytest.mark.parametrize("rows", [2, 20_000])
def test_items_of_openai_are_the_same_wherever_they_are_written(rows: int) -> None:
    vectors = from_array("embedding", np.tile(np.array([0.5, 1.0], np.float32), (rows, 1)))
    texts = Tensor("generated_text", "BYTES", (rows,), join_bytes([b"a"] * rows))

    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        found = json.loads(b"[%s]" % await workers.write_openai("", EMBEDDINGS, {"base64": False}, [vectors]))
        assert [each["embedding"] for each in found] == [[0.5, 1.0]] * rows
        assert [each["index"] for each in found] == list(range(rows))
        choices = json.loads(b"[%s]" % await workers.write_openai("", COMPLETIONS, {}, [texts, texts]))
        assert [each["text"] for each in choices] == ["a"] * rows

    assert len(run(work)) == (0 if rows == 2 else 2)


def test_values_of_one_element_are_bare_and_others_are_lists() -> None:
    large = from_array("y", np.arange(10_000))

    async def work(workers: JsonWorkers, _: list[StandIn]) -> None:
        one = Tensor("x", "BYTES", (1,), join_bytes([b"text"]))
        assert list(await workers.write_values("", [one, from_array("y", np.array([1, 2]))])) == [b'"text"', b"[1,2]"]
        values = [json.loads(bytes(each)) for each in await workers.write_values("", [one, large])]
        assert values == ["text", list(range(10_000))]

    assert len(run(work)) == 1
