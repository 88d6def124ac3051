"""Settings that every source is made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.sources.http.client import Http


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings that a source is made with.

    Attributes:
        http: Client that keeps the policy of addresses, for schemes that speak HTTP.
        environment: Environment variables of the daemon: credentials, endpoints, caches.
        headers: File of headers for servers of `https:` addresses; empty for none.
        patience_s: Seconds without a byte after which a transfer gives up.
    """

    http: Http
    environment: Mapping[str, str]
    headers: str = ""
    patience_s: float = 120.0
