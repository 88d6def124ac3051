"""Buckets of Google Cloud Storage against a stub, signed with a key that was made up."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pytest
from awscrt import checksums
from object_stub import object_stub, read_whole, settings

from trims.core.errors import ArtifactNotFoundError, ConfigError, SourceRefusedError
from trims.sources.buckets.objects import ObjectSource, open_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_stub import Stub

    from trims.sources.http.ranged import RangedFiles

DATA = b"weights of a model"
PATH = "/bucket/a/model b.bin"
ADDRESS = "gs://bucket/a/model b.bin"
HASH = base64.b64encode(checksums.crc32c(DATA).to_bytes(4, "big")).decode()
LISTING = b"""<?xml version='1.0'?><ListBucketResult><Contents><Key>a/model b.bin</Key><Size>18</Size>
<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"one"</ETag></Contents></ListBucketResult>"""


@cache
def service_account() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"client_email": "made-up@example.com", "private_key_id": "id", "private_key": pem.decode()}
    return json.dumps({"type": "service_account", **account})


@pytest.fixture
def stub() -> Iterator[Stub]:
    with object_stub() as made:
        made.objects[PATH] = DATA
        made.headers[PATH] = {"ETag": '"one"', "x-goog-hash": f"crc32c={HASH},md5=XUFAKrxLKna5cZ2REBfFkg=="}
        made.listing = LISTING
        yield made


def opened(stub: Stub, address: str = ADDRESS, **more: str) -> RangedFiles:
    return ObjectSource(settings(GOOGLE_BASE_URL=stub.url, **more), "gs").open(address)


def test_an_object_is_looked_at_and_read_at_signed_addresses(stub: Stub) -> None:
    stub.needs = {"X-Goog-Signature", "X-Goog-Credential", "X-Goog-Expires"}
    with closing(opened(stub, GOOGLE_SERVICE_ACCOUNT_KEY=service_account())) as found:
        (file,) = found.files
        assert (file.name, file.nbytes, file.version) == ("model b.bin", len(DATA), '"one"')
        assert file.checksums == {"crc32c": f"{checksums.crc32c(DATA):08x}"}
        assert read_whole(found, file) == DATA
    assert stub.seen == [f"HEAD {PATH}", f"GET {PATH}"]
    assert stub.asked[0].query["X-Goog-Signature"] != stub.asked[1].query["X-Goog-Signature"]
    assert stub.asked[1].headers["if-match"] == '"one"'


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_a_signed_address_has_a_signature_that_the_key_made(method: str) -> None:
    own = settings(GOOGLE_SERVICE_ACCOUNT_KEY=service_account())
    bucket, found = open_bucket(own, "gs", "gs://bucket/be rt/ü+a=&.bin")
    with closing(bucket.http):
        check_signature(method, bucket.signed(method, found.key).url)


def check_signature(method: str, url: str) -> None:
    """Check a signed address as https://cloud.google.com/storage/docs/authentication/signatures describes it."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding

    parts = urlsplit(url)
    query, _, signature = parts.query.partition("&X-Goog-Signature=")
    fields = dict(parse_qsl(query))
    canonical = (
        f"{method}\n{parts.path}\n{'&'.join(sorted(query.split('&')))}\nhost:{parts.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    )
    scope = fields["X-Goog-Credential"].partition("/")[2]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signed = f"GOOG4-RSA-SHA256\n{fields['X-Goog-Date']}\n{scope}\n{digest}"
    key = serialization.load_pem_private_key(json.loads(service_account())["private_key"].encode(), None)
    key.public_key().verify(bytes.fromhex(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())


def test_a_prefix_is_listed_and_each_object_looked_at(stub: Stub) -> None:
    with closing(opened(stub, "gs://bucket/a/", GOOGLE_SERVICE_ACCOUNT_KEY=service_account())) as found:
        assert [(file.name, file.version) for file in found.files] == [("model b.bin", '"one"')]
        assert read_whole(found, found.files[0]) == DATA


def test_the_application_default_credentials_sign(stub: Stub, tmp_path: Path) -> None:
    file = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    file.parent.mkdir(parents=True)
    file.write_text(service_account())
    with closing(opened(stub, HOME=str(tmp_path))) as found:
        assert read_whole(found, found.files[0]) == DATA
    assert "X-Goog-Signature" in stub.asked[0].query


def test_a_file_of_credentials_is_read_where_it_is_named(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(service_account())
    with closing(opened(stub, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "key.json"))) as found:
        assert found.files[0].nbytes == len(DATA)
    with pytest.raises(ConfigError, match=r"absent.json.*GOOGLE_APPLICATION_CREDENTIALS"):
        opened(stub, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "absent.json"))


def test_a_key_that_cannot_be_read_is_refused_without_it(stub: Stub) -> None:
    with pytest.raises(ConfigError, match="GOOGLE_SERVICE_ACCOUNT_KEY") as caught:
        opened(stub, GOOGLE_SERVICE_ACCOUNT_KEY='{"type": "service_account", "private_key": ["made-up-secret"]}')
    assert "made-up-secret" not in str(caught.value)


def test_a_token_goes_with_the_requests_and_is_shown_nowhere(stub: Stub) -> None:
    with closing(opened(stub, GOOGLE_BEARER_TOKEN="made-up-token")) as found:
        assert read_whole(found, found.files[0]) == DATA
    assert {each.headers["authorization"] for each in stub.asked} == {"Bearer made-up-token"}
    assert not [each for each in stub.asked if each.query]


def test_a_public_bucket_is_read_without_credentials(stub: Stub) -> None:
    with closing(opened(stub, "gs://bucket/a", GOOGLE_SKIP_SIGNATURE="true")) as found:
        assert read_whole(found, found.files[0]) == DATA
    assert not [each for each in stub.asked if "authorization" in each.headers or "X-Goog-Signature" in each.query]


def test_a_bucket_that_is_not_there_is_named(stub: Stub) -> None:
    stub.answers += [(404, {}, b""), (404, {}, b"<Error><Code>NoSuchBucket</Code></Error>")]
    with pytest.raises(ArtifactNotFoundError, match="no bucket bucket"):
        opened(stub, GOOGLE_SERVICE_ACCOUNT_KEY=service_account())


def test_a_refusal_names_bucket_and_places_of_credentials(stub: Stub) -> None:
    stub.answers += [(403, {}, b""), (403, {}, b"<Error><Code>AccessDenied</Code></Error>")]
    with pytest.raises(SourceRefusedError, match=r"AccessDenied.*bucket.*GOOGLE_SERVICE_ACCOUNT") as caught:
        opened(stub, GOOGLE_SERVICE_ACCOUNT_KEY=service_account())
    assert "PRIVATE KEY" not in str(caught.value)
