"""Connections to servers: to an address that the policy of hosts has checked, or through the environment's proxy.

A name is looked up once for each connection: what was checked is what is connected to, whatever a second look-up of the
same name would say.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING, Any

from trims.sources.http.proxies import Proxy, TunnelledConnection, proxy_for

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from trims.sources.http.hosts import HostPolicy

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

    Raises AddressRefusedError, and ConfigError for a proxy that cannot be used.
    """
    host, proxy = target.hostname or "", proxy_for(target)
    secure = target.scheme == "https"
    if proxy is not None:
        policy.check_number(host)
        made = _through(proxy, target, stall_s, tls)
    else:
        end = host, target.port or (443 if secure else 80)
        made = _connection(*end, stall_s, (tls or ssl.create_default_context()) if secure else None)
        made._create_connection = lambda address, *_: _connected(policy, address, stall_s)  # type: ignore[attr-defined]
    made.blocksize = _BLOCK_BYTES
    return made


def _through(
    proxy: Proxy, target: SplitResult, stall_s: float, tls: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    """Return a connection through a proxy: with a tunnel for a server with TLS, else the proxy is asked itself."""
    made: http.client.HTTPConnection
    secure = target.scheme == "https"
    context = (tls or ssl.create_default_context()) if secure or proxy.secure else None
    if secure and proxy.secure:
        assert context is not None
        made = TunnelledConnection(proxy, timeout=stall_s, context=context)
    else:
        made = _connection(proxy.host, proxy.port, stall_s, context)
    if secure:
        made.set_tunnel(target.hostname or "", target.port or 443, headers=dict(proxy.headers))
    else:
        made.proxy_headers = proxy.headers  # type: ignore[attr-defined]
    return made


def _connection(host: str, port: int, stall_s: float, tls: ssl.SSLContext | None) -> http.client.HTTPConnection:
    kind: dict[str, Any] = {"timeout": stall_s, **({} if tls is None else {"context": tls})}
    return (http.client.HTTPConnection if tls is None else http.client.HTTPSConnection)(host, port, **kind)


def _connected(policy: HostPolicy, address: tuple[str, int], stall_s: float) -> socket.socket:
    """Connect to one of the addresses that the policy has checked. Raises OSError with the last failure."""
    last: OSError = OSError(f"{address[0]} has no address")
    for family, where in policy.addresses_of(*address):
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.settimeout(min(CONNECT_S, stall_s))
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
