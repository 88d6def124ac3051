"""Keepalive pings at a gRPC server: with our options a client may ping while it waits."""

# fault (daemon): gRPC keepalive pings during long calls -> nothing, up to ten a second

from __future__ import annotations

import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from looking import WAIT_S

from trims.wire.keepalive import PING_S, ping_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PINGS = [
    ("grpc.keepalive_time_ms", 200),
    ("grpc.keepalive_timeout_ms", 100_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


@pytest.fixture
def call() -> Iterator[Callable[[list[tuple[str, int]]], Any]]:
    """Return a function that begins a call that waits, by a client that pings, at a server with these options."""
    ended, opened = threading.Event(), []

    def wait(request: bytes, context: grpc.ServicerContext) -> bytes:
        ended.wait(WAIT_S)
        return request

    def begin(options: list[tuple[str, int]]) -> Any:
        server = grpc.server(futures.ThreadPoolExecutor(1), options=options)
        handler = grpc.method_handlers_generic_handler("s", {"wait": grpc.unary_unary_rpc_method_handler(wait)})
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=PINGS)
        opened.append((server, channel))
        return channel.unary_unary("/s/wait").future(b"here")

    yield lambda options: (begin(options), ended)
    ended.set()
    for server, channel in opened:
        channel.close()
        server.stop(0).wait()


@pytest.mark.parametrize("least_s", [PING_S, 0.0])
def test_a_call_outlives_pings_that_a_server_with_a_longer_bound_takes_for_too_many(
    least_s: float, call: Callable[[list[tuple[str, int]]], Any]
) -> None:
    waiting, ended = call(ping_options(least_s))
    for _ in range(2):  # the second one fails at a time at which the first one, and one like it, have failed long ago
        refused, _ = call(ping_options(300.0))
        assert refused.exception(WAIT_S).code() is grpc.StatusCode.UNAVAILABLE
        assert "Too many pings" in refused.details() or "too_many_pings" in refused.debug_error_string()
    assert not waiting.done()
    ended.set()
    assert waiting.result(WAIT_S) == b"here"


def test_a_bound_that_grpc_cannot_count_is_a_day() -> None:
    assert ping_options(1e9) == ping_options(86_400.0)
