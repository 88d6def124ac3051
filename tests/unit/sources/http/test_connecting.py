"""Connections: which address they are made to, and which proxy they go through."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from trims.core.errors import AddressRefusedError
from trims.sources.http.connecting import connection_to
from trims.sources.http.hosts import HostPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def test_the_next_address_is_tried_when_one_does_not_answer(listening: socket.socket) -> None:
    port = listening.getsockname()[1]

    def lookup(*_: Any) -> list[Any]:
        found = (("127.0.0.1", 1), ("127.0.0.1", port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in found]

    policy = HostPolicy(lookup=lookup).naming("models.example")
    made = connection_to(urlsplit("http://models.example/m"), policy, 5.0, None)
    made.connect()
    accepted, _ = listening.accept()
    assert made.sock is not None
    assert made.sock.getpeername()[1] == port
    assert made.sock.gettimeout() == 5.0
    made.close()
    accepted.close()


def test_no_address_is_tried_if_one_of_them_is_refused(listening: socket.socket) -> None:
    port = listening.getsockname()[1]

    def lookup(*_: Any) -> list[Any]:
        found = (("127.0.0.1", port), ("169.254.169.254", port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in found]

    made = connection_to(urlsplit("http://m.example/m"), HostPolicy(lookup=lookup).naming("m.example"), 5.0, None)
    with pytest.raises(AddressRefusedError):
        made.connect()
    listening.settimeout(0)
    with pytest.raises(BlockingIOError):
        listening.accept()


def test_a_proxy_of_the_environment_is_used_but_for_hosts_that_it_excepts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.lan:3128")
    monkeypatch.setenv("no_proxy", "inside.lan")
    outside = connection_to(urlsplit("http://models.example/m"), HostPolicy(), 5.0, None)
    inside = connection_to(urlsplit("http://inside.lan/m"), HostPolicy(), 5.0, None)
    assert (outside.host, outside.port) == ("proxy.lan", 3128)
    assert (inside.host, inside.port) == ("inside.lan", 80)
