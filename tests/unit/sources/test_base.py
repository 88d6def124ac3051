"""The protocol of sources: what plug-ins are checked against."""

from __future__ import annotations

from trims.sources.base import CHECKSUMS, Opened, RemoteFile, Source
from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.ranged import RangedFiles
from trims.sources.http.source import HttpSource
from trims.sources.settings import SourceSettings
from trims.sources.transfer import checksums


def test_what_ships_keeps_the_protocol_and_what_is_none_does_not() -> None:
    http = Http(HostPolicy())
    assert isinstance(HttpSource(SourceSettings(http, {})), Source)
    assert isinstance(RangedFiles(http, "x://m", [], lambda file: file), Opened)  # type: ignore[arg-type, return-value]
    assert not isinstance(object(), Source)
    assert not isinstance(HttpSource, Opened)


def test_every_checksum_that_a_source_may_state_can_be_computed() -> None:
    for name in CHECKSUMS:
        assert name in checksums.COMBINED or checksums.hasher(name, 0).hexdigest()


def test_a_file_of_which_little_is_stated_has_no_version_and_comes_in_ranges() -> None:
    file = RemoteFile("m", 3)
    assert (file.version, dict(file.checksums), file.in_ranges) == ("", {}, True)
