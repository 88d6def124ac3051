"""Orders to the generator's process, through a real socket."""

from __future__ import annotations

import socket
from array import array

import pytest
from trims_bench.workloads.order import Order, Server, http_request, receive_order, send_order, summary_in

from trims.core.errors import BadMessageError
from trims.process import messages


def test_an_order_arrives_as_it_was_sent() -> None:
    server = Server("127.0.0.1", 8000, True, "localhost", "/certificate")
    order = Order(server, [b"one", b"two" * 100_000], array("H", [0, 1, 0]), array("q", [1, 2, 1 << 40]), deadline_ns=7)
    here, there = messages.pair()
    with here, there:
        send_order(here, order)
        assert receive_order(there) == order


def test_no_order_and_half_an_order_are_refused() -> None:
    here, there = messages.pair()
    with there:
        with here:
            messages.send(here, {"lengths": [1]})
            with pytest.raises(BadMessageError):
                receive_order(there)
        with pytest.raises(BadMessageError):
            receive_order(there)
    with pytest.raises(BadMessageError):
        summary_in(b"{}")


def test_a_request_has_its_length_and_an_address_its_family() -> None:
    request = http_request("/v2/models/m/infer", "localhost:8000", b"body", {"A": "b"})
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v2/models/m/infer HTTP/1.1", b"Host: localhost:8000", b"Content-Length: 4", b"A: b",
    ]  # fmt: skip
    assert body == b"body"
    assert Server("::1", 1).family == socket.AF_INET6
    assert Server("127.0.0.1", 1).family == socket.AF_INET
