"""The client of HTTP against a real server: ranges into memory, redirects under the policy, and answers that lie."""

from __future__ import annotations

import itertools
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.file_server import FileServer, file_server
from trims.core.errors import (
    AddressRefusedError,
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.base import RemoteFile
from trims.sources.http.client import Http, Location, shown
from trims.sources.http.hosts import HostPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = bytes(range(256)) * 1000
NAMED = HostPolicy().naming("127.0.0.1")


@pytest.fixture
def http() -> Iterator[Http]:
    made = Http(NAMED, stall_s=0.3)
    yield made
    made.close()


def filled(http: Http, url: str, *edges: int, version: str = '"v1"', secret: dict[str, str] | None = None) -> bytes:
    """Fill adjoining parts of a file of the length of DATA; return their bytes."""
    room = memoryview(bytearray(edges[-1] - edges[0]))
    parts = [(at, room[at - edges[0] : end - edges[0]]) for at, end in itertools.pairwise(edges)]
    for _ in http.fill(Location(url, secret or {}), RemoteFile("m", len(DATA), version), parts, "m"):
        pass
    return bytes(room)


def test_parts_are_filled_from_one_range_and_the_connection_is_kept(http: Http, server: FileServer) -> None:
    server.serve("/m", DATA)
    assert filled(http, f"{server.url}/m", 10, 20, 5000) == DATA[10:5000]
    assert filled(http, f"{server.url}/m", 0, 10) == DATA[:10]
    assert [headers["Range"] for _, _, headers in server.requests] == ["bytes=10-4999", "bytes=0-9"]
    assert [headers["If-Match"] for _, _, headers in server.requests] == ['"v1"'] * 2
    assert len(server.connections) == 1


def test_a_connection_that_the_server_closed_meanwhile_is_made_again(http: Http, server: FileServer) -> None:
    server.serve("/m", DATA)
    filled(http, f"{server.url}/m", 0, 10)
    (kept,) = server.connections
    kept.shutdown(socket.SHUT_RDWR)
    assert filled(http, f"{server.url}/m", 10, 20) == DATA[10:20]


# fault (sources): a lie about length, range or coding -> `artifact_changed`, `bad_artifact`
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"statuses": [401]}, SourceRefusedError),
        ({"statuses": [403]}, SourceRefusedError),
        ({"statuses": [404]}, ArtifactNotFoundError),
        ({"statuses": [410]}, ArtifactNotFoundError),
        ({"statuses": [412]}, ArtifactChangedError),
        ({"statuses": [416]}, ArtifactChangedError),
        ({"statuses": [429]}, SourceUnavailableError),
        ({"statuses": [500]}, SourceUnavailableError),
        ({"statuses": [204]}, ArtifactChangedError),
        ({"statuses": [418]}, ArtifactError),
        ({"total": 7}, ArtifactChangedError),
        ({"total": len(DATA) + 1}, ArtifactChangedError),
        ({"headers": {"Content-Length": "5"}}, ArtifactChangedError),
        ({"headers": {"Content-Length": "5000000"}}, ArtifactChangedError),
        ({"headers": {"Content-Range": "bytes 1-200000/256000"}}, ArtifactError),
        ({"headers": {"Content-Encoding": "br"}}, ArtifactError),
        ({"etag": '"v2"'}, ArtifactChangedError),
        ({"break_after": [50]}, SourceUnavailableError),
        ({"stall_after": 50}, SourceUnavailableError),
        ({"redirect": "/m"}, ArtifactError),
        ({"redirect": "file:///etc/passwd"}, AddressRefusedError),
        ({"redirect": "http://[nowhere/"}, ArtifactError),
        ({"redirect": "http://127.0.0.1:99999999/"}, ArtifactError),
        ({"redirect": "http://169.254.169.254/latest"}, AddressRefusedError),
        ({"redirect": "http://localhost:1/"}, AddressRefusedError),
    ],
    ids=str,
)
def test_an_answer_that_is_wrong_ends_in_one_class(
    how: dict[str, Any], error: type[TrimsError], http: Http, server: FileServer
) -> None:
    served = server.serve("/m", DATA, **how)
    with pytest.raises(error) as raised:
        filled(http, f"{server.url}/m?signature=hidden", 0, 200_000)
    assert type(raised.value) is error
    assert "hidden" not in str(raised.value)
    served.resume.set()


