"""Addresses: which texts are some, which are refused, and what they stand for."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import CallerError
from trims.manifests.addresses import (
    address_identity,
    check_address,
    host_of,
    is_address,
    local_artifact,
    name_for,
    path_of,
    query_of,
    scheme_of,
    without_secret,
)


@pytest.mark.parametrize(
    ("text", "scheme", "address"),
    [
        ("s3://b/k", "s3", True),
        ("hf://org/name", "hf", True),
        ("https://h/m", "https", True),
        ("file:/m", "file", True),
        ("own+x://a", "own+x", True),
        ("own:a", "own", False),
        ("HF://org/name", "hf", True),
        ("Own+X://a", "own+x", True),
        ("C:\\models", "", False),
        ("c:/models", "", False),
        ("/models/m.bin", "", False),
        ("m.bin", "", False),
        ("", "", False),
    ],
)
def test_a_text_is_an_address_by_its_scheme(text: str, scheme: str, address: bool) -> None:
    assert (scheme_of(text), is_address(text)) == (scheme, address)


@pytest.mark.parametrize(
    "text", ["s3://b/k", "hf://org/name@rev/x", "https://h:8443/m?x=1", "az://c@account/k", "own://a", "s3://b/a b?c#d"]
)
def test_an_address_that_is_fetched_is_taken_as_it_is(text: str) -> None:
    assert check_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "m.bin", "file:///m", "pkg://a/b", "build://a:b", "s3:///k", "https://", "http://h/a b", "http://h/\n",
        "http://h/" + "x" * 2048, "http://[::1/m", "http://h:port/m", "http://h:99999/m", "http://me@h/m",
        "https://me:word@h/m", "s3://key:word@b/k", "s3://b/k ", "hf://org/a b", "http://h/m#part",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_its_secrets(text: str) -> None:
    with pytest.raises(CallerError) as raised:
        check_address(text)
    assert raised.value.code == "bad_request"
    assert "word" not in str(raised.value)


def test_a_scheme_may_be_in_upper_case() -> None:
    assert check_address("S3://Bucket/Key") == "s3://Bucket/Key"
    assert check_address("HTTPS://h/M") == "https://h/M"
    assert local_artifact("FILE:///m") == {"path": "/m"}
    assert local_artifact("BUILD://my.mod:make") == {"builder": {"call": "my.mod:make", "args": {}}}


@pytest.mark.parametrize(
    ("address", "path", "query"),
    [
        ("s3://b/m?x#y", "/m?x#y", ""),
        ("s3://b", "", ""),
        ("abfs://c@a.dfs.core.windows.net/k?", "/k?", ""),
        ("https://h/m?x#y", "/m", "x"),
    ],
)
def test_a_key_of_an_object_store_has_no_query(address: str, path: str, query: str) -> None:
    assert (path_of(address), query_of(address)) == (path, query)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("file:///models/a%20b.bin", {"path": "/models/a b.bin"}),
        ("file://localhost/m", {"path": "/m"}),
        ("pkg://my.models/data/m.bin", {"package": {"name": "my.models", "path": "data/m.bin"}}),
        ("build://my.mod:make", {"builder": {"call": "my.mod:make", "args": {}}}),
        ("build://m:f?n=3&w=[1]&s=x&e=", {"builder": {"call": "m:f", "args": {"n": 3, "w": [1], "s": "x", "e": ""}}}),
        ("s3://b/k", None),
        ("/m.bin", None),
    ],
)
def test_an_address_of_this_machine_stands_for_fields_of_a_manifest(text: str, fields: Any) -> None:
    assert local_artifact(text) == fields


@pytest.mark.parametrize(
    "text",
    [
        "file:m.bin", "file://host/m", "file:///m?x", "file:///a%00b", "file://[x/m", "pkg://my-models/m", "pkg://my",
        "pkg://my/../../etc/passwd", "pkg://my/%2e%2e/x", "pkg://my/a%00", "build://m", "build://m:f.g", "build://:f",
    ],
)  # fmt: skip
def test_a_malformed_address_of_this_machine_is_the_callers_error(text: str) -> None:
    with pytest.raises(CallerError):
        local_artifact(text)


def test_only_servers_are_named_as_hosts() -> None:
    assert host_of("https://Models.LAN:8443/m") == "models.lan"
    assert host_of("s3://bucket/m") == host_of("hf://org/m") == ""


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("hf://org/Qwen2-0.5B@main", "qwen2-0.5b"),
        ("https://h/a/model.safetensors.index.json", "model"),
        ("s3://b/bert-base/", "bert-base"),
        ("https://h/a%20b.pt", "a-b"),
    ],
)
def test_a_name_is_made_from_the_last_part(address: str, name: str) -> None:
    assert name_for(address) == name


@pytest.mark.parametrize("address", ["https://h/", "s3://b", "https://h/...bin"])
def test_an_address_without_a_name_asks_for_one(address: str) -> None:
    with pytest.raises(CallerError, match="--name"):
        name_for(address)


_AWS = "X-Amz-Algorithm=A&X-Amz-Credential=me%2Fus&X-Amz-Date=1&X-Amz-Expires=9&X-Amz-SignedHeaders=h&X-Amz-Signature=5"


@pytest.mark.parametrize(
    ("address", "identity"),
    [
        (f"https://b/k?{_AWS}", "https://b/k"),
        (f"https://b/k?versionId=3&{_AWS}&x=1", "https://b/k?versionId=3&x=1"),
        ("https://b/k?AWSAccessKeyId=me&Signature=s&Expires=1", "https://b/k"),
        ("https://b/k?GoogleAccessId=me&Signature=s&Expires=1&generation=7", "https://b/k?generation=7"),
        ("https://a/c/k?snapshot=1&sv=2&sr=b&se=3&sp=r&sig=s", "https://a/c/k?snapshot=1"),
        ("https://h/m?Signature=s&Expires=1", "https://h/m?Signature=s&Expires=1"),
        ("https://h/m?sv=1&sp=2", "https://h/m?sv=1&sp=2"),
        ("https://h/m?", "https://h/m?"),
        (f"s3://b/k?{_AWS}", f"s3://b/k?{_AWS}"),
    ],
)
def test_only_signatures_of_the_clouds_are_no_part_of_what_an_address_stands_for(address: str, identity: str) -> None:
    assert address_identity(address) == identity


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://h/m?f=v1", "https://h/m?f=v1"),
        ("https://h/m?f=v1&token=abc&key=", "https://h/m?f=v1&token=...&key=..."),
        (f"https://b/k?versionId=3&{_AWS}", "https://b/k?versionId=3"),
        (f"https://b/k?{_AWS}", "https://b/k"),
    ],
)
def test_an_address_is_shown_whole_but_for_its_secrets(address: str, shown: str) -> None:
    assert without_secret(address) == shown
