from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import (
    AddressRefusedError,
    ArtifactChangedError,
    ArtifactError,
    ArtifactNotFoundError,
    DeadlineError,
    DigestMismatchError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.process.fetcher import Fetcher, FetchSettings, Moved, Running
from trims.sources.transfer.partial import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.file_server import FileServer

DATA = random.Random(7).randbytes(9 * PIECE_BYTES + 12_345)


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Fetcher]:
    made = Fetcher(FetchSettings(str(tmp_path / "downloads"), patience_s=2.0))
    yield made
    made.close()


def fetched(fetcher: Fetcher, address: str, **more: Any) -> Path:
    """Fetch one file; return its path."""
    return Path(fetcher.do("fetch", {"address": address, "named": True, **more})["files"][0]["path"])


def test_a_file_is_fetched_by_ranges_over_several_connections_and_proven(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    answer = fetcher.do("fetch", {"address": f"{server.url}/m.bin", "named": True})
    file = answer["files"][0]
    assert Path(file["path"]).read_bytes() == DATA
    assert (file["name"], file["nbytes"], file["version"]) == ("m.bin", len(DATA), '"v1"')
    assert {"blake3", "crc64nvme"} <= file["found"].keys()
    ranges = [headers["Range"] for _, _, headers in server.requests]
    assert len(ranges) > 2
    assert all(headers.get("If-Match") == '"v1"' for _, _, headers in server.requests[1:])
    assert all(headers["Accept-Encoding"] == "identity" for _, _, headers in server.requests)


def test_a_file_that_is_there_is_not_fetched_again(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    first = fetched(fetcher, f"{server.url}/m.bin")
    sent = server.sent["/m.bin"]
    assert fetched(fetcher, f"{server.url}/m.bin") == first
    server.wait_for(sent + 1, "/m.bin")
    assert server.sent["/m.bin"] == sent + 1  # the look asks for one byte


def test_another_version_is_another_file(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    first = fetched(fetcher, f"{server.url}/m.bin")
    server.serve("/m.bin", DATA[::-1], etag='"v2"')
    second = fetched(fetcher, f"{server.url}/m.bin")
    assert (first.read_bytes(), second.read_bytes()) == (DATA, DATA[::-1])


def test_a_server_without_ranges_is_read_to_its_end(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA, ranges=False)
    assert fetched(fetcher, f"{server.url}/m.bin").read_bytes() == DATA


# fault (sources): a server breaks off again and again -> nothing; only what lacks is asked for
def test_a_server_that_breaks_off_again_and_again_is_asked_for_what_is_missing(
    fetcher: Fetcher, server: FileServer
) -> None:
    served = server.serve("/m.bin", DATA, break_after=[PIECE_BYTES + 77, 10, 2 * PIECE_BYTES, 5, 900_000])
    assert fetched(fetcher, f"{server.url}/m.bin").read_bytes() == DATA
    assert not served.break_after
    assert server.sent["/m.bin"] < len(DATA) + 6 * PIECE_BYTES


# fault (sources): 429, 500, 503 -> nothing, while the patience lasts
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(fetcher: Fetcher, server: FileServer, status: int) -> None:
    served = server.serve("/m.bin", DATA, statuses=[status] * 3, headers={"Retry-After": "0"})
    assert fetched(fetcher, f"{server.url}/m.bin").read_bytes() == DATA
    assert not served.statuses


# fault (sources): 401, 403, 404, 410 -> `source_refused`, `artifact_not_found`, without secrets
@pytest.mark.parametrize(
    ("status", "error"),
    [(401, SourceRefusedError), (403, SourceRefusedError), (404, ArtifactNotFoundError), (418, ArtifactError)],
)
def test_a_refusal_is_an_error_that_names_the_address(
    fetcher: Fetcher, server: FileServer, status: int, error: type[TrimsError]
) -> None:
    server.serve("/m.bin", DATA, statuses=[status])
    with pytest.raises(error, match=r"/m\.bin"):
        fetched(fetcher, f"{server.url}/m.bin?token=secret-of-mine")


def test_secrets_of_an_address_are_in_no_error(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA, statuses=[403])
    with pytest.raises(SourceRefusedError) as raised:
        fetched(fetcher, f"{server.url}/m.bin?X-Signature=hidden")
    assert "hidden" not in str(raised.value)


# fault (sources): a file changes midway -> fetched as it is then
def test_a_file_that_changes_midway_is_fetched_as_it_is_then(fetcher: Fetcher, server: FileServer) -> None:
    served = server.serve("/m.bin", DATA * 4, stall_after=PIECE_BYTES)
    paths: list[Path] = []
    thread = threading.Thread(target=lambda: paths.append(fetched(fetcher, f"{server.url}/m.bin")))
    thread.start()
    server.wait_for(2 * PIECE_BYTES, "/m.bin")
    server.serve("/m.bin", DATA[::-1] * 4, etag='"v2"')
    served.stall_after = None
    served.resume.set()
    thread.join(30)
    assert [path.read_bytes() for path in paths] == [DATA[::-1] * 4]
    assert not list(Path(fetcher._settings.downloads).rglob("*.journal"))


def test_a_server_that_lies_about_the_length_is_found_out(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA, total=len(DATA) + 1)
    with pytest.raises((ArtifactChangedError, ArtifactError, SourceUnavailableError)):
        fetched(fetcher, f"{server.url}/m.bin")


def test_an_answer_in_another_encoding_is_refused(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA, headers={"Content-Encoding": "gzip"})
    with pytest.raises(ArtifactError, match="gzip"):
        fetched(fetcher, f"{server.url}/m.bin")


# fault (sources): a server stalls, or stays away beyond `--fetch-patience-s` -> `source_unavailable`; what has come
# stays
def test_a_stalled_server_is_given_up_and_what_came_is_kept(tmp_path: Path, server: FileServer) -> None:
    served = server.serve("/m.bin", DATA, stall_after=PIECE_BYTES)
    fetcher = Fetcher(FetchSettings(str(tmp_path), patience_s=1.0))
    try:
        gone = threading.Event()
        with pytest.raises(DeadlineError):
            fetcher.do("fetch", {"address": f"{server.url}/m.bin", "named": True},
                       wanted=lambda: not gone.is_set(),
                       on_moved=lambda moved: gone.set() if moved.done_bytes else None)  # fmt: skip
        served.stall_after = None
        served.resume.set()
        before = server.sent["/m.bin"]
        assert fetched(fetcher, f"{server.url}/m.bin").read_bytes() == DATA
        assert server.sent["/m.bin"] - before < len(DATA)
    finally:
        fetcher.close()


# fault (sources): redirects in a loop or to nowhere -> `bad_artifact`
def test_redirects_are_followed_and_loops_are_not(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    server.serve("/latest.bin", b"x", redirect="/m.bin")
    server.serve("/loop.bin", b"x", redirect="/loop.bin")
    assert fetched(fetcher, f"{server.url}/latest.bin").read_bytes() == DATA
    with pytest.raises(ArtifactError, match="redirects"):
        fetched(fetcher, f"{server.url}/loop.bin")


# fault (sources): a redirect to a private host or a file -> `address_refused`
@pytest.mark.parametrize(
    "elsewhere", ["http://169.254.169.254/latest/meta-data", "http://localhost:1/m.bin", "file:///etc/passwd"]
)
def test_a_redirect_to_a_private_host_or_a_file_is_refused(
    fetcher: Fetcher, server: FileServer, elsewhere: str
) -> None:
    server.serve("/m.bin", b"x", redirect=elsewhere)
    with pytest.raises(AddressRefusedError):
        fetched(fetcher, f"{server.url}/m.bin")


def test_an_address_that_no_operator_named_leads_to_no_private_host(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    with pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1"):
        fetched(fetcher, f"{server.url}/m.bin", named=False)
    assert not server.requests


# fault (sources): a wrong checksum, of server, manifest or `trims.lock` -> `digest_mismatch` with both; nothing of
# the file stays
def test_a_checksum_that_the_server_states_is_compared(fetcher: Fetcher, server: FileServer) -> None:
    digest = hashlib.sha256(DATA).digest()
    import base64

    server.serve("/good.bin", DATA, headers={"Repr-Digest": f"sha-256=:{base64.b64encode(digest).decode()}:"})
    assert fetched(fetcher, f"{server.url}/good.bin").read_bytes() == DATA
    wrong = base64.b64encode(bytes(32)).decode()
    server.serve("/bad.bin", DATA, headers={"Repr-Digest": f"sha-256=:{wrong}:"})
    with pytest.raises(DigestMismatchError, match=digest.hex()):
        fetched(fetcher, f"{server.url}/bad.bin")
    left = [
        path
        for path in Path(fetcher._settings.downloads).rglob("*")
        if path.is_file() and ".lock" not in path.name and path.name != "address"
    ]
    assert [path.name for path in left] == ["good.bin"]


def test_what_was_first_seen_is_refused_when_it_changes_with_both_shown(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    expected = {"m.bin": {"nbytes": len(DATA), "checksums": {"sha256": "0" * 64}}}
    with pytest.raises(DigestMismatchError) as raised:
        fetched(fetcher, f"{server.url}/m.bin", expected=expected)
    assert "0" * 64 in str(raised.value)
    assert hashlib.sha256(DATA).hexdigest() in str(raised.value)


def test_a_fetch_whose_process_is_killed_twenty_times_fetches_little_twice(
    fetcher: Fetcher, server: FileServer
) -> None:
    data = random.Random(8).randbytes(64 * PIECE_BYTES)
    server.serve("/m.bin", data, bytes_per_s=40e6)
    killed, chance = 0, random.Random(9)
    at = sorted(chance.randrange(1, 60) * PIECE_BYTES for _ in range(20))

    def kill_now_and_then(moved: Any) -> None:
        nonlocal killed
        while killed < len(at) and moved.done_bytes >= at[killed]:
            killed += 1
            pid = fetcher.pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    answer = fetcher.do("fetch", {"address": f"{server.url}/m.bin", "named": True}, on_moved=kill_now_and_then)
    assert Path(answer["files"][0]["path"]).read_bytes() == data
    assert killed >= 10
    assert server.sent["/m.bin"] < 2 * len(data)
    assert not list(Path(fetcher._settings.downloads).rglob("*.journal"))


def test_two_who_fetch_one_address_fetch_it_once(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA, bytes_per_s=20e6)
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(fetched(fetcher, f"{server.url}/m.bin"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(paths)) == 1
    assert len(paths) == 3
    assert server.sent["/m.bin"] < len(DATA) + 4 * PIECE_BYTES


def test_an_image_is_fetched_into_memory_that_is_given(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    fd, journal = os.memfd_create("image"), os.memfd_create("journal")
    try:
        os.ftruncate(fd, len(DATA))
        order = {"address": f"{server.url}/m.bin", "named": True, "nbytes": len(DATA), "checksums": {}}
        found = fetcher.do("image", order, fds=[fd, journal])["found"]
        assert os.pread(fd, len(DATA), 0) == DATA
        with pytest.raises(DigestMismatchError):
            fetcher.do("image", {**order, "checksums": {"crc64nvme": "0" * 16}}, fds=[fd, journal])
        assert fetcher.do("image", {**order, "checksums": found}, fds=[fd, journal])["found"] == found
    finally:
        os.close(fd)
        os.close(journal)


def test_an_image_whose_process_is_killed_goes_on_with_what_has_come(fetcher: Fetcher, server: FileServer) -> None:
    data = random.Random(10).randbytes(24 * PIECE_BYTES)
    served = server.serve("/m.bin", data, bytes_per_s=10e6)
    fd, journal = os.memfd_create("image"), os.memfd_create("journal")
    killed = False

    def kill_once(moved: Any) -> None:
        nonlocal killed
        pid = fetcher.pid
        if not killed and moved.done_bytes > len(data) // 2 and pid is not None:
            killed, served.bytes_per_s = True, None
            os.kill(pid, signal.SIGKILL)

    try:
        os.ftruncate(fd, len(data))
        order = {"address": f"{server.url}/m.bin", "named": True, "nbytes": len(data), "checksums": {}}
        fetcher.do("image", order, fds=[fd, journal], on_moved=kill_once)
        assert killed
        assert os.pread(fd, len(data), 0) == data
        assert server.sent["/m.bin"] < 1.6 * len(data)
    finally:
        os.close(fd)
        os.close(journal)


def test_a_fetcher_that_was_closed_takes_no_jobs(fetcher: Fetcher) -> None:
    fetcher.close()
    with pytest.raises(TrimsError):
        fetched(fetcher, "http://127.0.0.1:1/m.bin")


def test_jobs_failures_and_bytes_are_counted(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m.bin", DATA)
    fetched(fetcher, f"{server.url}/m.bin")
    with pytest.raises(ArtifactNotFoundError):
        fetched(fetcher, f"{server.url}/other.bin")
    counts = fetcher.counts()
    assert counts["transfers.fetch"] == 2
    assert counts["transfer_failures.artifact_not_found"] == 1
    assert counts["transferred_bytes"] == len(DATA)
    assert not fetcher.running()


def test_the_rate_of_a_transfer_is_zero_once_nothing_comes() -> None:
    now = [1.0]
    running = Running("http://h/m", "fetch", clock=lambda: now[0])
    for second in range(1, 20):
        now[0] = float(second)
        running.report(Moved(second * 100, second * 100, 10_000))
    assert 90 < running.rate < 110
    assert running.left_s is not None
    now[0] += 10.0
    assert (running.rate, running.left_s) == (0.0, None)
    running.report(Moved(2000, 2000, 10_000))
    assert running.rate > 0
    running.report(Moved(2000, 2000, 10_000, "h cannot be reached"))
    assert (running.rate, running.left_s) == (0.0, None)
