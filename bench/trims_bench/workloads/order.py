"""Order of a load: what the generator's process is to send, where to, and when."""

from __future__ import annotations

import json
import os
import socket
from array import array
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError
from trims.process import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Requests of one load, at most: what is recorded of each takes 48 bytes here and as much in the command.
MOST_REQUESTS = 5_000_000
#: Bytes of an order without its payload.
_LONG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Server:
    """Server that is asked.

    Attributes:
        host: Numeric address.
        tls: Whether over TLS.
        name: Name that its certificate has to have.
        certificate: File with the certificate to trust; None for those that the system trusts.
    """

    host: str
    port: int
    tls: bool = False
    name: str = ""
    certificate: str | None = None

    @property
    def family(self) -> socket.AddressFamily:
        """Return the address family of the host."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET


@dataclass(frozen=True, slots=True)
class Order:
    """Load that is to be made.

    Attributes:
        requests: Whole HTTP requests, one for each model.
        models: Index of each request's model; a closed loop begins again at the end.
        times_ns: Intended times after the beginning, ascending; empty for a closed loop.
        concurrency: Requests that a closed loop has on their way at any time.
        most_requests: After how many a closed loop ends.
        most_ns: After which time a closed loop ends.
        deadline_ns: Time from a request's intended time after which no answer to it is waited for.
        most_connections: Connections at once. A request that finds none free is sent late.
        connections_ahead: Made before the beginning.
    """

    server: Server
    requests: Sequence[bytes]
    models: array[int]
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    concurrency: int = 0
    most_requests: int = MOST_REQUESTS
    most_ns: int = 1 << 62
    deadline_ns: int = 60_000_000_000
    most_connections: int = 4096
    connections_ahead: int = 1


def send_order(sock: socket.socket, order: Order) -> None:
    """Send an order to the generator. What may be long goes in a file in memory. Raises LostPeerError, OSError."""
    parts = [*order.requests, order.models.tobytes(), order.times_ns.tobytes()]
    plain = asdict(replace(order, requests=(), models=array("H"), times_ns=array("q")))
    del plain["requests"], plain["models"], plain["times_ns"]
    with open(os.memfd_create("trims-order", os.MFD_CLOEXEC), "wb") as file:
        file.writelines(parts)
        file.flush()
        messages.send(sock, {**plain, "lengths": [len(part) for part in parts]}, [file.fileno()])


def receive_order(sock: socket.socket) -> Order:
    """Receive an order. Raises BadMessageError if there is none, or something else."""
    received = messages.receive(sock, most_fds=1, long_bytes=_LONG_BYTES)
    if received is None:
        raise BadMessageError("no order came")
    message, fds = received
    try:
        with open(fds.pop(), "rb") as file:
            file.seek(0)
            parts = [file.read(length) for length in message.pop("lengths")]
        models, times = array("H"), array("q")
        models.frombytes(parts[-2])
        times.frombytes(parts[-1])
        server = Server(**message.pop("server"))
        return Order(server=server, requests=parts[:-2], models=models, times_ns=times, **message)
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise BadMessageError(f"the order is not whole: {error!r}") from error
    finally:
        messages.close_all(fds)


def http_request(path: str, host: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a whole request in HTTP/1.1 over a connection that is kept."""
    fields = {"Host": host, "Content-Length": str(len(body)), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def summary_in(packet: bytes) -> dict[str, Any]:
    """Return the generator's last packet. Raises BadMessageError."""
    try:
        found = json.loads(packet)
        return {
            "connections": int(found["connections"]), "cpu_s": float(found["cpu_s"]),
            "scheduling": str(found["scheduling"]),
        }  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise BadMessageError(f"the generator sent {packet[:80]!r}, which is no summary") from error
