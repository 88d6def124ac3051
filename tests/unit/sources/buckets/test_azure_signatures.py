"""Every method against a server of Azure's blobs that checks signatures, with each kind of credentials."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from contextlib import closing
from typing import TYPE_CHECKING

import azurite
import pytest
from certificates import make_certificate
from object_stub import object_stub, read_whole, settings

from trims.core.errors import ConfigError, NotSupportedError, SourceRefusedError
from trims.sources.buckets import push
from trims.sources.buckets.objects import ObjectSource, open_bucket
from trims.sources.buckets.push import ObjectWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.sources.settings import SourceSettings

pytestmark = [pytest.mark.clouds, pytest.mark.skipif(bool(azurite.why_not()), reason=azurite.why_not())]
TENANT = "dd0d0df1-06c3-436c-8034-4b9a153097ce"
DATA = os.urandom(3 << 20)
NAME = "be rt/ü+a%2F=&.bin"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that name a running account and trust its authority."""
    folder = tmp_path_factory.mktemp("azurite")
    authority, certificate = make_certificate(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with azurite.azurite(folder, authority, certificate) as endpoint, object_stub(tls) as tokens, object_stub() as own:
        tokens.objects[f"/{TENANT}/oauth2/v2.0/token"] = azurite.token_answer()
        own.objects["/identity"] = azurite.token_answer()
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": azurite.ACCOUNT,
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "SSL_CERT_FILE": str(authority),
            "tokens": tokens.url,
            "identity": f"{own.url}/identity",
        }


def credentials(kind: str, server: dict[str, str]) -> dict[str, str]:
    principal = {
        "AZURE_CLIENT_ID": "client", "AZURE_TENANT_ID": TENANT, "AZURE_AUTHORITY_HOST": server["tokens"],
    }  # fmt: skip
    return {
        "key": {"AZURE_STORAGE_ACCOUNT_KEY": azurite.KEY},
        "signature": {"AZURE_STORAGE_SAS_TOKEN": azurite.account_signature()},
        "token": {"AZURE_STORAGE_TOKEN": azurite.access_token()},
        "principal": {**principal, "AZURE_CLIENT_SECRET": "made-up"},
        "identity": {"AZURE_IDENTITY_ENDPOINT": server["identity"]},
        "connection string": {
            "AZURE_STORAGE_ACCOUNT_NAME": "", "AZURE_STORAGE_ENDPOINT": "",
            "AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=https;AccountName={azurite.ACCOUNT};"
            f"AccountKey={azurite.KEY};BlobEndpoint={server['AZURE_STORAGE_ENDPOINT']};",
        },
        "connection string with a signature": {
            "AZURE_STORAGE_ACCOUNT_NAME": "", "AZURE_STORAGE_ENDPOINT": "",
            "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={server['AZURE_STORAGE_ENDPOINT']};"
            f"SharedAccessSignature={azurite.account_signature()}",
        },
    }[kind]  # fmt: skip


KINDS = (
    "key", "signature", "token", "principal", "identity", "connection string", "connection string with a signature",
)  # fmt: skip


@pytest.fixture(params=KINDS)
def with_credentials(
    request: pytest.FixtureRequest, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> SourceSettings:
    monkeypatch.setenv("SSL_CERT_FILE", server["SSL_CERT_FILE"])
    return settings(**{**server, **credentials(request.param, server)})


def test_all_methods_are_signed_as_the_store_wants(
    with_credentials: SourceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "PART_BYTES", 1 << 20)
    (tmp_path / "whole").write_bytes(DATA)
    folder = f"az://{azurite.CONTAINER}/{os.urandom(4).hex()}"
    source = ObjectSource(with_credentials, "az")
    with closing(ObjectWriter(with_credentials, "az")) as writer:
        assert writer.head(f"{folder}/small.bin") is None
        writer.put_bytes(f"{folder}/small.bin", b"small")
        assert writer.put_file(f"{folder}/large.bin", tmp_path / "whole", len(DATA)).nbytes == len(DATA)
        assert writer.read(f"{folder}/small.bin", 100) == b"small"
    with closing(source.open(f"{folder}/large.bin")) as opened:
        assert read_whole(opened, opened.files[0], 1 << 18) == DATA
    with closing(source.open(folder)) as opened:
        assert [file.name for file in opened.files] == ["large.bin", "small.bin"]
    bucket, address = open_bucket(with_credentials, "az", f"{folder}/small.bin")
    with closing(bucket.http):
        bucket.remove(address.key)
        assert bucket.look(address.key) is None


def test_parts_of_an_upload_that_was_killed_are_given_up(
    server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", server["SSL_CERT_FILE"])
    tls = ssl.create_default_context(cafile=server["SSL_CERT_FILE"])
    blob = f"{server['AZURE_STORAGE_ENDPOINT']}/{azurite.CONTAINER}/killed.bin?{azurite.account_signature()}"

    def ask(method: str, query: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{blob}&{query}", data, {"x-ms-version": "2021-08-06"}, method=method)
        with urllib.request.urlopen(request, context=tls, timeout=30) as answer:
            return bytes(answer.read())

    ask("PUT", "comp=block&blockid=MDE%3D", DATA)
    assert b"<Name>MDE=</Name>" in ask("GET", "comp=blocklist&blocklisttype=all")
    own = settings(**{**server, **credentials("key", server)})
    bucket, found = open_bucket(own, "az", f"az://{azurite.CONTAINER}/killed.bin")
    with closing(bucket.http):
        assert bucket.give_up_parts(found.key) == 1
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask("GET", "comp=blocklist&blocklisttype=all")


@pytest.mark.parametrize("kind", ["key", "signature", "token"])
def test_a_name_that_an_address_escapes_is_signed_as_it_is(
    kind: str, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", server["SSL_CERT_FILE"])
    own = settings(**{**server, **credentials(kind, server)})
    address = f"az://{azurite.CONTAINER}/{NAME}"
    with closing(ObjectWriter(own, "az")) as writer:
        writer.put_bytes(address, b"small")
        assert writer.read(address, 100) == b"small"


def test_a_name_that_the_library_signs_wrongly_is_refused_with_the_way_out(
    server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", server["SSL_CERT_FILE"])
    own = settings(**{**server, **credentials("identity", server)})
    with pytest.raises(NotSupportedError, match="use AZURE_STORAGE_ACCOUNT_KEY"):
        ObjectSource(own, "az").open(f"az://{azurite.CONTAINER}/{NAME}")


def test_a_wrong_key_is_refused(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", server["SSL_CERT_FILE"])
    own = settings(**server, AZURE_STORAGE_ACCOUNT_KEY="bWFkZS11cA==")
    with pytest.raises(SourceRefusedError, match="AZURE_STORAGE_ACCOUNT_KEY"):
        ObjectSource(own, "az").open(f"az://{azurite.CONTAINER}/a.bin")


def test_a_connection_string_without_credentials_is_refused_without_it(server: dict[str, str]) -> None:
    own = settings(**server, AZURE_STORAGE_CONNECTION_STRING="AccountName=made-up-name;AccountKey")
    with pytest.raises(ConfigError, match="neither AccountKey nor SharedAccessSignature") as caught:
        ObjectSource(own, "az").open(f"az://{azurite.CONTAINER}/a.bin")
    assert "made-up-name" not in str(caught.value)
