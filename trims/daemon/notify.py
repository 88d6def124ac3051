"""Reports of the daemon to the service manager that has started it, such as systemd (`man sd_notify`).

The manager names a datagram socket in NOTIFY_SOCKET. Without it nothing is sent.
"""

from __future__ import annotations

import logging
import os
import socket

_log = logging.getLogger(__name__)
_VARIABLE = "NOTIFY_SOCKET"
_MOST_LETTERS = 500


class Notifier:
    """Sends the states of this process.

    Args:
        address: Path of the manager's socket, or `@NAME` for an abstract one; empty for no manager.
    """

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    @classmethod
    def from_environment(cls) -> Notifier:
        """Return one for the manager that the environment names, and no longer names for processes started later."""
        return cls(os.environ.pop(_VARIABLE, ""))

    def ready(self, status: str) -> None:
        """Report that the doors are open."""
        self._send("READY=1", status)

    def stopping(self, status: str) -> None:
        """Report that the end has begun."""
        self._send("STOPPING=1", status)

    def _send(self, state: str, status: str) -> None:
        """Send one datagram at once, or none: a manager that does not listen is no reason to wait or to fail."""
        if not self._address:
            return
        message = f"{state}\nSTATUS={' '.join(status.split())[:_MOST_LETTERS]}\n"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(message.encode(errors="replace"), self._address)
        except OSError as error:
            _log.warning("the service manager was not notified of %s at %s: %s", state, self._address, error)
