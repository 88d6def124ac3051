"""Files of servers: what a look finds, and answers that describe no file."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ArtifactError, ArtifactNotFoundError, CallerError, SourceRefusedError, TrimsError
from trims.sources.http.client import Answer, Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.source import HttpSource, described, stated_checksums
from trims.sources.settings import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.file_server import FileServer
    from trims.sources.base import Opened

DATA = bytes(range(256)) * 100


@pytest.fixture
def source() -> Iterator[HttpSource]:
    http = Http(HostPolicy().naming("127.0.0.1"))
    yield HttpSource(SourceSettings(http, {}))
    http.close()


def read(opened: Opened, begin: int, end: int) -> bytes:
    room = bytearray(end - begin)
    for _ in opened.fill(opened.files[0], [(begin, memoryview(room))]):
        pass
    return bytes(room)


def test_a_file_is_described_by_one_byte_of_it(source: HttpSource, server: FileServer) -> None:
    server.serve("/a/m%20x.bin", DATA)
    opened = source.open(f"{server.url}/a/m%20x.bin?token=t")
    (file,) = opened.files
    assert (file.name, file.nbytes, file.version, file.in_ranges) == ("m x.bin", len(DATA), '"v1"', True)
    assert opened.pinned == f"{server.url}/a/m%20x.bin?token=..."
    assert [headers["Range"] for _, _, headers in server.requests] == ["bytes=0-0"]


def test_a_server_without_ranges_is_known_as_one(source: HttpSource, server: FileServer) -> None:
    server.serve("/m", DATA, ranges=False)
    (file,) = source.open(f"{server.url}/m").files
    assert (file.nbytes, file.in_ranges) == (len(DATA), False)


def test_the_end_of_redirects_is_asked_directly_until_it_is_refused(source: HttpSource, server: FileServer) -> None:
    server.serve("/m", b"x", redirect="/signed")
    signed = server.serve("/signed", DATA)
    opened = source.open(f"{server.url}/m")
    assert (opened.files[0].name, read(opened, 0, 5)) == ("m", DATA[:5])
    seen = len(server.requests)
    assert read(opened, 5, 9) == DATA[5:9]
    assert [path for _, path, _ in server.requests[seen:]] == ["/signed"]
    signed.statuses = [403]
    assert read(opened, 9, 20) == DATA[9:20]
    assert [path for _, path, _ in server.requests[seen + 2 :]] == ["/m", "/signed", "/signed"]
    signed.statuses = [403, 403, 403]
    with pytest.raises(SourceRefusedError):
        read(opened, 0, 5)


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (200, {}, ArtifactError),
        (200, {"Content-Length": "\u00b2"}, ArtifactError),
        (200, {"Content-Length": "9" * 5000}, ArtifactError),
        (200, {"Content-Length": "-1"}, ArtifactError),
        (200, {"Content-Length": "0"}, ArtifactError),
        (206, {"Content-Range": "bytes 0-0/*", "Content-Length": "1"}, ArtifactError),
        (206, {"Content-Range": "pages 0-0/7", "Content-Length": "1"}, ArtifactError),
        (416, {"Content-Range": "bytes */0"}, ArtifactError),
        (404, {}, ArtifactNotFoundError),
        (403, {}, SourceRefusedError),
    ],
    ids=str,
)
def test_an_answer_that_describes_no_file_is_refused(
    status: int, headers: dict[str, str], error: type[TrimsError]
) -> None:
    with pytest.raises(error) as raised:
        described(Answer(status, headers, b"", "http://h/m"), "m", "http://h/m")
    assert "http://h/m" in str(raised.value)


@pytest.mark.parametrize("address", ["http://h/", "http:///m", "http://me:word@h/m"])
def test_an_address_that_names_no_file_or_has_a_password_is_refused(address: str, source: HttpSource) -> None:
    with pytest.raises(CallerError) as raised:
        source.open(address)
    assert "word" not in str(raised.value)


def test_checksums_of_the_whole_are_taken_from_each_header() -> None:
    crc = base64.b64encode(bytes(range(8))).decode()
    sha = base64.b64encode(bytes(32)).decode()
    assert stated_checksums({"x-amz-checksum-crc64nvme": crc}) == {"crc64nvme": bytes(range(8)).hex()}
    assert stated_checksums({"Repr-Digest": f"sha-256=:{sha}:, md5=:xx:"}) == {"sha256": "0" * 64}
    assert stated_checksums({"x-goog-hash": "crc32c=AAAAAA==,md5=zz=="}) == {"crc32c": "00000000"}
    assert stated_checksums({"x-amz-checksum-crc64nvme": crc, "x-amz-checksum-type": "COMPOSITE"}) == {}
    assert stated_checksums({"x-amz-checksum-sha256": f"{sha}-3", "Digest": "sha-256=?"}) == {}
