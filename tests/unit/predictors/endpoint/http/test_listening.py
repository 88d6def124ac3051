"""The port of HTTP: free or named, and closed without resetting those who have connected."""

from __future__ import annotations

import socket

import pytest
from trims_predictors.endpoint.http.listening import accept_no_more, listening

from trims.core.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_found_and_a_taken_one_is_named(host: str) -> None:
    with listening(host, 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f":{port}: Address already in use; choose another --port"):
            listening(host, port).__enter__()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_clients_that_have_connected_are_accepted_and_later_ones_wait(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening(host, 0) as sock, socket.create_connection(sock.getsockname()[:2]) as early:
        accept_no_more(sock)
        with socket.socket(family) as late:
            late.settimeout(0.3)
            with pytest.raises(TimeoutError):
                late.connect(sock.getsockname()[:2])
        early.sendall(b"asked")
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.recv(16) == b"asked"
            accepted.sendall(b"answered")
            assert early.recv(16) == b"answered"
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.accept()
