"""Buckets of S3 against a stub: what is signed, and what answers of a bad day become."""

from __future__ import annotations

import base64
import logging
import traceback
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from object_stub import object_stub, read_whole, settings

from trims.core.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    ConfigError,
    NotSupportedError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources import s3
from trims.sources.buckets import ObjectAddress
from trims.sources.objects import ObjectSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from object_stub import Stub

    from trims.sources.ranged import RangedFiles

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAMADEUP",
    "AWS_SECRET_ACCESS_KEY": "made-up-secret",
    "AWS_SESSION_TOKEN": "made-up-token",
}
CRC = base64.b64encode(bytes(range(8))).decode()
SIGNED = {"X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token"}
ADDRESS = "s3://bucket/a/model.bin"
PATH = "/bucket/a/model.bin"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with object_stub() as made:
        made.objects[PATH] = b"weights"
        made.headers[PATH] = {"ETag": '"one"', "x-amz-checksum-crc64nvme": CRC}
        yield made


def opened(stub: Stub, address: str = ADDRESS, signed_for_s: float = 3600.0, **more: str) -> RangedFiles:
    environment = {**KEYS, "AWS_ENDPOINT_URL": stub.url, **more}
    return ObjectSource(settings(**environment), "s3", signed_for_s=signed_for_s).open(address)


def test_the_look_is_signed_with_the_header_that_asks_for_checksums(stub: Stub) -> None:
    with closing(opened(stub)) as found:
        assert found.files[0].checksums == {"crc64nvme": bytes(range(8)).hex()}
    (asked,) = stub.asked
    signed = asked.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert (asked.method, asked.path) == ("HEAD", PATH)
    assert {"host", "x-amz-checksum-mode", "x-amz-date", "x-amz-security-token"} <= set(signed)
    assert asked.headers["x-amz-checksum-mode"] == "ENABLED"
    assert "/us-east-1/s3/aws4_request" in asked.headers["authorization"]


def test_bytes_are_asked_for_at_a_signed_address_with_the_version_as_condition(stub: Stub) -> None:
    with closing(opened(stub, signed_for_s=60)) as found:
        read_whole(found, found.files[0], 4)
    asked = stub.asked[1:]
    assert [each.headers["range"] for each in asked] == ["bytes=0-6"]
    assert asked[0].query.keys() >= SIGNED
    assert asked[0].query["X-Amz-Expires"] == "60"
    assert asked[0].headers["if-match"] == '"one"'


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc64nvme": CRC, "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-crc32c": base64.b64encode(b"abcd").decode() + "-3"},
        {"x-amz-checksum-crc32c": "no base64"},
        {"x-amz-checksum-sha256": base64.b64encode(b"abcd").decode()},
    ],
)
def test_a_checksum_of_parts_or_of_another_length_is_left_out(headers: dict[str, str], stub: Stub) -> None:
    stub.headers[PATH] = headers
    with closing(opened(stub)) as found:
        assert found.files[0].checksums == {}


def test_an_expired_signature_is_made_again(stub: Stub) -> None:
    with closing(opened(stub)) as found:
        (file,) = found.files
        stub.answers.append(
            (403, {}, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        )
        assert read_whole(found, file) == b"weights"
    assert stub.seen[1:] == [f"GET {PATH}"] * 2


def test_a_signature_is_made_again_before_its_end(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("trims.sources.ranged.time.monotonic", lambda: now_s[0])
    with closing(opened(stub, signed_for_s=1)) as found:
        (file,) = found.files
        bucket, made = s3.S3Bucket.location, []
        monkeypatch.setattr(s3.S3Bucket, "location", lambda self, key: made.append(key) or bucket(self, key))
        read_whole(found, file)
        now_s[0] += 0.7
        read_whole(found, file)
        assert len(made) == 1
        now_s[0] += 0.2
        read_whole(found, file)
    assert made == ["a/model.bin"] * 2


def _error(code: str, more: str = "") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message>{more}</Error>".encode()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", SourceRefusedError),
        (403, "InvalidAccessKeyId", SourceRefusedError),
        (403, "SignatureDoesNotMatch", SourceRefusedError),
        (400, "ExpiredToken", SourceRefusedError),
        (403, "RequestTimeTooSkewed", SourceRefusedError),
    ],
)
def test_a_refused_look_says_why_and_where_credentials_were_looked_for(
    status: int, code: str, error: type[TrimsError], stub: Stub
) -> None:
    stub.answers += [(status, {}, b""), (status, {}, _error(code))]
    with pytest.raises(error) as caught:
        opened(stub)
    assert code in str(caught.value)
    assert "bucket" in str(caught.value)
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)