def test_a_busy_server_says_when_to_ask_again(http: Http, server: FileServer) -> None:
    server.serve("/m", DATA, statuses=[503, 503, 503], headers={"Retry-After": "7"})
    with pytest.raises(SourceUnavailableError) as raised:
        filled(http, f"{server.url}/m", 0, 100)
    assert raised.value.retry_after_s == 7
    server.files["/m"].headers = {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}
    with pytest.raises(SourceUnavailableError) as raised:
        filled(http, f"{server.url}/m", 0, 100)
    assert raised.value.retry_after_s == 0


def test_an_answer_of_the_whole_to_a_range_is_read_to_the_range(http: Http, server: FileServer) -> None:
    server.serve("/m", DATA, ranges=False)
    assert filled(http, f"{server.url}/m", 200_000, 200_100) == DATA[200_000:200_100]


# fault (sources): a redirect to another host -> nothing; the token is not sent
def test_a_token_goes_to_its_own_origin_and_no_further(server: FileServer) -> None:
    with file_server() as other:
        other.serve("/m", DATA)
        server.serve("/m", DATA, redirect=f"{other.url}/m")
        http = Http(NAMED)
        secret = {"Authorization": "Bearer mine"}
        assert filled(http, f"{server.url}/m", 0, 9, secret=secret) == DATA[:9]
        http.close()
        assert [headers.get("Authorization") for _, _, headers in server.requests] == ["Bearer mine"]
        assert [headers.get("Authorization") for _, _, headers in other.requests] == [None]


@pytest.mark.parametrize("path", ["/mod\u00e8le.bin", "/a b.bin", "/100%25.bin"])
def test_a_path_that_needs_escapes_is_asked_for_and_followed(path: str, http: Http, server: FileServer) -> None:
    from urllib.parse import quote

    server.serve(quote(path, safe="/%"), DATA)
    assert filled(http, server.url + path, 0, 10) == DATA[:10]
    server.serve("/latest", b"x", redirect=path.encode().decode("latin-1"))  # as servers write it: in UTF-8
    assert filled(http, f"{server.url}/latest", 0, 10) == DATA[:10]


# fault (sources): a name with another address the second time -> `address_refused` if not allowed; the checked
# address is used
def test_a_name_with_another_address_later_is_connected_to_as_it_was_checked(server: FileServer) -> None:
    server.serve("/m", DATA)
    asked: list[str] = []

    def lookup(host: str, port: int, *_: Any) -> list[Any]:
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))]

    http = Http(HostPolicy(lookup=lookup).naming("models.example"))
    url = f"http://models.example:{server.port}/m"
    assert filled(http, url, 0, 10) == DATA[:10]
    assert asked == ["models.example"], "it was looked up again between the check and the connection"
    http.close()
    again = Http(HostPolicy(lookup=lookup).naming("models.example"))
    with pytest.raises(AddressRefusedError, match=r"169\.254"):
        filled(again, url, 0, 10)
    assert len(server.requests) == 1


def test_a_proxy_is_not_asked_for_an_address_of_credentials(server: FileServer, monkeypatch: Any) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    with pytest.raises(AddressRefusedError):
        Http(HostPolicy()).request("GET", "http://169.254.169.254/latest/meta-data")
    assert not server.requests


def test_closing_breaks_off_what_is_read_and_no_more_is_asked(server: FileServer) -> None:
    served = server.serve("/m", DATA, stall_after=50)
    http, errors = Http(NAMED), list[BaseException]()

    def read() -> None:
        try:
            filled(http, f"{server.url}/m", 0, len(DATA))
        except TrimsError as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    server.wait_for(50, "/m")
    http.close()
    thread.join(30)
    served.resume.set()
    assert [type(error) for error in errors] == [SourceUnavailableError]
    with pytest.raises(SourceUnavailableError):
        filled(http, f"{server.url}/m", 0, 10)


def test_an_answer_is_read_whole_up_to_a_bound(http: Http, server: FileServer, monkeypatch: Any) -> None:
    server.serve("/list", DATA)
    answer = http.request("GET", f"{server.url}/list")
    assert (answer.status, answer.body, answer.headers["etag"]) == (200, DATA, '"v1"')
    monkeypatch.setattr("trims.sources.http.client.MOST_ANSWER_BYTES", 1000)
    with pytest.raises(ArtifactError):
        http.request("GET", f"{server.url}/list", most_bytes=1000)


def test_what_is_shown_of_an_address_has_no_secret() -> None:
    assert shown("https://me:word@host:8/a/b?sig=x#y") == "https://host:8/a/b"
