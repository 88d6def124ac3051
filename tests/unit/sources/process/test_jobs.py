"""Jobs against a real server: what they find at an address, fetch, check and leave behind, and how they end."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3
import pytest

from tests.support.transfer_jobs import DATA, Files, job
from trims.core.errors import (
    ArtifactNotFoundError,
    DigestMismatchError,
    LostPeerError,
    NotSupportedError,
    SourceUnavailableError,
)
from trims.sources.process.jobs import run

if TYPE_CHECKING:
    from tests.support.file_server import FileServer
    from trims.sources.process.job import Surroundings

DIGEST = blake3.blake3(DATA).hexdigest()
IMAGE = {
    "kind": "trims-image", "format_version": 1, "name": "m", "key": "a" * 64, "digest": "b" * 64, "nbytes": 9,
    "checksums": {"crc64nvme": "0" * 16}, "file": "m.safetensors", "format": "torch", "recipe": {"format": "torch"},
    "manifest": {}, "signature": "",
}  # fmt: skip


def test_a_look_fetches_nothing(around: Surroundings, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    found = run(job(around, "look", f"{server.url}/m.bin"))
    assert found["files"] == [{"name": "m.bin", "nbytes": len(DATA), "version": '"v1"', "checksums": {}}]
    server.wait_for(1, "/m.bin")
    assert server.sent["/m.bin"] == 1
    assert not around.downloads.exists()


def test_a_pushed_image_is_found_by_its_description(around: Surroundings, server: FileServer) -> None:
    server.serve("/bert/trims.json", json.dumps(IMAGE).encode())
    for address in ("/bert", "/bert/", "/bert/trims.json"):
        assert run(job(around, "fetch", server.url + address))["image"]["key"] == "a" * 64
    server.serve("/bert/trims.json", json.dumps({**IMAGE, "format_version": 2}).encode())
    with pytest.raises(NotSupportedError):
        run(job(around, "fetch", f"{server.url}/bert"))


def test_what_is_not_taken_of_a_publishers_manifest_is_said(around: Surroundings, server: FileServer) -> None:
    manifest = {"license": "MIT", "residency": {"pin": True}, "artifact": {}, "a\x1b[2J": 1}
    server.serve("/bert/trims.json", json.dumps({**IMAGE, "manifest": manifest}).encode())
    (note,) = run(job(around, "fetch", f"{server.url}/bert"))["notes"]
    assert note == "left out what its publisher said of: 'a\\x1b[2J', artifact, residency"


@pytest.mark.parametrize("answer", [404, 403, 400, "page", "long"])
def test_a_file_without_an_ending_is_fetched_whatever_is_said_of_names_below_it(
    answer: int | str, around: Surroundings, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.serve("/download", DATA)
    below = server.serve("/download/trims.json", b"<html>no such page</html>")
    if isinstance(answer, int):
        below.statuses = [answer]
    if answer == "long":
        monkeypatch.setattr("trims.sources.descriptor.MOST_BYTES", 7)
    (file,) = run(job(around, "fetch", f"{server.url}/download"))["files"]
    assert Path(file["path"]).read_bytes() == DATA


def test_a_file_that_was_published_before_its_process_died_is_hashed_and_not_fetched(
    around: Surroundings, server: FileServer
) -> None:
    server.serve("/m.bin", DATA)
    run(job(around, "fetch", f"{server.url}/m.bin"))
    server.wait_for(len(DATA) + 1, "/m.bin")
    sent = server.sent["/m.bin"]
    (file,) = run(job(around, "fetch", f"{server.url}/m.bin"))["files"]
    assert file["found"] == {"blake3": DIGEST}
    server.wait_for(sent + 1, "/m.bin")
    assert server.sent["/m.bin"] == sent + 1


@pytest.mark.parametrize("kind", ["sha256", "blake3", "crc64nvme", "crc32c"])
def test_a_file_that_is_there_is_held_against_what_is_stated(
    kind: str, around: Surroundings, server: FileServer
) -> None:
    server.serve("/m.bin", DATA)
    (there,) = run(job(around, "fetch", f"{server.url}/m.bin"))["files"]
    expected = {"m.bin": {"nbytes": len(DATA), "checksums": {kind: "0" * 8}}}
    with pytest.raises(DigestMismatchError, match="0" * 8):
        run(job(around, "fetch", f"{server.url}/m.bin", expected=expected))
    assert Path(there["path"]).read_bytes() == DATA


# fault (sources): no version -> nothing; fetched again, no resume after a kill
def test_a_server_that_states_no_version_is_asked_again(around: Surroundings, server: FileServer) -> None:
    server.serve("/m.bin", DATA, etag="")
    run(job(around, "fetch", f"{server.url}/m.bin"))
    server.serve("/m.bin", DATA[::-1], etag="")
    (file,) = run(job(around, "fetch", f"{server.url}/m.bin"))["files"]
    assert Path(file["path"]).read_bytes() == DATA[::-1]


def test_several_files_are_fetched_and_an_empty_one_is_a_file(around: Surroundings, own: Any) -> None:
    own(Files(**{"a": b"1", "b/c": b"22" * 5_000_000, "empty": b""}))
    found = run(job(around, "fetch", "own://a"))
    assert {file["name"]: Path(file["path"]).read_bytes() for file in found["files"]} == {
        "a": b"1", "b/c": b"22" * 5_000_000, "empty": b"",
    }  # fmt: skip
    assert all(Path(file["path"]).is_relative_to(found["folder"]) for file in found["files"])
    assert {file["name"]: file["found"]["blake3"] for file in found["files"]}["empty"] == blake3.blake3(b"").hexdigest()
    left = {
        path.suffix or path.name for path in around.downloads.rglob("*") if path.is_file() and " trims" in str(path)
    }
    assert left == {".lock", "address"}


def test_one_file_that_fails_ends_the_others_at_once_and_is_the_one_that_is_named(
    around: Surroundings, own: Any
) -> None:
    around.limits.patience_s = 1000.0
    stuck = SourceUnavailableError("closed")
    own(Files(a=stuck, b=ArtifactNotFoundError("b is not there"), c=stuck, d=stuck))
    with pytest.raises(ArtifactNotFoundError, match="b is not there"):
        run(job(around, "fetch", "own://a"))


# fault (sources): a folder with other files than first seen -> `digest_mismatch` with their names
@pytest.mark.parametrize(
    ("names", "words"), [(("a",), "lacks 'b'"), (("a", "b", "c"), "holds 'c'"), (("a", "c"), "holds 'c' and lacks 'b'")]
)
def test_a_folder_with_other_files_than_when_it_was_first_seen_is_refused(
    names: tuple[str, ...], words: str, around: Surroundings, own: Any
) -> None:
    own(Files(**dict.fromkeys(names, b"x")))
    expected = {name: {"nbytes": 1, "checksums": {}} for name in ("a", "b")}
    with pytest.raises(DigestMismatchError, match=words):
        run(job(around, "fetch", "own://a", expected=expected))
    assert not around.downloads.exists()


def test_a_digest_that_is_stated_for_a_file_that_is_not_there_is_refused(around: Surroundings, own: Any) -> None:
    own(Files(a=b"x"))
    expected = {"b": {"nbytes": None, "checksums": {"sha256": "0" * 64}}}
    with pytest.raises(ArtifactNotFoundError, match="'b'"):
        run(job(around, "fetch", "own://a", expected=expected))


def test_another_length_than_when_it_was_first_seen_is_refused_before_a_byte(
    around: Surroundings, server: FileServer
) -> None:
    server.serve("/m.bin", DATA)
    expected = {"m.bin": {"nbytes": 7, "checksums": {}}}
    with pytest.raises(DigestMismatchError, match=rf"{len(DATA)} bytes.* 7 "):
        run(job(around, "fetch", f"{server.url}/m.bin", expected=expected))
    server.wait_for(1, "/m.bin")
    assert server.sent["/m.bin"] == 1


def test_a_look_that_fails_leaves_no_connection(around: Surroundings, server: FileServer) -> None:
    server.serve("/m.bin", DATA, statuses=[404])
    with pytest.raises(ArtifactNotFoundError):
        run(job(around, "look", f"{server.url}/m.bin"))
    until = threading.Event()
    for _ in range(200):
        if not server.connections:
            break
        until.wait(0.05)
    assert not server.connections


def test_a_server_that_sends_nothing_is_waited_for_as_long_as_the_limits_say(around: Surroundings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/m.bin"
        with pytest.raises(SourceUnavailableError, match=r"sent nothing for 3 s"):
            run(job(around, "look", address))


def test_a_job_that_was_stopped_looks_at_nothing_more(around: Surroundings, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    stopped = job(around, "look", f"{server.url}/m.bin")
    stopped.stop()
    with pytest.raises(LostPeerError) as raised:
        run(stopped)
    assert type(raised.value) is LostPeerError
