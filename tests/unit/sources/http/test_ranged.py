"""Files at locations that end: when another location is asked for, and when a refusal is final."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trims.core.errors import SourceRefusedError
from trims.sources.base import RemoteFile
from trims.sources.http.client import Http, Location
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.ranged import RangedFiles

if TYPE_CHECKING:
    from tests.support.file_server import FileServer

DATA = bytes(1000)
FILE = RemoteFile("m", 1000, '"v1"')


class Located:
    """Files of a server; counts how often it is asked where they are."""

    def __init__(self, server: FileServer, good_for_s: float | None) -> None:
        self.asked = 0
        self.url, self.good_for_s = f"{server.url}/m", good_for_s
        self.files = RangedFiles(Http(HostPolicy().naming("127.0.0.1")), "x://m", [FILE], self.locate)

    def locate(self, file: RemoteFile) -> Location:
        assert file is FILE
        self.asked += 1
        return Location(self.url, good_for_s=self.good_for_s)

    def read(self) -> None:
        for _ in self.files.fill(FILE, [(0, memoryview(bytearray(10)))]):
            pass


@pytest.mark.parametrize(("good_for_s", "asked"), [(None, 1), (1000.0, 1), (0.0, 3)])
def test_a_location_is_asked_for_again_once_its_time_is_nearly_over(
    server: FileServer, good_for_s: float | None, asked: int
) -> None:
    server.serve("/m", DATA)
    located = Located(server, good_for_s)
    for _ in range(3):
        located.read()
    assert located.asked == asked
    located.files.close()


@pytest.mark.parametrize(("good_for_s", "refusals", "fails"), [(1000.0, 1, False), (1000.0, 2, True), (None, 1, True)])
def test_a_refused_location_that_has_an_end_is_asked_for_once_more(
    server: FileServer, good_for_s: float | None, refusals: int, fails: bool
) -> None:
    served = server.serve("/m", DATA)
    located = Located(server, good_for_s)
    located.read()
    served.statuses = [403] * refusals
    if fails:
        with pytest.raises(SourceRefusedError):
            located.read()
    else:
        located.read()
    assert located.asked == (1 if good_for_s is None else 2)
    located.files.close()
