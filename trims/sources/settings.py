"""Settings that every source is made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims.sources.http import Http


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings that a source is made with.

    Attributes:
        http: Client that keeps the policy of addresses, for schemes that speak HTTP.
        environment: Environment variables of the daemon: credentials, endpoints, caches.
    """

    http: Http
    environment: Mapping[str, str]
