"""Heads of HTTP requests: which are refused, and with which status. Over a real server: test_connections.py."""

from __future__ import annotations

import pytest
from trims_predictors.endpoint.http import heads
from trims_predictors.endpoint.http.heads import RefusedHeadError, check_head

X = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"Chunked")


@pytest.mark.parametrize(
    ("url", "fields", "version", "status"),
    [
        (b"/", [X, X], "1.1", b"400"),
        (b"/", [X, (b"host", b"y")], "1.0", b"400"),
        (b"http://y/", [X], "1.1", b"400"),
        (b"https://x:80/", [X], "1.1", b"400"),
        (b"http://x?y/", [(b"host", b"x?y")], "1.1", b"400"),
        (b"/", [CHUNKED], "1.0", b"400"),
        (b"/", [X, (b"transfer-encoding", b"gzip, chunked")], "1.1", b"501"),
        (b"/", [X, (b"transfer-encoding", b"gzip"), CHUNKED], "1.1", b"501"),
        (b"/", [X] + [(b"a", b"b")] * heads.MOST_FIELDS, "1.1", b"431"),
    ],
)
def test_a_head_that_is_not_allowed_is_refused(
    url: bytes, fields: list[tuple[bytes, bytes]], version: str, status: bytes
) -> None:
    with pytest.raises(RefusedHeadError) as caught:
        check_head(url, fields, version, 0)
    assert caught.value.status.startswith(status)


def test_target_and_fields_together_are_bounded() -> None:
    check_head(b"/" * 1024, [X], "1.1", heads.MOST_HEAD_BYTES - 1024)
    with pytest.raises(RefusedHeadError):
        check_head(b"/" * 1025, [X], "1.1", heads.MOST_HEAD_BYTES - 1024)


def test_a_target_that_names_its_host_stands_for_a_header() -> None:
    assert heads.check_head(b"http://Evil.example/v2", [], "1.0", 0) == b"Evil.example"
    assert heads.check_head(b"/v2?next=http://x/", [], "1.0", 0) is None


@pytest.mark.parametrize(
    ("url", "fields"),
    [(b"/", [X, CHUNKED]), (b"http://X:80/", [X]), (b"https://x/", [(b"host", b"X:443")]), (b"*", [X]), (b"x:1", [X])],
)
def test_a_head_that_is_allowed_is_taken(url: bytes, fields: list[tuple[bytes, bytes]]) -> None:
    assert check_head(url, fields, "1.1", 0) is None
