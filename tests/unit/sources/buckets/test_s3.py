"""Buckets of S3 against a stub: what is signed, and what answers of a bad day become."""

from __future__ import annotations

import base64
import logging
import ssl
import traceback
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from awscrt.io import ClientBootstrap
from certificates import make_certificate
from object_stub import object_stub, read_whole, settings

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    ConfigError,
    NotSupportedError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.buckets import s3
from trims.sources.buckets.bucket import ObjectAddress
from trims.sources.buckets.objects import ObjectSource
from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.settings import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_stub import Stub

    from trims.sources.http.ranged import RangedFiles

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAMADEUP",
    "AWS_SECRET_ACCESS_KEY": "made-up-secret",
    "AWS_SESSION_TOKEN": "made-up-token",
}
CRC = base64.b64encode(bytes(range(8))).decode()
SIGNED = {"X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token"}
LISTING = b"""<?xml version='1.0'?><ListBucketResult><Contents><Key>a/model.bin</Key><Size>7</Size>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"one"</ETag></Contents></ListBucketResult>"""
ADDRESS = "s3://bucket/a/model.bin"
PATH = "/bucket/a/model.bin"


@pytest.fixture(scope="module", autouse=True)
def _library_is_warm() -> None:
    """Make the library's event loop, which it keeps for the life of the process, before anything is counted."""
    ClientBootstrap.get_or_create_static_default()


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


def test_variables_of_the_process_do_not_replace_those_of_the_source(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_process = {"AWS_ACCESS_KEY_ID": "PROCESS", "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "y"}
    of_process |= {"AWS_SKIP_SIGNATURE": "true", "AWS_REGION": "eu-west-3", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    for name, value in of_process.items():
        monkeypatch.setenv(name, value)
    stub.listing = LISTING
    with closing(opened(stub, "s3://bucket/a/", AWS_REGION="eu-west-1")) as found:
        read_whole(found, found.files[0])
    signed = [each.headers.get("authorization", each.query.get("X-Amz-Credential", "")) for each in stub.asked]
    assert len(signed) == 3
    assert [each for each in signed if "AKIAMADEUP" not in each or "/eu-west-1/" not in each] == []


# fault (stores): a signed address expires -> nothing; signed again
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
    monkeypatch.setattr("trims.sources.http.ranged.time.monotonic", lambda: now_s[0])
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


# fault (stores): credentials missing, wrong or expired -> `source_refused` with the store's code and where they were
# looked for
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


def test_missing_credentials_name_the_object_and_the_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS, "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent/aws")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    source = ObjectSource(settings(AWS_ENDPOINT_URL="http://127.0.0.1:9"), "s3")
    with pytest.raises(SourceRefusedError, match="AWS_ACCESS_KEY_ID") as caught:
        source.open(ADDRESS)
    assert ADDRESS in str(caught.value)


def test_a_look_that_may_list_and_not_read_is_refused(stub: Stub) -> None:
    stub.answers.append((403, {}, b""))
    stub.listing = b"<ListBucketResult></ListBucketResult>"
    with pytest.raises(SourceRefusedError, match="AWS_ACCESS_KEY_ID"):
        opened(stub)


# fault (stores): another region, or no bucket -> `bad_config`, `artifact_not_found`
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
        bucket = s3.S3Bucket(address, SourceSettings(client, base.environment), 60)
        place = bucket.location("a/model.bin")
        bucket.http.close()
    assert stub.seen == ["HEAD /bucket"]
    assert place.url.startswith("https://s3.eu-north-1.amazonaws.com/bucket/a/model.bin?")


@pytest.mark.parametrize("headers", [{}, {"x-amz-bucket-region": "evil.example/"}])
def test_a_region_that_cannot_be_found_out_is_asked_for(
    headers: dict[str, str], stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ANY_REGION_URL", stub.url)
    stub.answers.append((403, headers, b""))
    base = settings(**KEYS)
    closed: list[Http] = []
    close = Http.close
    monkeypatch.setattr(Http, "close", lambda self: closed.append(self) or close(self))
    with closing(base.http.naming("127.0.0.1")) as client:
        with pytest.raises(SourceUnavailableError, match="AWS_REGION"):
            ObjectSource(SourceSettings(client, base.environment), "s3").open(ADDRESS)
        assert [each is not client for each in closed] == [True]  # the one that the source made for itself


def test_a_bucket_that_no_region_has_is_not_there(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ANY_REGION_URL", stub.url)
    stub.answers.append((404, {}, b""))
    base = settings(**KEYS)
    with closing(base.http.naming("127.0.0.1")) as client, pytest.raises(ArtifactNotFoundError, match="bucket"):
        ObjectSource(SourceSettings(client, base.environment), "s3").open(ADDRESS)


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


def test_an_archived_object_is_refused_until_it_is_restored(stub: Stub) -> None:
    stub.headers[PATH] = {"x-amz-storage-class": "DEEP_ARCHIVE", "x-amz-restore": 'ongoing-request="true"'}
    with pytest.raises(ArtifactError, match="DEEP_ARCHIVE"):
        opened(stub)
    stub.headers[PATH]["x-amz-restore"] = 'ongoing-request="false", expiry-date="..."'
    opened(stub).close()


def test_a_setting_that_the_library_refuses_is_an_error_of_settings(stub: Stub) -> None:
    with pytest.raises(ConfigError):
        opened(stub, AWS_CHECKSUM_ALGORITHM="MADE-UP")


def test_a_listed_object_that_is_gone_when_looked_at_has_changed(stub: Stub) -> None:
    stub.listing = LISTING
    del stub.objects[PATH]
    with pytest.raises(ArtifactChangedError, match=r"a/model\.bin"):
        opened(stub, "s3://bucket/a/")


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://host", "http://", "//host"])
def test_an_endpoint_that_is_no_address_is_refused_by_its_variable(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL_S3"):
        ObjectSource(settings(**KEYS, AWS_ENDPOINT_URL_S3=endpoint), "s3").open(ADDRESS)


def test_authorities_of_the_operator_are_trusted_for_all_requests(tmp_path: Path) -> None:
    authority, certificate = make_certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(authority))  # as our client's would be with the variable
    with object_stub(server) as stub, closing(Http(HostPolicy(), tls=trusting)) as client:
        stub.objects[PATH], stub.listing = b"weights", LISTING
        environment = {**KEYS, "AWS_ENDPOINT_URL": stub.url, "SSL_CERT_FILE": str(authority)}
        with closing(ObjectSource(SourceSettings(client, environment), "s3").open("s3://bucket/a/")) as found:
            assert read_whole(found, found.files[0]) == b"weights"
        environment["SSL_CERT_FILE"] = str(tmp_path / "absent")
        with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
            ObjectSource(SourceSettings(client, environment), "s3").open("s3://bucket/a/")


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
