"""The source for an address, by its scheme: ours, or one of a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import CallerError, ConfigError
from trims.manifests.addresses import scheme_of
from trims.plugins import Choice, Kind
from trims.sources.base import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.sources.settings import SourceSettings

GROUP = "trims.sources"
#: Schemes of object stores, which can be written to.
OBJECT_STORES = ("s3", "gs", "az", "abfs", "abfss")


def source_of(address: str, settings: SourceSettings) -> Source:
    """Return the source for an address. Raises CallerError if no source has its scheme."""
    scheme = scheme_of(address)
    kind = Kind(GROUP, "source", _ours(), _wrong)
    if scheme not in kind.names():
        raise CallerError(
            f"no source has the scheme {scheme!r}; known are {', '.join(kind.names())} (a package adds one as an entry "
            f"point of the group {GROUP})"
        )
    try:
        return kind.open(Choice(scheme), settings).part
    except ConfigError as error:  # of a plug-in
        raise CallerError(str(error)) from error


def _ours() -> dict[str, Callable[[SourceSettings], Source]]:
    def http(settings: SourceSettings) -> Source:
        from trims.sources.http.source import HttpSource

        return HttpSource(settings)

    def hub(settings: SourceSettings) -> Source:
        from trims.sources.hub.source import HubSource

        return HubSource(settings)

    def objects(scheme: str) -> Callable[[SourceSettings], Source]:
        def make(settings: SourceSettings) -> Source:
            from trims.sources.buckets.objects import ObjectSource

            return ObjectSource(settings, scheme)

        return make

    return {"http": http, "https": http, "hf": hub, **{scheme: objects(scheme) for scheme in OBJECT_STORES}}


def _wrong(part: object, settings: SourceSettings) -> str:
    del settings
    return "" if isinstance(part, Source) else f"returned no Source: {type(part).__name__} has no `open`"
