"""Bodies up to a limit, also when they are packed."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request
from trims_predictors.endpoint.bodies import TooLargeBodyError, accepted_coding, pack, read_body, read_object
from trims_predictors.tensors import COPIED_AT_ONCE_BYTES

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def read(*parts: bytes, most: int = 1000, **headers: str) -> bytes:
    async def stream() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    given = {name.replace("_", "-"): value for name, value in headers.items()}
    request: Any = SimpleNamespace(headers=given, stream=stream)
    return bytes(asyncio.run(read_body(request, most)))


def read_json(body: bytes) -> object:
    async def stream() -> AsyncIterator[bytes]:
        yield body

    request: Any = SimpleNamespace(headers={}, stream=stream)
    return asyncio.run(read_object(request, 1000))


def test_an_object_is_read_and_nothing_is_an_empty_one() -> None:
    assert read_json(b'{"place": "cpu"}') == {"place": "cpu"}
    assert read_json(b" ") == {}


@pytest.mark.parametrize("wrong", [b"{", b"[]", b"1", b"\xff"])
def test_a_body_that_is_no_object_is_refused(wrong: bytes) -> None:
    with pytest.raises(CallerError, match="the request"):
        read_json(wrong)


def test_a_body_is_put_together_from_its_parts() -> None:
    assert read(b"ab", b"", b"c") == b"abc"
    assert read(b"x" * 1000) == b"x" * 1000
    assert read() == b""


def test_only_a_body_of_more_than_4_mib_is_put_together_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = []

    async def count(work: Any, *given: Any) -> Any:
        threads.append(work)
        return work(*given)

    monkeypatch.setattr(asyncio, "to_thread", count)
    half = COPIED_AT_ONCE_BYTES // 2
    assert len(read(bytes(half), bytes(half), most=1 << 30)) == COPIED_AT_ONCE_BYTES
    assert not threads
    assert len(read(bytes(half), bytes(half + 1), most=1 << 30)) == COPIED_AT_ONCE_BYTES + 1
    assert len(threads) == 1


def test_a_body_that_is_too_large_is_refused_before_it_is_read_or_once_it_is_seen() -> None:
    for parts, headers in (((), {"content_length": "1001"}), ((b"x" * 600, b"x" * 600), {})):
        with pytest.raises(TooLargeBodyError, match="the most this endpoint takes"):
            read(*parts, **headers)


@pytest.mark.parametrize(("encoding", "packer"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_bodies_are_unpacked_up_to_the_same_limit(encoding: str, packer: Any) -> None:
    assert read(packer(b"abc" * 100), content_encoding=encoding) == b"abc" * 100
    with pytest.raises(TooLargeBodyError):
        read(packer(bytes(1001)), content_encoding=encoding)
    with pytest.raises(CallerError, match="ends in the middle"):
        read(packer(b"abc")[:-2], content_encoding=encoding)
    with pytest.raises(CallerError, match=f"is not {encoding}"):
        read(b"abc", content_encoding=encoding)


def test_gzip_in_several_members_is_one_body_and_what_is_none_is_refused() -> None:
    members = gzip.compress(b"abc") + gzip.compress(b"") + gzip.compress(b"def" * 300)
    assert read(members, content_encoding="gzip") == b"abc" + b"def" * 300
    with pytest.raises(TooLargeBodyError):
        read(gzip.compress(bytes(600)) * 2, content_encoding="gzip")
    with pytest.raises(CallerError, match="is not gzip"):
        read(gzip.compress(b"abc") + b"rubbish", content_encoding="gzip")
    with pytest.raises(CallerError, match="ends in the middle"):
        read(gzip.compress(b"abc") + gzip.compress(b"def")[:-3], content_encoding="gzip")
    with pytest.raises(CallerError, match="7 bytes follow the deflate body"):
        read(zlib.compress(b"abc") + b"rubbish", content_encoding="deflate")
    with pytest.raises(CallerError, match="more than 1024 members"):
        read(gzip.compress(b"") * 1025, content_encoding="gzip", most=1 << 30)


def test_an_unknown_packing_is_refused() -> None:
    with pytest.raises(CallerError, match="gzip, deflate are"):
        read(b"abc", content_encoding="br")


def coding_of(accepted: str) -> str | None:
    return accepted_coding(Request({"type": "http", "headers": [(b"accept-encoding", accepted.encode())]}))


def test_an_answer_is_packed_in_a_coding() -> None:
    assert gzip.decompress(pack([memoryview(b"abc" * 100)], "gzip")) == b"abc" * 100
    assert zlib.decompress(pack([memoryview(b"abc")], "deflate")) == b"abc"


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip, deflate", "gzip"), ("deflate", "deflate"), ("", None), ("identity", None), ("*", None),
        ("br, gzip", None),
        ("gzip;q=0", None), ("gzip;q=0, deflate", "deflate"), ("gzip; q=0.5, deflate;q=0.8", "deflate"),
        ("gzip;q=0.5, identity", None), ("GZIP;Q=1.0", "gzip"), ("x-gzip", "gzip"), ("*;q=0, gzip", "gzip"),
        ("identity;q=0, *", "gzip"), ("*;q=0, deflate;q=0.1, br", "deflate"), ("br, gzip;q=0.9", None), (",, ", None),
        ("br;q=0.2, gzip;q=0.3", "gzip"), ("br, gzip;q=0.8, *;q=0.1", "gzip"), ("br, identity;q=0.5, gzip;q=0.4", None),
    ],
)  # fmt: skip
def test_an_answer_is_packed_as_the_weights_of_the_client_say(accepted: str, coding: str | None) -> None:
    assert coding_of(accepted) == coding


@pytest.mark.parametrize("accepted", ["identity;q=0", "*;q=0", "br, *;q=0", "gzip;q=2", "gzip;q=", "a," * 33])
def test_codings_that_cannot_be_met_or_are_none_are_refused(accepted: str) -> None:
    with pytest.raises(CallerError, match="Accept-Encoding"):
        coding_of(accepted)
