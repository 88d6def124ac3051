"""Objects that are written to a real S3 server, and to stubs on their bad days."""

from __future__ import annotations

import base64
import os
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from awscrt import checksums
from object_stub import object_stub, read_whole, settings
from s3_server import KEYS

from trims.core.errors import (
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    CallerError,
    DeadlineError,
    DigestMismatchError,
    SourceRefusedError,
    TrimsError,
)
from trims.sources.buckets import push
from trims.sources.buckets.objects import ObjectSource, open_bucket
from trims.sources.buckets.push import ObjectWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_stub import Stub

_MIB = 1 << 20


@pytest.fixture
def writer(endpoint: str) -> Iterator[ObjectWriter]:
    with closing(ObjectWriter(settings(**KEYS, AWS_ENDPOINT_URL=endpoint), "s3")) as made:
        yield made


@pytest.fixture
def stub() -> Iterator[Stub]:
    with object_stub() as made:
        yield made


@pytest.fixture
def stubbed(stub: Stub) -> Iterator[ObjectWriter]:
    with closing(ObjectWriter(settings(**KEYS, AWS_ENDPOINT_URL=stub.url), "s3")) as made:
        yield made


@pytest.fixture
def parts_of_5_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts as small as S3 allows, sent one at a time, so that pieces are asked for while others are sent."""
    monkeypatch.setattr(push, "PART_BYTES", 5 * _MIB)
    monkeypatch.setattr(push, "PARTS_AT_ONCE", 1)
    monkeypatch.setattr(push, "_PIECE_BYTES", _MIB)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(os.urandom(_MIB) * 17)
    return path


def body(client: Any, key: str) -> bytes:
    found: bytes = client.get_object(Bucket="bucket", Key=key)["Body"].read()
    return found


@pytest.mark.usefixtures("parts_of_5_mib")
def test_a_large_file_is_sent_in_parts_with_progress_in_bytes(file: Path, client: Any, writer: ObjectWriter) -> None:
    progress: list[int] = []
    found = writer.put_file("s3://bucket/large", file, 17 * _MIB, progress.append)
    assert found.nbytes == 17 * _MIB
    assert found.version.endswith('-4"')  # of the number of parts
    assert body(client, "large") == file.read_bytes()
    assert progress == [number * _MIB for number in range(1, 18)]


def test_a_descriptor_is_read_from_its_beginning_and_keeps_its_position(
    file: Path, client: Any, writer: ObjectWriter
) -> None:
    with file.open("rb") as opened:
        opened.seek(100)
        writer.put_file("s3://bucket/part", opened.fileno(), 3 * _MIB)
        assert opened.tell() == 100
    assert body(client, "part") == file.read_bytes()[: 3 * _MIB]


def test_an_empty_file_is_an_object(tmp_path: Path, client: Any, writer: ObjectWriter) -> None:
    (tmp_path / "empty").touch()
    assert writer.put_file("s3://bucket/empty", tmp_path / "empty", 0).nbytes == 0
    assert writer.read("s3://bucket/empty", 10) == b""


# fault (stores): a push is cancelled, or its file shrinks -> `deadline`, `artifact_changed`; the former object stays
@pytest.mark.usefixtures("parts_of_5_mib")
@pytest.mark.parametrize("after", [0, 12 * _MIB, 17 * _MIB])
def test_a_cancelled_push_leaves_the_old_object_and_no_parts(
    after: int, file: Path, client: Any, writer: ObjectWriter
) -> None:
    client.put_object(Bucket="bucket", Key="kept", Body=b"old")
    done = [0]
    with pytest.raises(DeadlineError):
        writer.put_file("s3://bucket/kept", file, 17 * _MIB, lambda n: done.append(n), lambda: done[-1] >= after)
    assert done[-1] == after
    assert body(client, "kept") == b"old"
    assert "Uploads" not in client.list_multipart_uploads(Bucket="bucket")


@pytest.mark.usefixtures("parts_of_5_mib")
@pytest.mark.parametrize("nbytes", [20 * _MIB, 4 * _MIB])
def test_a_file_that_is_shorter_than_stated_leaves_nothing(
    nbytes: int, file: Path, client: Any, writer: ObjectWriter
) -> None:
    os.truncate(file, nbytes - _MIB)
    with pytest.raises(ArtifactChangedError):
        writer.put_file("s3://bucket/short", file, nbytes)
    assert writer.head("s3://bucket/short") is None
    assert "Uploads" not in client.list_multipart_uploads(Bucket="bucket")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, writer: ObjectWriter) -> None:
    for source in (tmp_path / "absent", os.open(tmp_path, os.O_RDONLY)):
        with pytest.raises(ArtifactError) as caught:
            writer.put_file("s3://bucket/unread", source, 10)
        assert type(caught.value) is ArtifactError
        if isinstance(source, int):
            os.close(source)
    assert writer.head("s3://bucket/unread") is None


def test_small_objects_are_written_looked_at_and_read(writer: ObjectWriter) -> None:
    assert writer.head("s3://bucket/index.json") is None
    assert writer.read("s3://bucket/index.json", 10) is None
    put = writer.put_bytes("s3://bucket/index.json", b"{}")
    assert writer.head("s3://bucket/index.json") == put
    assert writer.read("s3://bucket/index.json", 2) == b"{}"
    with pytest.raises(ArtifactError):
        writer.read("s3://bucket/index.json", 1)


def test_a_bucket_that_is_not_there_is_named(file: Path, writer: ObjectWriter) -> None:
    for write in (lambda a: writer.put_bytes(a, b"x"), lambda a: writer.put_file(a, file, 17 * _MIB)):
        with pytest.raises(ArtifactNotFoundError, match="no-such-bucket"):
            write("s3://no-such-bucket/x")
    assert writer.head("s3://no-such-bucket/x") is None


def test_a_prefix_is_no_object(writer: ObjectWriter) -> None:
    for address in ("s3://bucket", "s3://bucket/", "s3://bucket/a/"):
        with pytest.raises(CallerError):
            writer.put_bytes(address, b"x")


# fault (stores): a part is refused, or the store got other bytes
def test_the_checksum_that_the_store_states_is_compared(stub: Stub, stubbed: ObjectWriter) -> None:
    right = base64.b64encode(checksums.crc64nvme(b"data").to_bytes(8, "big")).decode()
    stub.headers["/bucket/x"] = {"ETag": '"put"', "x-amz-checksum-crc64nvme": right}
    assert stubbed.put_bytes("s3://bucket/x", b"data").checksums.keys() == {"crc64nvme"}
    with pytest.raises(DigestMismatchError):
        stubbed.put_bytes("s3://bucket/x", b"date")
    assert stub.objects == {}


def test_an_object_of_another_length_is_refused_and_removed(
    file: Path, stub: Stub, stubbed: ObjectWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.answers += [(200, {"ETag": '"put"'}, b""), (200, {"ETag": '"put"'}, b"shorter")]
    with pytest.raises(DigestMismatchError):
        stubbed.put_file("s3://bucket/x", file, _MIB)
    assert stub.seen == ["PUT /bucket/x", "HEAD /bucket/x", "DELETE /bucket/x"]


def test_an_object_that_cannot_be_removed_is_still_a_mismatch(stub: Stub, stubbed: ObjectWriter) -> None:
    stub.answers += [(200, {"ETag": '"put"'}, b""), (200, {"ETag": '"put"'}, b"longer"), (403, {}, b"")]
    with pytest.raises(DigestMismatchError, match="still there"):
        stubbed.put_bytes("s3://bucket/x", b"data")


# fault (stores): another program writes the object after a push -> `artifact_changed`; its object stays
def test_an_object_of_another_program_is_not_removed(stub: Stub, stubbed: ObjectWriter) -> None:
    stub.answers += [(200, {"ETag": '"mine"'}, b""), (200, {"ETag": '"theirs"'}, b"longer")]
    with pytest.raises(ArtifactChangedError):
        stubbed.put_bytes("s3://bucket/x", b"data")
    assert stub.seen == ["PUT /bucket/x", "HEAD /bucket/x"]


# fault (stores): a part is refused, or the store got other bytes -> the store's error, `digest_mismatch`; nothing
# stays
@pytest.mark.usefixtures("parts_of_5_mib")
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, {}, b"<Error><Code>AccessDenied</Code></Error>"), SourceRefusedError),
        ((400, {}, b"<Error><Code>EntityTooLarge</Code></Error>"), ArtifactError),
    ],
)
def test_an_upload_whose_part_is_refused_is_taken_back(
    answer: tuple[int, dict[str, str], bytes], error: type[TrimsError], file: Path, stub: Stub, stubbed: ObjectWriter
) -> None:
    stub.part_answer = answer
    with pytest.raises(error):
        stubbed.put_file("s3://bucket/x", file, 17 * _MIB)
    assert [each.query for each in stub.asked if each.method == "DELETE"] == [{"uploadId": "one"}]


class _InFlight:
    """Counts parts that are under way at once; the first ones wait for a moment whether more of them come."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._now, self.most, self._waited = 0, 0, False

    def __call__(self) -> None:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.wait_for(lambda: self._waited, timeout=0.5)
            self._waited = True
            self._changed.notify_all()
            self._now -= 1


def test_no_more_parts_are_under_way_than_the_bound(
    file: Path, stub: Stub, stubbed: ObjectWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "PART_BYTES", _MIB)
    stub.on_part = parts = _InFlight()
    with pytest.raises(TrimsError):  # the stub ends no upload
        stubbed.put_file("s3://bucket/x", file, 17 * _MIB)
    assert len([each for each in stub.asked if "partNumber" in each.query]) == 17
    assert parts.most == push.PARTS_AT_ONCE


def test_crc32c_of_google_is_compared(stub: Stub) -> None:
    environment = {"GOOGLE_BASE_URL": stub.url, "GOOGLE_BEARER_TOKEN": "made-up-token"}
    right = base64.b64encode(checksums.crc32c(b"data").to_bytes(4, "big")).decode()
    stub.headers["/bucket/x"] = {"ETag": '"put"', "x-goog-hash": f"crc32c={right}"}
    with closing(ObjectWriter(settings(**environment), "gs")) as writer:
        assert writer.put_bytes("gs://bucket/x", b"data").nbytes == 4
        with pytest.raises(DigestMismatchError):
            writer.put_bytes("gs://bucket/x", b"date")
    assert {each.headers["authorization"] for each in stub.asked} == {"Bearer made-up-token"}


def test_a_container_of_azure_is_written_to(stub: Stub) -> None:
    key = base64.b64encode(b"made-up-key").decode()
    endpoint = {"AZURE_STORAGE_ENDPOINT": f"{stub.url}/acct", "AZURE_STORAGE_ACCOUNT_NAME": "acct"}
    stub.headers["/acct/cont/x"] = {"ETag": '"0x1"'}
    with closing(ObjectWriter(settings(**endpoint, AZURE_STORAGE_ACCOUNT_KEY=key), "az")) as writer:
        assert writer.put_bytes("az://cont/x", b"data").version == '"0x1"'
        assert writer.read("az://cont/x", 4) == b"data"


def test_a_write_without_permission_names_the_places_of_credentials(stub: Stub, stubbed: ObjectWriter) -> None:
    stub.answers.append((403, {}, b"<Error><Code>AccessDenied</Code></Error>"))
    with pytest.raises(SourceRefusedError, match=r"AccessDenied.*bucket.*AWS_ACCESS_KEY_ID"):
        stubbed.put_bytes("s3://bucket/x", b"x")


def test_names_that_addresses_escape_are_signed_by_every_method(writer: ObjectWriter, endpoint: str) -> None:
    address = "s3://bucket/be rt/ü+a%2F=&.bin"
    writer.put_bytes(address, b"small")
    assert writer.read(address, 100) == b"small"
    own = settings(**KEYS, AWS_ENDPOINT_URL=endpoint)
    with closing(ObjectSource(own, "s3").open("s3://bucket/be rt")) as opened:
        assert [file.name for file in opened.files] == ["ü+a%2F=&.bin"]
        assert read_whole(opened, opened.files[0]) == b"small"
    bucket, found = open_bucket(own, "s3", address)
    with closing(bucket.http):
        bucket.remove(found.key)
        assert bucket.look(found.key) is None


def test_parts_of_an_upload_that_was_killed_are_given_up(endpoint: str, client: Any) -> None:
    keys = ("killed/a b&.bin", "killed/a b&.bin2")
    for key in keys:
        upload = client.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
        client.upload_part(Bucket="bucket", Key=key, UploadId=upload, PartNumber=1, Body=bytes(5 * _MIB))
    own = settings(**KEYS, AWS_ENDPOINT_URL=endpoint)
    bucket, found = open_bucket(own, "s3", f"s3://bucket/{keys[0]}")
    with closing(bucket.http):
        assert bucket.give_up_parts(found.key) == 1
        assert bucket.give_up_parts(found.key) == 0
    left = client.list_multipart_uploads(Bucket="bucket")["Uploads"]
    assert [each["Key"] for each in left] == [keys[1]]
    client.abort_multipart_upload(Bucket="bucket", Key=keys[1], UploadId=left[0]["UploadId"])


def test_a_wrong_secret_is_refused_by_every_method(endpoint: str) -> None:
    own = settings(**{**KEYS, "AWS_SECRET_ACCESS_KEY": "wrong", "AWS_ENDPOINT_URL": endpoint})
    with closing(ObjectWriter(own, "s3")) as writer:
        with pytest.raises(SourceRefusedError):
            writer.put_bytes("s3://bucket/refused.bin", b"small")
        with pytest.raises(SourceRefusedError):
            writer.head("s3://bucket/refused.bin")
    bucket, _ = open_bucket(own, "s3", "s3://bucket/refused.bin")
    with closing(bucket.http), pytest.raises(SourceRefusedError):
        bucket.remove("refused.bin")
