"""Jobs against a real server: what they find at an address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import blake3
import pytest

from trims.core.errors import (
    NotSupportedError,
)
from trims.sources.process.jobs import run

if TYPE_CHECKING:
    from tests.support.file_server import FileServer
    from trims.sources.process.job import Surroundings

from tests.support.transfer_jobs import DATA, job

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
