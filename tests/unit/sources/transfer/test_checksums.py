"""Checksums: pieces that combine, and digests in order."""

from __future__ import annotations

import hashlib

import blake3
import pytest
from awscrt import checksums as crt

from trims.core.errors import DigestMismatchError
from trims.sources.transfer import checksums

DATA = bytes(range(256)) * 9


@pytest.mark.parametrize(
    ("name", "whole"), [("crc64nvme", f"{crt.crc64nvme(DATA):016x}"), ("crc32c", f"{crt.crc32c(DATA):08x}")]
)
@pytest.mark.parametrize("edges", [(0, len(DATA)), (0, 1, 1000, len(DATA))])
def test_checksums_of_pieces_combine_to_that_of_the_whole(name: str, whole: str, edges: tuple[int, ...]) -> None:
    view = memoryview(DATA)
    pieces = [view[a:b] for a, b in zip(edges, edges[1:], strict=False)]  # noqa: RUF007 - two of a tuple
    assert checksums.combined(name, [(checksums.of_piece(name, each), len(each)) for each in pieces]) == whole


def test_nothing_has_the_checksum_of_nothing() -> None:
    assert checksums.combined("crc64nvme", []) == "0" * 16


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("sha256", hashlib.sha256(DATA).hexdigest()),
        ("blake3", blake3.blake3(DATA).hexdigest()),
        ("git-sha1", hashlib.sha1(b"blob 2304\0" + DATA, usedforsecurity=False).hexdigest()),
    ],
)
def test_a_digest_in_order_is_that_of_its_algorithm(name: str, digest: str) -> None:
    hasher = checksums.hasher(name, len(DATA))
    hasher.update(DATA[:1000])
    hasher.update(DATA[1000:])
    assert hasher.hexdigest() == digest


def test_only_digests_that_both_sides_have_are_compared_and_both_are_shown() -> None:
    checksums.compare("m", {"sha256": "aa"}, {"blake3": "bb"}, "x")
    checksums.compare("m", {"sha256": "aa"}, {"sha256": "aa", "blake3": "bb"}, "x")
    with pytest.raises(DigestMismatchError) as raised:
        checksums.compare("m.bin", {"sha256": "aa"}, {"sha256": "bb"}, "its source states")
    assert all(word in str(raised.value) for word in ("m.bin", "aa", "bb"))
