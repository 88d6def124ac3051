"""Policy of hosts: which machines an address, or a redirect, may lead to.

A host that an operator named may be private: a registry of models on the local network is. Any other (one that a
redirect, or a manifest from elsewhere, names) must have public addresses, unless the operator's list has it. Services
of a cloud that hand out its machine's credentials live at link-local addresses, which only that list opens. An address
is checked after it was looked up, and connected to as it was checked: a name that is looked up twice may have another
address the second time.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from trims.core.errors import AddressRefusedError, ConfigError, SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
    _Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Addresses that look public or private and lead to a cloud's metadata service.
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "fd00:ec2::254", "192.0.0.192")))

#: Prefix of addresses that a gateway translates to those of version 4 (NAT64).
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True)
class HostPolicy:
    """Hosts that may be connected to.

    Attributes:
        allowed: Names of hosts, in lower case, and networks that the operator allows whatever they are.
        named: Hosts that an operator named in an address or as an endpoint: private ones may be reached.
        lookup: Returns the addresses of a host and port, as `socket.getaddrinfo`.
    """

    allowed: frozenset[str] = frozenset()
    networks: tuple[_Network, ...] = ()
    named: frozenset[str] = frozenset()
    lookup: Callable[..., list[tuple[int, int, int, str, tuple[object, ...]]]] = field(
        default=socket.getaddrinfo,  # type: ignore[assignment]
        compare=False,
    )

    @classmethod
    def parse(cls, allowed: Iterable[str]) -> HostPolicy:
        """Read names of hosts and networks such as `10.0.0.0/8`. Raises ConfigError."""
        hosts, networks = set(), []
        for each in allowed:
            text = each.strip().lower()
            if "/" in text or text.replace(".", "").isdigit() or ":" in text:
                try:
                    networks.append(ipaddress.ip_network(text.strip("[]")))
                except ValueError as error:
                    raise ConfigError(f"{each!r} is neither a host nor a network such as 10.0.0.0/8: {error}") from None
            elif text:
                hosts.add(text)
        return cls(frozenset(hosts), tuple(networks))

    def naming(self, *hosts: str) -> HostPolicy:
        """Return the policy for an address whose hosts an operator named."""
        return replace(self, named=self.named | {host.lower() for host in hosts if host})

    def addresses_of(self, host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
        """Look a host up. Return family and address of each way to it that is allowed.

        Raises AddressRefusedError if one of them is not allowed, SourceUnavailableError if the name is unknown.
        """
        try:
            found = self.lookup(host, port, 0, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise SourceUnavailableError(f"the host {host} cannot be looked up: {error}") from error
        for _, _, _, _, address in found:
            self.check(host, str(address[0]))
        return [(family, address) for family, _, _, _, address in found]

    def check(self, host: str, address: str) -> None:
        """Raise AddressRefusedError if the host, at this address, may not be connected to."""
        ip = _inner(ipaddress.ip_address(address.partition("%")[0]))
        host = host.lower()
        if host in self.allowed or any(ip in network for network in self.networks):
            return
        if ip.is_link_local or ip in _METADATA or ip.is_multicast or ip.is_unspecified:
            raise AddressRefusedError(
                f"{host} is at {address}, where clouds hand out credentials of their machines, or no host is; if that "
                f"is meant, allow it (`allow_hosts`)"
            )
        if not ip.is_global and host not in self.named:
            raise AddressRefusedError(
                f"{host} is at the private address {address}, and no operator named it: a redirect, or a manifest "
                f"from elsewhere, leads there; if that is meant, allow it (`allow_hosts`)"
            )

    def check_number(self, host: str) -> None:
        """Raise as `check` for a host that is written as an address; nothing for a name."""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return
        self.check(host, host)


def _inner(ip: _Ip) -> _Ip:
    """Return the address of version 4 that one of version 6 leads to by a translation; else the address itself."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _TRANSLATED:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip
