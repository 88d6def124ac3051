"""Addresses of a daemon: fetched once, found again, held against what was seen, and kept within the capacity."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import blake3
import pytest
from pushed_images import image_bytes, put

from trims.core.errors import CallerError, DeadlineError, DigestMismatchError, NoSpaceError, SourceUnavailableError
from trims.sources import lock
from trims.sources.downloads import Downloads
from trims.sources.lock import LockFile
from trims.sources.process.fetcher import Fetcher, FetchSettings
from trims.sources.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.file_server import FileServer

DATA = bytes(range(256)) * 9000
DIGEST = blake3.blake3(DATA).hexdigest()


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Fetcher]:
    made = Fetcher(FetchSettings(str(tmp_path / "downloads"), patience_s=3.0))
    yield made
    made.close()


@pytest.fixture
def remote(tmp_path: Path, fetcher: Fetcher) -> Remote:
    return made_again(tmp_path, fetcher)


def made_again(tmp_path: Path, fetcher: Fetcher, capacity_bytes: int = 1 << 40) -> Remote:
    return Remote(fetcher, LockFile(tmp_path / "trims.lock"), Downloads(tmp_path / "downloads", capacity_bytes))


def beside(folder: Path, address: str, **checksums: str) -> str:
    """Write a lock file in a manifest's folder; return the folder."""
    folder.mkdir(exist_ok=True)
    file = {"name": "m.bin", "nbytes": len(DATA), "version": "", "checksums": checksums}
    (folder / "trims.lock").write_bytes(lock.written({address: {"pinned": "", "files": [file]}}))
    return str(folder)


def test_what_was_fetched_is_here_for_the_next_daemon_without_a_request(
    remote: Remote, server: FileServer, tmp_path: Path, fetcher: Fetcher
) -> None:
    server.serve("/m.bin", DATA)
    address = f"{server.url}/m.bin"
    assert remote.here(address) is None
    found = remote.fetch(address)
    assert found.files["m.bin"].read_bytes() == DATA
    assert found.digests["m.bin"]["blake3"] == DIGEST
    assert found.fetched == {"m.bin"}
    asked = len(server.requests)
    here = made_again(tmp_path, fetcher).here(address)
    assert here is not None
    assert here.files == found.files
    assert len(server.requests) == asked
    found.files["m.bin"].unlink()
    assert remote.here(address) is None


@pytest.mark.parametrize("etag", ['"v1"', ""])
def test_two_queries_of_one_path_are_two_files_whatever_the_server_states(
    remote: Remote, server: FileServer, etag: str
) -> None:
    held = {f"{server.url}/m.bin?f=v{which}": bytes([which]) * len(DATA) for which in (1, 2)}
    for address, data in held.items():
        server.serve(address.removeprefix(server.url), data, etag=etag)
    found = {address: remote.fetch(address).files["m.bin"] for address in held}
    assert {address: path.read_bytes() for address, path in found.items()} == held
    again = {address: remote.here(address) for address in held}
    assert {address: here and here.files["m.bin"] for address, here in again.items()} == found


