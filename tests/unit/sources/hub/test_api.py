"""Requests to the hub: where the token goes, how long a location is good, and what an answer must be."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hub_side import NAME, environment
from stub_hub import Content, StubHub, stub_hub

from trims.core.errors import ArtifactError, DigestMismatchError
from trims.sources.http.client import Answer, Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.hub.api import SIGNED_FOR_S, HubApi, git_sha1, good_for_s
from trims.sources.hub.environment import HubEnvironment
from trims.sources.hub.files import HubFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATE = "Thu, 26 Nov 2026 12:00:00 GMT"
DATE_S = 1795694400


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub() as made:
        yield made


@pytest.fixture
def api(hub: StubHub, tmp_path: Path) -> Iterator[HubApi]:
    http = Http(HostPolicy(named=frozenset({"127.0.0.1"})))
    with contextlib.closing(http):
        yield HubApi(http, HubEnvironment.read(environment(hub, tmp_path, HF_TOKEN="hf_known")), NAME)


@pytest.mark.parametrize(
    ("query", "date", "expected"),
    [
        (f"Expires={DATE_S + 90}&Signature=x", DATE, 90),
        (f"Expires={DATE_S + 90}&X-Amz-Expires=60", DATE, 60),
        (f"Expires={DATE_S - 90}", DATE, 0),
        ("X-Amz-Expires=3600", "", 3600),
        ("X-Amz-Expires=3600&X-Amz-Date=20261126T113000Z", DATE, 1800),
        ("Signature=x", DATE, SIGNED_FOR_S),
        ("Expires=soon", "no date", SIGNED_FOR_S),
    ],
)
def test_a_signature_is_good_by_the_servers_clock(query: str, date: str, expected: float) -> None:
    assert good_for_s(f"https://cdn.example/x?{query}", Answer(302, {"Date": date}, b"", "")) == expected


def test_a_small_file_is_checked_when_it_is_read(hub: StubHub, api: HubApi) -> None:
    commit = hub.add(NAME, {"a.json": b"{}", "model.safetensors": b"weights"})
    listing = api.listing(commit)
    assert api.read(commit, "a.json", listing["a.json"]) == b"{}"
    assert api.read(commit, "model.safetensors", listing["model.safetensors"]) == b"weights"
    for name, stated in (("a.json", HubFile(2, "0" * 40)), ("model.safetensors", HubFile(7, "0" * 40, "0" * 64))):
        with pytest.raises(DigestMismatchError, match=name):
            api.read(commit, name, stated)


def test_the_sha1_of_git_is_that_of_an_object_of_git() -> None:
    assert git_sha1(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_a_listing_that_never_ends_is_left(hub: StubHub, api: HubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.add(NAME, {f"{number}.json": b"" for number in range(9)})
    hub.page_files = 1
    monkeypatch.setattr("trims.sources.hub.api._MOST_PAGES", 5)
    with pytest.raises(ArtifactError, match="5 pages"):
        api.listing(commit)
    assert len(hub.asked("/tree/")) == 5


def test_a_path_that_is_a_file_and_a_folder_is_refused(hub: StubHub, api: HubApi) -> None:
    commit = hub.add(NAME, {"a": b"", "a/b": b""})
    with pytest.raises(ArtifactError, match="a folder"):
        api.listing(commit)


def test_a_page_on_another_server_gets_no_token(hub: StubHub, api: HubApi) -> None:
    commit = hub.add(NAME, {f"{number}.json": b"" for number in range(3)})
    hub.page_files = 2
    with stub_hub(page_files=2) as mirrored:
        mirrored.add(NAME, {f"{number}.json": b"" for number in range(3)})
        hub._servers[0].url = mirrored.url  # as a mirror whose pages name the hub that it mirrors
        assert len(api.listing(commit)) == 3
        assert [request.headers.get("Authorization") for request in mirrored.requests] == [None]
    assert [request.headers.get("Authorization") for request in hub.requests] == ["Bearer hf_known"]


@pytest.mark.parametrize("path", ["a b#c?d%20.json", "\u00e4/\u00f6.json", "a+b@c:d.json"])
def test_a_path_of_any_letters_is_found(hub: StubHub, api: HubApi, path: str) -> None:
    commit = hub.add(NAME, {path: b"{}"})
    listing = api.listing(commit)
    assert listing == {path: HubFile(2, Content(b"{}", large=False).blob_id)}
    assert api.read(commit, path, listing[path]) == b"{}"
