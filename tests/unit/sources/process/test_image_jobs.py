"""Jobs of images, against a real server: memory that is filled, and what is refused."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from awscrt import checksums
from object_stub import object_stub
from s3_server import KEYS

from tests.support.transfer_jobs import DATA, job
from trims.core.errors import ArtifactError, CallerError, DigestMismatchError, ModelExistsError
from trims.sources.process.jobs import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.file_server import FileServer
    from trims.sources.process.job import Job, Surroundings

CRC = f"{checksums.crc64nvme(DATA):016x}"
DESCRIBED = {
    "name": "m", "key": "a" * 64, "digest": "b" * 64, "nbytes": len(DATA), "file": "m.safetensors",
    "format": "npz", "recipe": {},
}  # fmt: skip


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("image", os.MFD_CLOEXEC)
    os.ftruncate(fd, len(DATA))
    yield fd
    os.close(fd)


def image(around: Surroundings, server: FileServer, fd: int, **order: Any) -> Job:
    made = job(around, "image", f"{server.url}/m.bin", **{"nbytes": len(DATA), "checksums": {}, **order})
    made.fds = (fd,)
    return made


def test_memory_is_filled_and_its_checksum_found(around: Surroundings, server: FileServer, memory: int) -> None:
    server.serve("/m.bin", DATA)
    found = run(image(around, server, memory))["found"]
    assert os.pread(memory, len(DATA), 0) == DATA
    assert run(image(around, server, memory, checksums=found))["found"] == found


def test_another_length_than_was_described_is_refused_before_a_byte(
    around: Surroundings, server: FileServer, memory: int
) -> None:
    server.serve("/m.bin", DATA)
    with pytest.raises(ArtifactError, match="description says 7"):
        run(image(around, server, memory, nbytes=7))
    assert not any(os.pread(memory, len(DATA), 0))


def test_other_bytes_than_were_described_are_refused(around: Surroundings, server: FileServer, memory: int) -> None:
    server.serve("/m.bin", DATA)
    with pytest.raises(DigestMismatchError):
        run(image(around, server, memory, checksums={"crc64nvme": "0" * 16}))


def test_an_image_is_pushed_to_stores_only(around: Surroundings, memory: int) -> None:
    pushed = job(around, "push", "https://models.example/m", nbytes=len(DATA), image=DESCRIBED)
    pushed.fds = (memory,)
    with pytest.raises(CallerError, match="https"):
        run(pushed)


@pytest.fixture
def push(around: Surroundings, endpoint: str, memory: int) -> Callable[..., dict[str, Any]]:
    """Return a function that pushes the image to an address, as one of a model."""
    os.pwrite(memory, DATA, 0)

    def run_it(address: str, name: str = "m", *, at: str = endpoint, **order: Any) -> dict[str, Any]:
        own = replace(around, environment={**KEYS, "AWS_ENDPOINT_URL": at, "AWS_REGION": "us-east-1"})
        pushed = job(own, "push", address, nbytes=len(DATA), image={**DESCRIBED, "name": name}, **order)
        pushed.fds = (memory,)
        return run(pushed)

    return run_it


def body(client: Any, key: str) -> bytes:
    found: bytes = client.get_object(Bucket="bucket", Key=key)["Body"].read()
    return found


# fault (stores): a pushed object has other bytes of equal length -> nothing; the next push mends it
def test_a_damaged_image_is_pushed_again(push: Callable[..., dict[str, Any]], client: Any) -> None:
    assert not push("s3://bucket/damaged")["was_there"]
    assert push("s3://bucket/damaged")["was_there"]
    client.put_object(Bucket="bucket", Key="damaged/m.safetensors", Body=bytes(len(DATA)))
    assert not push("s3://bucket/damaged")["was_there"]
    assert body(client, "damaged/m.safetensors") == DATA
    assert push("s3://bucket/damaged")["was_there"]


def test_the_length_alone_does_not_say_that_an_image_was_there(
    push: Callable[..., dict[str, Any]], client: Any
) -> None:
    client.put_object(Bucket="bucket", Key="alike/m.safetensors", Body=bytes(len(DATA)))
    assert not push("s3://bucket/alike")["was_there"]
    assert body(client, "alike/m.safetensors") == DATA


@pytest.mark.parametrize(("checksum", "there"), [(CRC, True), ("0" * 16, False)])
def test_the_checksum_of_the_store_says_whether_the_image_was_there(
    checksum: str, there: bool, push: Callable[..., dict[str, Any]]
) -> None:
    with object_stub() as stub:
        path = "/bucket/x/m.safetensors"
        stub.objects[path] = DATA
        stated = base64.b64encode(bytes.fromhex(checksum)).decode()
        stub.headers[path] = {"ETag": '"put"', "x-amz-checksum-crc64nvme": stated}
        stub.headers["/bucket/x/trims.json"] = {"ETag": '"put"'}
        if there:
            assert push("s3://bucket/x", at=stub.url)["was_there"]
        else:  # the stub states the wrong one also of what is written
            with pytest.raises(DigestMismatchError):
                push("s3://bucket/x", at=stub.url)
        assert (f"PUT {path}" in stub.seen) != there


def test_an_image_of_another_version_than_was_pushed_was_not_there(
    push: Callable[..., dict[str, Any]],
) -> None:
    with object_stub() as stub:
        path = "/bucket/x/m.safetensors"
        stub.headers[path] = stub.headers["/bucket/x/trims.json"] = {"ETag": '"put"'}
        assert not push("s3://bucket/x", at=stub.url)["was_there"]
        assert push("s3://bucket/x", at=stub.url)["was_there"]
        described = json.loads(stub.objects["/bucket/x/trims.json"])
        for changed in ({"stored_as": '"other"'}, {"stored_as": ""}, {"digest": "c" * 64}):
            stub.objects["/bucket/x/trims.json"] = json.dumps({**described, **changed}).encode()
            assert not push("s3://bucket/x", at=stub.url)["was_there"]


# fault (stores): another model lies where a push goes -> `model_exists` with `--replace`
def test_another_model_is_replaced_only_on_request(push: Callable[..., dict[str, Any]], client: Any) -> None:
    push("s3://bucket/taken", "theirs")
    before = body(client, "taken/trims.json")
    with pytest.raises(ModelExistsError, match=r"'theirs'.*'mine'.*--replace"):
        push("s3://bucket/taken", "mine")
    assert body(client, "taken/trims.json") == before
    push("s3://bucket/taken", "mine", replace=True)
    assert json.loads(body(client, "taken/trims.json"))["name"] == "mine"


@pytest.mark.parametrize("data", [b"{}", b"\xff", b'{"kind": "trims-image", "format_version": 2}'], ids=str)
def test_what_is_no_description_is_replaced_only_on_request(
    data: bytes, push: Callable[..., dict[str, Any]], client: Any
) -> None:
    client.put_object(Bucket="bucket", Key="odd/trims.json", Body=data)
    with pytest.raises(ModelExistsError, match="--replace"):
        push("s3://bucket/odd")
    assert body(client, "odd/trims.json") == data
    push("s3://bucket/odd", replace=True)
    assert json.loads(body(client, "odd/trims.json"))["name"] == "m"


def test_a_key_may_have_letters_that_end_the_path_of_other_addresses(
    push: Callable[..., dict[str, Any]], client: Any
) -> None:
    push("s3://bucket/a b?x#y")
    assert body(client, "a b?x#y/m.safetensors") == DATA


def test_an_image_is_not_pushed_to_the_address_of_a_file(push: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(CallerError, match="address of a file"):
        push("s3://bucket/m.safetensors")