def test_an_address_signed_again_is_held_to_what_was_seen_at_it(remote: Remote, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    signed = f"{server.url}/m.bin?X-Amz-Algorithm=AWS4&X-Amz-Credential=me&X-Amz-Date=%d&X-Amz-Signature=%d"
    first = remote.fetch(signed % (1, 1))
    assert remote.here(signed % (2, 2)) is not None
    assert remote.fetch(signed % (2, 2)).files == first.files
    server.serve("/m.bin", DATA[::-1], etag='"v2"')
    first.files["m.bin"].unlink()
    with pytest.raises(DigestMismatchError):
        remote.fetch(signed % (3, 3))


def test_a_fetch_that_others_join_is_one_and_goes_on_for_them(remote: Remote, server: FileServer) -> None:
    served = server.serve("/m.bin", DATA, stall_after=1 << 20)
    address, found, errors = f"{server.url}/m.bin", list[Any](), list[BaseException]()
    gone = threading.Event()

    def fetch(wanted: Any) -> None:
        try:
            found.append(remote.fetch(address, wanted=wanted))
        except DeadlineError as error:
            errors.append(error)

    first = threading.Thread(target=fetch, args=(lambda: not gone.is_set(),))
    first.start()
    server.wait_for(1 << 20, "/m.bin")
    others = [threading.Thread(target=fetch, args=(wanted,)) for wanted in (lambda: True, lambda: not gone.is_set())]
    for each in others:
        each.start()
    assert not remote.is_idle
    assert remote.progress(address) is not None
    gone.set()
    others[1].join(30)
    assert len(errors) == 1
    served.stall_after = None
    served.resume.set()
    for each in (first, *others):
        each.join(30)
    assert len(found) == 2
    assert remote.is_idle
    assert server.sent["/m.bin"] <= len(DATA) + 1


@pytest.mark.parametrize("kind", ["blake3", "sha256", "crc64nvme"])
def test_a_lock_file_beside_a_manifest_is_held_against_what_is_here_already(
    kind: str, remote: Remote, server: FileServer, tmp_path: Path
) -> None:
    server.serve("/m.bin", DATA)
    address = f"{server.url}/m.bin"
    remote.fetch(address)
    origin = beside(tmp_path / "manifests", address, **{kind: "0" * 16})
    for _ in range(2):
        with pytest.raises(DigestMismatchError, match="0" * 16):
            remote.here(address, origin=origin) or remote.fetch(address, origin=origin)
    assert remote.here(address) is not None, "the daemon's own entry was lost"


def test_a_stated_digest_that_was_not_hashed_before_is_hashed_then(remote: Remote, server: FileServer) -> None:
    import hashlib

    server.serve("/m.bin", DATA)
    address, digest = f"{server.url}/m.bin", hashlib.sha256(DATA).hexdigest()
    remote.fetch(address)
    assert remote.here(address, stated={"m.bin": digest}) is None
    server.wait_for(len(DATA) + 1, "/m.bin")
    sent = server.sent["/m.bin"]
    assert remote.fetch(address, stated={"m.bin": digest}).digests["m.bin"]["sha256"] == digest
    server.wait_for(sent + 1, "/m.bin")
    assert server.sent["/m.bin"] == sent + 1
    assert remote.here(address, stated={"m.bin": digest}) is not None
    with pytest.raises(DigestMismatchError):
        remote.here(address, stated={"m.bin": "0" * 64})


def test_a_request_that_joins_with_a_stricter_manifest_is_held_to_it(
    remote: Remote, server: FileServer, tmp_path: Path
) -> None:
    served = server.serve("/m.bin", DATA, stall_after=1 << 20)
    address = f"{server.url}/m.bin"
    origin = beside(tmp_path / "manifests", address, blake3="0" * 64)
    first = threading.Thread(target=remote.fetch, args=(address,))
    first.start()
    server.wait_for(1 << 20, "/m.bin")
    served.stall_after = None
    timer = threading.Timer(0.3, served.resume.set)
    timer.start()
    with pytest.raises(DigestMismatchError):
        remote.fetch(address, origin=origin)
    first.join(30)
    timer.join()


def test_what_changed_is_refused_until_the_change_is_accepted(remote: Remote, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    address = f"{server.url}/m.bin"
    before = remote.fetch(address)
    before.files["m.bin"].unlink()
    server.serve("/m.bin", DATA[::-1], etag='"v2"')
    with pytest.raises(DigestMismatchError, match=r"--update"):
        remote.fetch(address)
    assert remote.seen(address)["files"][0]["version"] == '"v1"'  # type: ignore[index]
    assert remote.fetch(address, update=True).files["m.bin"].read_bytes() == DATA[::-1]
    assert remote.fetch(address).files["m.bin"].read_bytes() == DATA[::-1]


# fault (sources): an update fails or cannot be opened
def test_an_update_that_fails_leaves_what_was_known(remote: Remote, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    address = f"{server.url}/m.bin"
    remote.fetch(address)
    server.files["/m.bin"].statuses = [503] * 1000
    with pytest.raises(SourceUnavailableError):
        remote.fetch(address, update=True, wanted=lambda: len(server.requests) < 9)
    here = remote.here(address)
    assert here is not None
    assert here.files["m.bin"].read_bytes() == DATA


def test_an_image_in_place_of_files_is_refused_and_files_in_place_of_an_image(
    remote: Remote, server: FileServer
) -> None:
    data, _ = image_bytes(10_000)
    server.serve("/bert", DATA)
    found = remote.fetch(f"{server.url}/bert")
    put(server, data)
    found.files["bert"].unlink()
    with pytest.raises(DigestMismatchError, match="held files"):
        remote.fetch(f"{server.url}/bert")
    assert remote.fetch(f"{server.url}/bert", update=True).image is not None
    assert [each.address for each in remote.images()] == [f"{server.url}/bert"]
    del server.files["/bert/trims.json"]
    with pytest.raises(DigestMismatchError, match="held an image"):
        remote.fetch(f"{server.url}/bert")


def test_an_image_with_another_digest_is_refused(remote: Remote, server: FileServer) -> None:
    address = put(server, image_bytes(10_000)[0])
    remote.fetch(address)
    put(server, image_bytes(20_000)[0])
    with pytest.raises(DigestMismatchError, match="digest"):
        remote.fetch(address)


# fault (sources): room is made during two transfers -> nothing; running transfers stay
def test_room_is_made_by_what_is_complete_and_not_by_what_another_transfer_writes(
    remote: Remote, server: FileServer, tmp_path: Path, fetcher: Fetcher
) -> None:
    small = made_again(tmp_path, fetcher, capacity_bytes=len(DATA) // 2)
    slow = server.serve("/slow.bin", DATA, stall_after=1 << 20)
    found = list[Any]()
    thread = threading.Thread(target=lambda: found.append(small.fetch(f"{server.url}/slow.bin")))
    thread.start()
    server.wait_for(1 << 20, "/slow.bin")
    server.serve("/one.bin", DATA)
    server.serve("/two.bin", DATA[::-1])
    one = small.fetch(f"{server.url}/one.bin")
    small.fetch(f"{server.url}/two.bin")
    assert not one.files["one.bin"].exists()
    slow.stall_after = None
    slow.resume.set()
    thread.join(30)
    assert found[0].files["slow.bin"].read_bytes() == DATA
    assert server.sent["/slow.bin"] <= len(DATA) + 1, "its partial file was removed under it"


class Full(Fetcher):
    """A fetcher whose disk is full the first times."""

    times = 1

    def do(self, what: str, order: Any, **more: Any) -> dict[str, Any]:
        if self.times:
            self.times -= 1
            raise NoSpaceError("the disk is full", 0)
        return super().do(what, order, **more)


@pytest.mark.parametrize(("times", "others"), [(1, True), (1, False), (2, True)])
def test_a_full_disk_takes_the_room_of_other_downloads_once(
    times: int, others: bool, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = Full(FetchSettings(str(tmp_path / "downloads"), patience_s=3.0))
    fetcher.times = 0
    remote = made_again(tmp_path, fetcher)
    server.serve("/old.bin", DATA)
    server.serve("/m.bin", DATA)
    if others:
        remote.fetch(f"{server.url}/old.bin")
    monkeypatch.setattr(Downloads, "_free", lambda _: -1)
    fetcher.times = times
    if times == 1 and others:
        assert remote.fetch(f"{server.url}/m.bin").files["m.bin"].read_bytes() == DATA
    else:
        with pytest.raises(NoSpaceError):
            remote.fetch(f"{server.url}/m.bin")
        assert remote.fetch(f"{server.url}/m.bin").files["m.bin"].read_bytes() == DATA
    assert remote.here(f"{server.url}/old.bin") is None
    fetcher.close()


def test_a_lock_file_that_cannot_be_written_costs_no_second_transfer(
    remote: Remote, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.serve("/m.bin", DATA)
    real = LockFile.put

    def full(*_: Any) -> None:
        raise NoSpaceError("trims.lock does not fit", 0)

    monkeypatch.setattr(LockFile, "put", full)
    with pytest.raises(NoSpaceError):
        remote.fetch(f"{server.url}/m.bin")
    assert remote.here(f"{server.url}/m.bin") is None
    monkeypatch.setattr(LockFile, "put", real)
    found = remote.fetch(f"{server.url}/m.bin")
    assert found.digests["m.bin"]["blake3"] == DIGEST
    assert server.sent["/m.bin"] <= len(DATA) + 2


def test_what_is_no_address_is_refused_before_anything_runs(remote: Remote, fetcher: Fetcher) -> None:
    for text in ("/etc/passwd", "file:///etc/passwd", "http://h:99999/m", "http://me:word@h/m"):
        with pytest.raises(CallerError):
            remote.fetch(text)
    assert fetcher.pid is None
