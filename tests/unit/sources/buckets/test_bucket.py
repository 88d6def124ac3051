"""Addresses of object stores, and what any bucket does."""

from __future__ import annotations

import pytest

from trims.core.errors import CallerError
from trims.sources.buckets.bucket import ObjectAddress, hexadecimal


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket/a/b", ObjectAddress("s3", "bucket", "a/b")),
        ("s3://bucket/a/b/", ObjectAddress("s3", "bucket", "a/b", folder=True)),
        ("s3://bucket", ObjectAddress("s3", "bucket", "", folder=True)),
        ("gs://b_c.example/x#y?z", ObjectAddress("gs", "b_c.example", "x#y?z")),
        ("az://$root/x", ObjectAddress("az", "$root", "x")),
        ("abfss://cont@acct.dfs.core.windows.net/x", ObjectAddress("abfss", "cont", "x", "acct")),
    ],
)
def test_an_address_is_taken_apart(address: str, expected: ObjectAddress) -> None:
    assert ObjectAddress.parse(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        "s3:/bucket/x",
        "s3:///x",
        "s3://-b/x",
        "s3://a b/x",
        "s3://bucket//x",
        "s3://bucket/a//b",
        "s3://bucket/a//",
        "s3://bucket/../x",
        "s3://bucket/a/./b",
        "s3://bucket/a\nb",
        "s3://bucket/a\0b",
        "s3://host:80/x",
        "s3://cont@acct.dfs.core.windows.net/x",
        "abfs://cont@acct#x.dfs.core.windows.net/x",
        "abfs://cont@/x",
    ],
)
def test_an_address_that_the_store_would_read_otherwise_is_refused(address: str) -> None:
    with pytest.raises(CallerError):
        ObjectAddress.parse(address)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    with pytest.raises(CallerError) as caught:
        ObjectAddress.parse("s3://KEY:made-up-secret@bucket/x")
    assert "made-up-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "digits"), [("AAECAw==", "00010203"), ("AAECAw==-2", None), ("AAEC", None), ("", None)]
)
def test_a_checksum_is_turned_into_hexadecimal_or_left_out(text: str, digits: str | None) -> None:
    assert hexadecimal(text, 4) == digits
