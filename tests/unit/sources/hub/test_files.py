"""Files of a commit: what a listing may say, and cached listings."""

from __future__ import annotations

import json

import pytest

from trims.core.errors import ArtifactError
from trims.sources.hub.files import HubFile, is_commit, is_etag, parse_tree, tree_text

SHA1, SHA256 = "1" * 40, "2" * 64


def test_a_listing_is_read_as_it_was_written() -> None:
    files = {"b": HubFile(3, SHA1), "a/c": HubFile(1 << 40, SHA1, SHA256, "3" * 64), "d": HubFile(0, SHA1, SHA256)}
    assert parse_tree(tree_text(files).encode()) == files


def test_checksums_are_those_of_the_bytes_and_not_of_a_pointer() -> None:
    assert HubFile(3, SHA1).remote("a").checksums == {"git-sha1": SHA1}
    assert HubFile(3, SHA1, SHA256).remote("a").checksums == {"sha256": SHA256}
    assert HubFile(3, SHA1, "", "3" * 64).remote("a").checksums == {}  # what the object of git is of is not known


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"format_version": 2, "files": {}}', b'{"format_version": 1}', b"[" * 100_000,
        b'{"format_version": 1, "files": {"a": {"size": 1}}}', b'{"format_version": 1, "files": []}',
    ],
)  # fmt: skip
def test_a_cached_listing_that_is_none_is_as_if_it_were_not_there(content: bytes) -> None:
    assert parse_tree(content) is None


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("../a", {"size": 1, "blob_id": SHA1}),
        ("/a", {"size": 1, "blob_id": SHA1}),
        ("a\0", {"size": 1, "blob_id": SHA1}),
        ("a", {"size": -1, "blob_id": SHA1}),
        ("a", {"size": True, "blob_id": SHA1}),
        ("a", {"size": "1", "blob_id": SHA1}),
        ("a", {"size": 1, "blob_id": "../../x"}),
        ("a", {"size": 1, "blob_id": SHA1, "lfs_sha256": "../../x", "lfs_size": 1}),
    ],
)
def test_a_row_that_would_lead_elsewhere_is_refused(name: str, row: dict[str, object]) -> None:
    with pytest.raises(ArtifactError):
        parse_tree(json.dumps({"format_version": 1, "files": {name: row}}).encode())


def test_names_of_commits_and_blobs() -> None:
    assert [is_commit(text) for text in (SHA1, SHA1[:7], SHA256, SHA1 + "\n", "main")] == [True, *[False] * 4]
    assert [is_etag(text) for text in (SHA1, SHA256, SHA1 + "0", "", "../x")] == [True, True, False, False, False]
