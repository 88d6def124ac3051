"""Descriptions of pushed images: written, read back, and refused when they are hostile."""

# fault (sources): a hostile description -> `bad_artifact`, `not_supported`

from __future__ import annotations

import json
from typing import Any

import pytest

from trims.core.errors import ArtifactError, NotSupportedError
from trims.sources.descriptor import (
    ImageDescription,
    address_of,
    image_address,
    is_guess,
    parse,
    stored_as,
    wrong_fields,
)

IMAGE = ImageDescription(
    "bert", "a" * 64, "b" * 64, 1000, {"crc64nvme": "0" * 16}, "a.safetensors", "torch", {"format": "torch"},
    {"framework": {"name": "torch"}}, "", 1.5,
)  # fmt: skip


def raw(**changed: Any) -> bytes:
    return json.dumps({**json.loads(IMAGE.written()), **changed}).encode()


def test_what_is_written_is_read_back() -> None:
    assert ImageDescription(**parse(IMAGE.written(), "s3://b/trims.json")) == IMAGE
    assert wrong_fields(vars(IMAGE)) == ""


def test_fields_of_later_versions_of_the_same_format_are_passed_over() -> None:
    assert ImageDescription(**parse(raw(colour="blue"), "x")) == IMAGE


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "other"},
        {"key": "A" * 64},
        {"key": 7},
        {"digest": "b" * 63},
        {"nbytes": 0},
        {"nbytes": True},
        {"nbytes": 1 << 60},
        {"file": "../../etc/passwd"},
        {"file": "a/b"},
        {"file": ""},
        {"checksums": {}},
        {"checksums": {"crc64nvme": "zz"}},
        {"checksums": {"crc64nvme": "0" * 16, "no-such": "1"}},
        {"checksums": {"crc64nvme": "0" * 16, "sha256": 5}},
        {"recipe": []},
        {"recipe": {"format": 3}},
        {"manifest": "x"},
        {"signature": None},
        {"cost_s": "cheap"},
        {"cost_s": -1},
        {"cost_s": float("nan")},
        {"cost_s": float("inf")},
        {"cost_s": True},
    ],
    ids=str,
)
def test_a_description_with_a_wrong_field_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=r"s3://b/trims\.json"):
        parse(raw(**changed), "s3://b/trims.json")


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"\xff", b"[" * 100_000, b"null"], ids=["", "list", "text", "deep", "null"]
)
def test_what_is_no_description_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        parse(data, "x")


@pytest.mark.parametrize("version", [2, None, "1"])
def test_a_later_format_is_refused_as_one(version: object) -> None:
    with pytest.raises(NotSupportedError):
        parse(raw(format_version=version), "x")


@pytest.mark.parametrize(
    ("address", "where", "guess"),
    [
        ("s3://b/bert", "s3://b/bert/trims.json", False),
        ("s3://b/bert/", "s3://b/bert/trims.json", False),
        ("s3://b/bert/trims.json", "s3://b/bert/trims.json", False),
        ("https://h/bert", "https://h/bert/trims.json", True),
        ("https://h/bert/", "https://h/bert/trims.json", False),
        ("https://h/bert/trims.json", "https://h/bert/trims.json", False),
        ("s3://b/model.safetensors", None, False),
        ("s3://b/m?x#y", "s3://b/m?x#y/trims.json", False),
        ("s3://b/m?x#y/trims.json", "s3://b/m?x#y/trims.json", False),
        ("https://h/m?token=x", None, True),
        ("hf://org/name", None, False),
    ],
)
def test_where_a_description_would_lie(address: str, where: str | None, guess: bool) -> None:
    assert address_of(address) == where
    assert is_guess(address) == guess


def test_an_image_lies_beside_its_description() -> None:
    assert image_address("s3://b/bert", "k.safetensors") == "s3://b/bert/k.safetensors"
    assert image_address("s3://b/bert/trims.json", "k.safetensors") == "s3://b/bert/k.safetensors"
    assert image_address("s3://b/m?x#y", "k.safetensors") == "s3://b/m?x#y/k.safetensors"


def test_what_the_store_has_is_stated_beside_the_image_and_is_no_part_of_it() -> None:
    written = IMAGE.written('"etag"')
    assert stored_as(written) == '"etag"'
    assert ImageDescription(**parse(written, "x")) == IMAGE
    assert stored_as(IMAGE.written()) == stored_as(raw(stored_as=7)) == ""
