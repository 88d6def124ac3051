"""The port of HTTP: bound before anything is started, and closed without resetting clients that have connected."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import socket
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)
_BACKLOG = 2048
#: Linux; Python has no name for it.
_SO_ATTACH_FILTER = 26


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address, or at any free port if it is 0. Raises ConfigError with the remedy."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or end what listens there"
            ) from error
        sock.listen(_BACKLOG)
        yield sock


class _Instruction(ctypes.Structure):
    """One instruction of a packet filter: `struct sock_filter`."""

    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Filter(ctypes.Structure):
    """A packet filter: `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def accept_no_more(sock: socket.socket) -> None:
    """Let no more clients connect to a listening socket; those that have connected can still be accepted.

    Closing the socket instead would reset clients that have connected and were not accepted yet. A filter drops every
    packet for the socket, so a client that tries to connect tries again a second later, and finds the next endpoint or
    a closed port.
    """
    nothing = _Instruction(0x06, 0, 0, 0)  # BPF_RET: accept no byte of any packet
    dropping = _Filter(1, ctypes.pointer(nothing))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(dropping))
    except OSError as error:
        _log.debug("clients that connect just now may be reset: %s", error)
