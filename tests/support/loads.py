"""Orders of loads against a server of `load_server`."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from trims_bench.workloads.order import Order, Server, http_request
from trims_bench.workloads.scenarios import Target

if TYPE_CHECKING:
    from collections.abc import Sequence


def request(model: str = "m") -> bytes:
    """A request without inputs."""
    return http_request(f"/v2/models/{model}/infer", "127.0.0.1", b"{}", {})


def open_order(port: int, times_s: Sequence[float], **fields: Any) -> Order:
    """An order with requests at these times."""
    times = array("q", [round(each * 1e9) for each in times_s])
    models = array("H", [0] * len(times))
    return Order(Server("127.0.0.1", port), [request()], models, times, **{"deadline_ns": 30_000_000_000, **fields})


def closed_order(port: int, concurrency: int, **fields: Any) -> Order:
    """An order of a closed loop."""
    server = Server("127.0.0.1", port)
    return Order(server, [request()], array("H", [0]), concurrency=concurrency, **fields)


def target(port: int, *models: str) -> Target:
    """A server and what it is asked for."""
    names = models or ("m",)
    return Target(Server("127.0.0.1", port), names, [request(each) for each in names])
