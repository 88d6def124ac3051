"""Keepalive pings at both gRPC doors: streams of a client that pings go on, and the bound is a setting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from endpoints import Endpoint
from grpc_health.v1 import health_pb2, health_pb2_grpc
from looking import WAIT_S

from trims.wire import trims_pb2 as pb
from trims.wire import trims_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
PINGS = [
    ("grpc.keepalive_time_ms", 200),
    ("grpc.keepalive_timeout_ms", 100_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def watch(address: str) -> tuple[grpc.Channel, Any]:
    """Return a stream of either door on which nothing comes for long, and its channel."""
    channel = grpc.insecure_channel(address, options=PINGS)
    if address.startswith("unix:"):
        return channel, trims_pb2_grpc.ControlStub(channel).Watch(pb.Empty())  # type: ignore[no-untyped-call]
    stream = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    next(stream)  # the state that it has now
    return channel, stream


def ends(stream: Any) -> threading.Event:
    """Return an event that is set once a stream has ended, whatever has come on it before."""
    ended = threading.Event()
    stream.add_callback(ended.set)
    return ended


@pytest.mark.parametrize("door", ["endpoint", "control"])
def test_a_stream_of_a_client_that_pings_outlives_one_at_a_door_with_a_longer_bound(
    door: str, serve: Callable[..., Daemon], folder: Any
) -> None:
    lenient = serve()
    strict = serve(runtime_dir=folder / "run2", state_dir=folder / "state2", grpc_ping_s=300)
    endpoints: list[Endpoint] = []
    if door == "endpoint":
        endpoints = [Endpoint(lenient.config.runtime_dir), Endpoint(strict.config.runtime_dir, "--grpc-ping-s", "300")]
        addresses = [f"127.0.0.1:{each.grpc_port}" for each in endpoints]
    else:
        addresses = [f"unix:{each.config.runtime_dir}/control.sock" for each in (lenient, strict)]
    goes_on, stream = watch(addresses[0])
    try:
        still = ends(stream)
        for _ in range(2):  # the second one ends at a time at which the first one, and one like it, have ended long ago
            closed, refused = watch(addresses[1])
            assert ends(refused).wait(WAIT_S), "pings are not bounded"
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            closed.close()
        assert not still.is_set()
        assert stream.is_active()
    finally:
        stream.cancel()
        goes_on.close()
        for each in endpoints:
            each.end()
