"""Containers of Azure against a stub, signed with a key that was made up."""

from __future__ import annotations

import base64
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from object_stub import object_stub, read_whole, settings

from trims.core.errors import (
    AddressRefusedError,
    ArtifactError,
    ArtifactNotFoundError,
    ConfigError,
    NotSupportedError,
    SourceRefusedError,
)
from trims.sources.buckets.azure import AzureBucket
from trims.sources.buckets.bucket import ObjectAddress
from trims.sources.buckets.objects import ObjectSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from object_stub import Stub

    from trims.sources.http.ranged import RangedFiles

DATA = b"weights of a model"
PATH = "/acct/cont/a/model b.bin"
ADDRESS = "az://cont/a/model b.bin"
KEY = base64.b64encode(b"made-up-key").decode()
LISTING = b"""<?xml version='1.0'?><EnumerationResults><Blobs><Blob><Name>a/model b.bin</Name><Properties>
<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Content-Length>18</Content-Length>
<Content-Type>x</Content-Type><Etag>0x1</Etag></Properties></Blob></Blobs><NextMarker/></EnumerationResults>"""


@pytest.fixture
def stub() -> Iterator[Stub]:
    with object_stub() as made:
        made.objects[PATH] = DATA
        made.headers[PATH] = {"ETag": '"0x1"', "Content-MD5": "XUFAKrxLKna5cZ2REBfFkg=="}
        made.listing = LISTING
        yield made


def opened(stub: Stub, address: str = ADDRESS, **more: str) -> RangedFiles:
    environment = {"AZURE_STORAGE_ENDPOINT": f"{stub.url}/acct", "AZURE_STORAGE_ACCOUNT_NAME": "acct", **more}
    return ObjectSource(settings(**environment), address.partition(":")[0]).open(address)


@pytest.mark.parametrize("address", [ADDRESS, "abfs://cont@acct.dfs.core.windows.net/a/model b.bin"])
def test_a_blob_is_looked_at_and_read_at_signed_addresses(address: str, stub: Stub) -> None:
    stub.needs = {"sig", "se", "sv"}
    with closing(opened(stub, address, AZURE_STORAGE_ACCOUNT_KEY=KEY)) as found:
        (file,) = found.files
        assert (file.name, file.nbytes, file.version, file.checksums) == ("model b.bin", len(DATA), '"0x1"', {})
        assert read_whole(found, file) == DATA
    assert stub.seen == [f"HEAD {PATH}", f"GET {PATH}"]
    assert stub.asked[1].headers["if-match"] == '"0x1"'


def test_the_account_of_an_address_is_the_one_that_is_asked() -> None:
    address = ObjectAddress.parse("abfss://cont@acct.dfs.core.windows.net/x")
    public = {"AZURE_STORAGE_ACCOUNT_NAME": "other", "AZURE_SKIP_SIGNATURE": "true"}
    for environment in ({"AZURE_STORAGE_ACCOUNT_KEY": KEY}, public):
        place = AzureBucket(address, settings(**environment), 60).location("x")
        assert place.url.startswith("https://acct.blob.core.windows.net/cont/x")


# fault (stores): another account's address with a key -> `address_refused`; no credentials are sent
@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_credentials_of_one_account_are_not_sent_to_another(name: str, stub: Stub) -> None:
    with pytest.raises(AddressRefusedError, match="strange"):
        opened(stub, "abfs://cont@strange.dfs.core.windows.net/x", **{name: KEY})
    assert stub.asked == []


def test_a_prefix_has_etags_as_the_server_writes_them(stub: Stub) -> None:
    with closing(opened(stub, "az://cont/a", AZURE_STORAGE_ACCOUNT_KEY=KEY)) as found:
        assert [(file.name, file.version) for file in found.files] == [("model b.bin", '"0x1"')]
        assert read_whole(found, found.files[0]) == DATA


@pytest.mark.parametrize("header", [{"x-ms-resource-type": "directory"}, {"x-ms-meta-hdi_isfolder": "true"}])
def test_a_folder_of_a_hierarchical_account_is_a_prefix(header: dict[str, str], stub: Stub) -> None:
    stub.objects["/acct/cont/a"] = b""
    stub.headers["/acct/cont/a"] = header
    with closing(opened(stub, "az://cont/a", AZURE_STORAGE_ACCOUNT_KEY=KEY)) as found:
        assert [file.name for file in found.files] == ["model b.bin"]


def test_an_archived_blob_is_refused(stub: Stub) -> None:
    stub.headers[PATH]["x-ms-access-tier"] = "Archive"
    with pytest.raises(ArtifactError, match="archive"):
        opened(stub, AZURE_STORAGE_ACCOUNT_KEY=KEY)


@pytest.mark.parametrize("signature", ["sv=2023-11-03&sp=rl&sig=made%2Bup", "?sv=2023-11-03&sp=rl&sig=made%2Bup"])
def test_a_shared_access_signature_goes_with_each_request(signature: str, stub: Stub) -> None:
    stub.needs = {"sig", "sv"}
    with closing(opened(stub, "az://cont/a", AZURE_STORAGE_SAS_KEY=signature)) as found:
        assert read_whole(found, found.files[0]) == DATA
    assert {each.query["sig"] for each in stub.asked} == {"made+up"}


def test_a_refused_signature_is_not_shown(stub: Stub) -> None:
    stub.answers += [(403, {}, b""), (403, {}, b"<Error><Code>AuthenticationFailed</Code></Error>")]
    secret = "made-up" + "-signature"  # in two, as the trace that is looked through has the lines of this test
    with pytest.raises(SourceRefusedError, match="AZURE_STORAGE_ACCOUNT_KEY") as caught:
        opened(stub, AZURE_STORAGE_SAS_TOKEN=f"sv=1&sig={secret}")
    assert secret not in str(caught.getrepr(style="long")) + repr(caught.value)


def test_a_public_container_is_read_without_credentials(stub: Stub) -> None:
    with closing(opened(stub, "az://cont/a", AZURE_SKIP_SIGNATURE="true")) as found:
        assert read_whole(found, found.files[0]) == DATA
    assert not [each for each in stub.asked if "authorization" in each.headers or "sig" in each.query]


def test_an_account_that_is_not_named_is_asked_for(stub: Stub) -> None:
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        opened(stub, AZURE_STORAGE_ACCOUNT_NAME="", AZURE_STORAGE_ACCOUNT_KEY=KEY)
    with closing(
        opened(stub, AZURE_STORAGE_ACCOUNT_NAME="", AZURE_STORAGE_ACCOUNT="acct", AZURE_STORAGE_ACCOUNT_KEY=KEY)
    ):
        pass


def test_a_key_that_is_no_base64_is_refused_without_it(stub: Stub) -> None:
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_KEY") as caught:
        opened(stub, AZURE_STORAGE_ACCOUNT_KEY="%made-up%")
    assert "%made-up%" not in str(caught.value)


def test_a_container_that_is_not_there_is_named(stub: Stub) -> None:
    stub.answers += [(404, {}, b""), (404, {}, b"<Error><Code>ContainerNotFound</Code></Error>")]
    with pytest.raises(ArtifactNotFoundError, match="no bucket cont"):
        opened(stub, AZURE_STORAGE_ACCOUNT_KEY=KEY)


def test_blobs_with_keys_of_their_own_are_refused(stub: Stub) -> None:
    with pytest.raises(NotSupportedError, match="AZURE_ENCRYPTION_KEY"):
        opened(stub, AZURE_ENCRYPTION_KEY=KEY)
