"""Connections to servers: to an address that the policy of hosts has checked, or through the environment's proxy.

A name is looked up once for each connection: what was checked is what is connected to, whatever a second look-up of the
same name would say.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    from trims.sources.hosts import HostPolicy

#: Seconds for a connection to come about.
CONNECT_S = 10.0
_BLOCK_BYTES = 1 << 20


def connection_to(
    target: SplitResult, policy: HostPolicy, stall_s: float, tls: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    """Return a connection that comes about when the first request is sent.

    Args:
        target: Address of the server.
        policy: Hosts that may be connected to. A proxy, which the operator named, keeps a policy of its own; addresses
            that are written as numbers are checked for it as well.
        stall_s: Seconds without a byte after which a server counts as stalled.
        tls: Context of connections with TLS; by default the machine's authorities.

    Raises AddressRefusedError.
    """
    host = target.hostname or ""
    proxy = _proxy_for(target)
    kind: dict[str, Any] = {"timeout": stall_s}
    secure = target.scheme == "https"
    if secure:
        kind["context"] = tls or ssl.create_default_context()
    end = proxy or (host, target.port or (443 if secure else 80))
    made = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(*end, **kind)
    made.blocksize = _BLOCK_BYTES
    if proxy is None:
        made._create_connection = lambda address, *_: _connected(policy, address, stall_s)  # type: ignore[attr-defined]
        return made
    policy.check_number(host)
    if secure:
        made.set_tunnel(host, target.port or 443)
    else:
        made.absolute = True  # type: ignore[attr-defined]
    return made


def _connected(policy: HostPolicy, address: tuple[str, int], stall_s: float) -> socket.socket:
    """Connect to one of the addresses that the policy has checked. Raises OSError with the last failure."""
    last: OSError = OSError(f"{address[0]} has no address")
    for family, where in policy.addresses_of(*address):
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(CONNECT_S)
            made.connect(where)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(stall_s)
        except OSError as error:
            made.close()
            last = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise last


def _proxy_for(target: SplitResult) -> tuple[str, int] | None:
    """Return host and port of the proxy that the environment names for a server; None without."""
    named = urllib.request.getproxies().get(target.scheme)
    if not named or urllib.request.proxy_bypass(target.netloc):
        return None
    proxy = urlsplit(named if "//" in named else f"http://{named}")
    return (proxy.hostname or "", proxy.port or 80)
