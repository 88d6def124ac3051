"""Requests of one gRPC stream: answered at once, within bounds, and ended with their client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from nursing import until
from served_grpc import MIB, StandIn, call, refusal
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import streams

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("grpc_poller")
REQUEST = pb.ModelInferRequest(model_name="m")


def named(*ids: str) -> Iterator[pb.ModelInferRequest]:
    for each in ids:
        made = pb.ModelInferRequest(model_name="other" if each.startswith("wrong") else "m", id=each)
        made.inputs.add(name=each, datatype="FP32", shape=[0])
        made.raw_input_contents.append(b"")
        yield made


def test_every_answer_in_a_stream_says_that_it_is_the_final_one() -> None:
    async def work(stub: Any) -> Any:
        return [each async for each in stub.ModelStreamInfer(named("a", "wrong", "b"))]

    answers = call(StandIn(), work)
    assert [each.infer_response.parameters["triton_final_response"].bool_param for each in answers] == [True] * 3
    assert [(each.infer_response.id, each.error_message) for each in answers] == [
        ("a", ""), ("wrong", "no model"), ("b", ""),
    ]  # fmt: skip
    assert "triton_final_response" not in call(StandIn(), lambda stub: stub.ModelInfer(REQUEST)).parameters


def test_requests_of_a_stream_run_at_once_and_are_answered_in_their_order() -> None:
    service, last, ran = StandIn(), asyncio.Event(), []

    async def hold(tensors: list[Any]) -> None:
        """Let the first request wait until the last one runs."""
        if tensors[0].name == "c":
            last.set()
        await asyncio.wait_for(last.wait(), 60.0)
        if tensors[0].name == "a":
            await asyncio.sleep(0.01)
        ran.append(tensors[0].name)

    service.hold = hold

    async def work(stub: Any) -> Any:
        return [each.infer_response.id async for each in stub.ModelStreamInfer(named("a", "b", "wrong", "c"))]

    assert call(service, work) == ["a", "b", "wrong", "c"]
    assert ran[-1] == "a"


def test_requests_of_a_stream_beyond_the_bound_wait_for_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_AT_ONCE", 4)
    service = StandIn()

    async def hold(_: list[Any]) -> None:
        await asyncio.sleep(0.001)

    service.hold = hold

    async def work(stub: Any) -> Any:
        return [each.infer_response.id async for each in stub.ModelStreamInfer(named(*map(str, range(100))))]

    assert list(map(int, call(service, work))) == list(range(100))
    assert service.most == 4


# fault (endpoint): a stream is not read, or cancelled -> no more is read: 64 MiB and 32 requests at most; its
# requests end
def test_a_client_that_takes_no_answers_has_few_of_its_requests_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_WAITING_BYTES", 4 * MIB)
    service = StandIn()

    async def work(stub: Any) -> Any:
        stream = stub.ModelStreamInfer()
        made = next(named("x"))
        made.inputs[0].shape[:] = [MIB // 4]
        made.raw_input_contents[0] = bytes(MIB)

        async def send() -> None:
            for _ in range(100):
                await stream.write(made)
            await stream.done_writing()

        sending = asyncio.ensure_future(send())
        before = -1
        while before != len(service.seen) or not before:  # until nothing more is read
            before = len(service.seen)
            await asyncio.sleep(0.3)
        read = len(service.seen)
        answers = [each async for each in stream]
        await sending
        return read, len(answers)

    read, answered = call(service, work, most_bytes=2 * MIB)
    assert read < 60
    assert (answered, len(service.seen)) == (100, 100)


def test_a_client_that_does_not_read_its_answers_has_its_requests_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "READER_S", 0.3)
    service, ended = StandIn(), asyncio.Event()

    async def hold(tensors: list[Any]) -> None:
        if tensors[0].name == "last":
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    service.hold = hold

    async def work(stub: Any) -> None:
        stream = stub.ModelStreamInfer()
        for made in named(*map(str, range(20)), "last"):
            made.inputs[0].shape[:] = [MIB // 4]
            made.raw_input_contents[0] = bytes(MIB)
            await asyncio.wait_for(stream.write(made), 30.0)
        await asyncio.wait_for(ended.wait(), 30.0)
        stream.cancel()

    call(service, work, most_bytes=2 * MIB)


@pytest.mark.parametrize("most", [1, 32])
def test_bytes_that_are_no_protobuf_end_a_stream_after_the_answers_before_them(
    most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "MOST_AT_ONCE", most)
    service, found = StandIn(), []

    async def hold(_: list[Any]) -> None:
        await asyncio.sleep(0.01)

    service.hold = hold

    async def work(stub: Any) -> None:
        stream = stub.raw_stream()
        for each in (*(each.SerializeToString() for each in named("a", "b")), b"\xff\xff"):
            await stream.write(each)
        while (each := await stream.read()) is not grpc.aio.EOF:
            found.append(pb.ModelStreamInferResponse.FromString(each).infer_response.id)

    assert refusal(service, work)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert found == ["a", "b"]
    # gRPC's poller reports to the loops of earlier tests, which are closed.
    assert not [each for each in caplog.records if "PollerCompletionQueue" not in each.getMessage()]


# fault (endpoint): a stream is not read, or cancelled
def test_a_client_that_cancels_its_stream_ends_the_requests_that_run() -> None:
    service, running = StandIn(), asyncio.Event()

    async def hold(_: list[Any]) -> None:
        if service.running == 3:
            running.set()
        await asyncio.Event().wait()

    service.hold = hold

    async def work(stub: Any) -> None:
        stream = stub.ModelStreamInfer(named("a", "b", "c"))
        reading = asyncio.ensure_future(stream.read())
        await asyncio.wait_for(running.wait(), 60.0)
        stream.cancel()
        await asyncio.wait((reading,))
        async with asyncio.timeout(60.0):
            await until(lambda: not service.running)

    call(service, work)
    assert (service.running, service.cancelled) == (0, 3)


def test_a_bug_of_ours_ends_a_stream_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    service = StandIn()

    async def hold(_: list[Any]) -> None:
        raise ZeroDivisionError

    service.hold = hold

    async def work(stub: Any) -> None:
        stream = stub.ModelStreamInfer()
        await stream.write(next(named("a")))
        await stream.read()

    assert refusal(service, work)[0] is grpc.StatusCode.UNKNOWN
    assert "ZeroDivisionError" in caplog.text
