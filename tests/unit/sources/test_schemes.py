"""The source for an address: by its scheme, ours or one of a plug-in."""

from __future__ import annotations

import pytest

from trims.core.errors import CallerError
from trims.sources.buckets.objects import ObjectSource
from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.source import HttpSource
from trims.sources.schemes import source_of
from trims.sources.settings import SourceSettings

SETTINGS = SourceSettings(Http(HostPolicy()), {})


@pytest.mark.parametrize(("scheme", "kind"), [("http", HttpSource), ("https", HttpSource), ("s3", ObjectSource)])
def test_a_scheme_of_ours_has_its_source(scheme: str, kind: type) -> None:
    assert isinstance(source_of(f"{scheme}://h/m", SETTINGS), kind)


def test_a_scheme_that_nothing_knows_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(CallerError, match="'ftp'") as raised:
        source_of("ftp://h/m", SETTINGS)
    assert all(each in str(raised.value) for each in ("https", "s3", "gs", "az", "trims.sources"))
