"""Objects of a real S3 server, read through the source's door; the library's half is in tests of each cloud."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from awscrt import checksums
from object_stub import read_whole, settings
from s3_server import KEYS

from trims.core.errors import ArtifactChangedError, ArtifactError, ArtifactNotFoundError, CallerError
from trims.sources.base import Opened, Source
from trims.sources.buckets import bucket as buckets
from trims.sources.buckets.objects import SCHEMES, ObjectSource

DATA = bytes(range(256)) * 4096


@pytest.fixture
def source(endpoint: str) -> ObjectSource:
    return ObjectSource(settings(**KEYS, AWS_ENDPOINT_URL_S3=endpoint), "s3")


def test_an_object_is_read_in_parts_and_has_its_etag_as_version(client: Any, source: ObjectSource) -> None:
    etag = client.put_object(Bucket="bucket", Key="a/model.bin", Body=DATA)["ETag"]
    with closing(source.open("s3://bucket/a/model.bin")) as opened:
        assert isinstance(source, Source)
        assert isinstance(opened, Opened)
        (file,) = opened.files
        assert (file.name, file.nbytes, file.version) == ("model.bin", len(DATA), etag)
        assert read_whole(opened, file, 300_000) == DATA


@pytest.mark.parametrize("key", ["a b", "a#b", "a?b=c", "a%20b", "ü/ö", "a+b&c", "a:b@c", "~x*{y}"])
def test_a_key_is_taken_as_it_is_written(key: str, client: Any, source: ObjectSource) -> None:
    client.put_object(Bucket="bucket", Key=f"odd/{key}", Body=key.encode())
    with closing(source.open(f"s3://bucket/odd/{key}")) as opened:
        assert read_whole(opened, opened.files[0]) == key.encode()


# fault (stores): an object is overwritten or removed while read -> `artifact_changed`, `artifact_not_found`
def test_an_overwritten_object_is_refused_by_its_version(client: Any, source: ObjectSource) -> None:
    client.put_object(Bucket="bucket", Key="changing", Body=b"first")
    with closing(source.open("s3://bucket/changing")) as opened:
        client.put_object(Bucket="bucket", Key="changing", Body=b"other")
        with pytest.raises(ArtifactChangedError):
            read_whole(opened, opened.files[0])


@pytest.mark.parametrize(
    ("algorithm", "name"), [("CRC64NVME", "crc64nvme"), ("CRC32C", "crc32c"), ("SHA256", "sha256")]
)
def test_a_checksum_that_the_store_states_is_given_in_hexadecimal(
    algorithm: str, name: str, client: Any, source: ObjectSource
) -> None:
    client.put_object(Bucket="bucket", Key="summed", Body=DATA, ChecksumAlgorithm=algorithm)
    with closing(source.open("s3://bucket/summed")) as opened:
        found = dict(opened.files[0].checksums)
    digits = found.pop(name)
    assert found == {}
    expected = {"crc64nvme": checksums.crc64nvme(DATA), "crc32c": checksums.crc32c(DATA)}
    assert name == "sha256" or int(digits, 16) == expected[name]
    assert len(digits) == {"crc64nvme": 16, "crc32c": 8, "sha256": 64}[name]


@pytest.mark.parametrize("address", ["s3://bucket/model", "s3://bucket/model/"])
def test_a_prefix_gives_all_objects_below_it_and_no_marker_of_a_folder(
    address: str, client: Any, source: ObjectSource
) -> None:
    for key in ("model/b.bin", "model/sub/a.bin", "model/", "model/sub/", "models/other"):
        client.put_object(Bucket="bucket", Key=key, Body=key.encode() if key[-1] != "/" else b"")
    client.put_object(Bucket="bucket", Key="model/empty", Body=b"")
    with closing(source.open(address)) as opened:
        assert [(file.name, file.nbytes) for file in opened.files] == [("b.bin", 11), ("empty", 0), ("sub/a.bin", 15)]
        assert read_whole(opened, opened.files[2]) == b"model/sub/a.bin"
        assert all(file.version for file in opened.files)


def test_the_whole_bucket_is_a_prefix(client: Any, source: ObjectSource) -> None:
    client.create_bucket(Bucket="small")
    client.put_object(Bucket="small", Key="x/y", Body=b"1")
    for address in ("s3://small", "s3://small/"):
        with closing(source.open(address)) as opened:
            assert [file.name for file in opened.files] == ["x/y"]
            assert read_whole(opened, opened.files[0]) == b"1"


# fault (stores): a prefix of more than 1,000 objects -> `bad_artifact`
def test_a_prefix_with_more_objects_than_the_bound_is_refused_by_name(
    client: Any, source: ObjectSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MOST_OBJECTS", 3)
    for number in range(4):
        client.put_object(Bucket="bucket", Key=f"many/{number}", Body=b"1")
    with pytest.raises(ArtifactError, match="s3://bucket/many"):
        source.open("s3://bucket/many")
    client.delete_object(Bucket="bucket", Key="many/3")
    with closing(source.open("s3://bucket/many")) as opened:
        assert len(opened.files) == 3


@pytest.mark.parametrize("address", ["s3://bucket/absent", "s3://bucket/absent/", "s3://no-such-bucket/x"])
def test_an_object_or_bucket_that_is_not_there_is_named(address: str, source: ObjectSource) -> None:
    with pytest.raises(ArtifactNotFoundError) as caught:
        source.open(address)
    assert address.split("/")[2] in str(caught.value)


def test_an_object_that_goes_away_is_no_longer_there(client: Any, source: ObjectSource) -> None:
    client.put_object(Bucket="bucket", Key="going", Body=b"x")
    with closing(source.open("s3://bucket/going")) as opened:
        client.delete_object(Bucket="bucket", Key="going")
        with pytest.raises((ArtifactNotFoundError, ArtifactChangedError)):
            read_whole(opened, opened.files[0])


def test_a_public_bucket_is_read_without_credentials(endpoint: str, client: Any) -> None:
    client.create_bucket(Bucket="public", ACL="public-read")
    client.put_object(Bucket="public", Key="p/x", Body=b"open", ACL="public-read")
    source = ObjectSource(settings(AWS_ENDPOINT_URL=endpoint, AWS_SKIP_SIGNATURE="true"), "s3")
    for address in ("s3://public/p/x", "s3://public/p"):
        with closing(source.open(address)) as opened:
            assert read_whole(opened, opened.files[0]) == b"open"


def test_a_source_takes_addresses_of_its_own_scheme_only(source: ObjectSource) -> None:
    with pytest.raises(CallerError):
        source.open("gs://bucket/x")
    with pytest.raises(CallerError):
        ObjectSource(settings(), "ftp")
    assert SCHEMES == ("s3", "gs", "az", "abfs", "abfss")