def test_a_look_that_may_list_and_not_read_is_refused(stub: Stub) -> None:
    stub.answers.append((403, {}, b""))
    stub.listing = b"<ListBucketResult></ListBucketResult>"
    with pytest.raises(SourceRefusedError, match="AWS_ACCESS_KEY_ID"):
        opened(stub)


@pytest.mark.parametrize(
    "answers",
    [
        [(301, {"x-amz-bucket-region": "eu-west-1"}, b"")],
        [(400, {"x-amz-bucket-region": "eu-west-1"}, b"")],
        [(400, {}, b""), (400, {}, _error("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"))],
        [(404, {}, b""), (301, {}, _error("PermanentRedirect", "<Region>eu-west-1</Region>"))],
    ],
)
def test_a_wrong_region_is_named_with_the_right_one(
    answers: list[tuple[int, dict[str, str], bytes]], stub: Stub
) -> None:
    stub.answers += answers
    with pytest.raises(ConfigError, match="AWS_REGION") as caught:
        opened(stub, AWS_REGION="us-west-2")
    assert "us-west-2" in str(caught.value)


def test_a_region_that_is_not_stated_is_found_out(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ANY_REGION_URL", stub.url)
    stub.answers.append((403, {"x-amz-bucket-region": "eu-north-1"}, b""))
    base = settings(**KEYS)
    client = base.http.naming("127.0.0.1")
    address = ObjectAddress.parse(ADDRESS)
    with closing(client):
        bucket = s3.S3Bucket(address, type(base)(client, base.environment), 60)
        place = bucket.location("a/model.bin")
        bucket.http.close()
    assert stub.seen == ["HEAD /bucket"]
    assert place.url.startswith("https://s3.eu-north-1.amazonaws.com/bucket/a/model.bin?")


def test_a_bucket_that_no_region_has_is_not_there(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ANY_REGION_URL", stub.url)
    stub.answers.append((404, {}, b""))
    base = settings(**KEYS)
    with closing(base.http.naming("127.0.0.1")) as client, pytest.raises(ArtifactNotFoundError, match="bucket"):
        ObjectSource(type(base)(client, base.environment), "s3").open(ADDRESS)


def test_a_virtual_hosted_endpoint_has_no_bucket_in_its_path(stub: Stub) -> None:
    stub.objects["/a/model.bin"] = b"virtual"
    with closing(opened(stub, AWS_VIRTUAL_HOSTED_STYLE_REQUEST="true")) as found:
        assert read_whole(found, found.files[0]) == b"virtual"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_busy_store_may_be_asked_again(status: int, stub: Stub) -> None:
    stub.answers.append((status, {"Retry-After": "3"}, b""))
    with pytest.raises(SourceUnavailableError) as caught:
        opened(stub)
    assert caught.value.retryable
    assert caught.value.retry_after_s == 3


def test_a_store_that_is_not_reached_may_be_asked_again() -> None:
    with pytest.raises(SourceUnavailableError):
        ObjectSource(settings(**KEYS, AWS_ENDPOINT_URL="http://127.0.0.1:9"), "s3").open(ADDRESS)


def test_a_look_without_a_length_is_an_error(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.answers.append((302, {"Location": stub.url}, b""))
    with pytest.raises(ArtifactError):
        opened(stub)
    assert stub.seen == [f"HEAD {PATH}"]


@pytest.mark.parametrize("name", ["AWS_SSE_CUSTOMER_KEY_BASE64", "AWS_REQUEST_PAYER", "AWS_S3_EXPRESS"])
def test_a_variable_that_reading_cannot_honour_is_refused_by_name(name: str, stub: Stub) -> None:
    with pytest.raises(NotSupportedError, match=name):
        opened(stub, **{name: "true"})
    with pytest.raises(NotSupportedError, match="directory"):
        opened(stub, "s3://name--use1-az4--x-s3/x")


def test_no_secret_is_in_what_people_see(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = {*KEYS.values()} - {KEYS["AWS_ACCESS_KEY_ID"]} | {"X-Amz-Signature=", "Signature="}
    bucket = s3.S3Bucket(ObjectAddress.parse(ADDRESS), settings(**KEYS, AWS_ENDPOINT_URL=stub.url), 60)
    place = bucket.location("a/model.bin")
    seen = [repr(place), repr(bucket), repr(bucket.store), repr(bucket.for_look("k"))]
    assert "X-Amz-Signature=" in place.url
    for status in (400, 401, 403, 404, 500):
        stub.answers += [(status, {}, b""), (status, {}, _error("Any", f"<Echo>{place.url}</Echo>"))]
        with pytest.raises(TrimsError) as caught:
            bucket.look_below("a") if bucket.look("a") is None else None
        seen.append("".join([repr(caught.value), *traceback.format_exception(caught.value)]))
        stub.answers.clear()
    bucket.http.close()
    assert not [each for each in (*seen, caplog.text) for secret in secrets if secret in each]
