"""Pulls, pushes and prunes as operators order them, in a real daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import WAIT_S, wait_until
from pushed_images import image_bytes, put
from safetensors.numpy import save
from trims_client import connect

from tests.support.file_server import FileServer, file_server
from trims.core.errors import (
    AddressRefusedError,
    ArtifactError,
    CallerError,
    DigestMismatchError,
    InUseError,
    NoSpaceError,
    NotSupportedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.daemon.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

WEIGHT = np.arange(500_000, dtype=np.float64)
DATA = save({"weight": WEIGHT})


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(fetch_patience_s=3.0)


@pytest.fixture
def transfers(daemon: Daemon) -> Transfers:
    return Transfers(daemon.store, daemon.registry, daemon.sources)


def register(daemon: Daemon, name: str, uri: str, origin: str = "", **more: Any) -> None:
    daemon.registry.put({"name": name, "artifact": {"uri": uri}, **more}, origin)


def pull(transfers: Transfers, name: str, *, update: bool = False) -> object:
    return transfers.pull(name, update=update).pending.result(WAIT_S)


def reads(daemon: Daemon, name: str, expected: np.ndarray) -> None:
    with connect(daemon.config.runtime_dir) as session, session.open(name) as weights:
        np.testing.assert_array_equal(weights["weight"], expected)


def test_a_pull_fetches_and_makes_ready_and_says_what_was_found(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA)
    register(daemon, "m", f"{server.url}/m.safetensors")
    pull(transfers, "m")
    assert "1 files, 3.8 MiB, 1 recorded, as its source states no checksum" in transfers.pulled("m")
    asked = len(server.requests)
    reads(daemon, "m", WEIGHT)
    pull(transfers, "m")
    assert len(server.requests) == asked


# fault (sources): more than `download_capacity_bytes` -> `no_space` with the setting, before a byte
def test_downloads_stay_within_their_capacity_before_and_during_a_transfer(
    serve: Callable[..., Daemon], server: FileServer
) -> None:
    daemon = serve(fetch_patience_s=3.0, download_capacity_bytes=2 * len(DATA) + (1 << 20))
    transfers = Transfers(daemon.store, daemon.registry, daemon.sources)
    server.serve("/large.safetensors", bytes(3 * len(DATA)))
    for name in ("one", "two", "three"):
        server.serve(f"/{name}.safetensors", DATA)
        register(daemon, name, f"{server.url}/{name}.safetensors")
    pull(transfers, "one")
    register(daemon, "large", f"{server.url}/large.safetensors")
    with pytest.raises(NoSpaceError, match="download_capacity_bytes"):
        pull(transfers, "large")
    assert server.sent["/large.safetensors"] <= 1  # which a look asks for
    most = []
    downloads = daemon.sources.remote.downloads
    two, three = (transfers.pull(name, update=False) for name in ("two", "three"))
    while not (two.pending.done(0.001) and three.pending.done(0.001)):
        most.append(sum(nbytes for _, nbytes in downloads.sets()))
    two.pending.result(WAIT_S)
    three.pending.result(WAIT_S)
    assert max(most, default=0) <= 2 * len(DATA) + (1 << 20)
    assert len(downloads.sets()) == 2


def test_a_pull_that_fails_is_forgotten_unless_another_one_runs(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA).bytes_per_s = 1e6
    register(daemon, "m", f"{server.url}/m.safetensors")
    forgotten: list[str] = []
    first = transfers.pull("m", update=False, forget=lambda: forgotten.append("m"))
    second = transfers.pull("m", update=False)
    first.stop.set()
    second.pending.result(WAIT_S)
    first.pending.done(WAIT_S)
    assert not forgotten
    register(daemon, "absent", f"{server.url}/absent.safetensors")
    third = transfers.pull("absent", update=False, forget=lambda: forgotten.append("absent"))
    with pytest.raises(TrimsError):
        third.pending.result(WAIT_S)
    assert forgotten == ["absent"]


def test_an_update_takes_what_lies_there_now_and_a_failed_one_leaves_what_was(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    served = server.serve("/m.safetensors", DATA)
    register(daemon, "m", f"{server.url}/m.safetensors")
    pull(transfers, "m")
    served.statuses = [404] * 1000
    with pytest.raises(Exception, match="404"):
        pull(transfers, "m", update=True)
    reads(daemon, "m", WEIGHT)
    server.serve("/m.safetensors", save({"weight": WEIGHT + 1}), etag='"v2"')
    pull(transfers, "m")
    reads(daemon, "m", WEIGHT)
    pull(transfers, "m", update=True)
    reads(daemon, "m", WEIGHT + 1)


def test_an_update_is_that_of_all_models_of_the_address(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    first, weight = image_bytes(100_000)
    uri = put(server, first)
    for name in ("one", "two"):
        register(daemon, name, uri)
        pull(transfers, name)
        reads(daemon, name, weight)
    second, other = image_bytes(100_000, seed=1)
    put(server, second)
    pull(transfers, "two", update=True)
    reads(daemon, "one", other)
    reads(daemon, "two", other)


# fault (sources): an update fails or cannot be opened -> its error; what was known is served
def test_an_update_to_what_cannot_be_opened_leaves_what_was_known(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA)
    register(daemon, "m", f"{server.url}/m.safetensors")
    pull(transfers, "m")
    reads(daemon, "m", WEIGHT)
    server.serve("/m.safetensors", b"\xff" * 1000, etag='"v2"')
    for _ in range(2):
        with pytest.raises(ArtifactError):
            pull(transfers, "m", update=True)
        reads(daemon, "m", WEIGHT)
    pull(transfers, "m")
    reads(daemon, "m", WEIGHT)


# fault (sources): a fetched file is overwritten -> `digest_mismatch`, once no image of it is left
@pytest.mark.parametrize("place", [None, "cpu"])
def test_a_download_that_was_written_since_is_not_served_as_what_was_fetched(
    place: str | None, daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA)
    uri = f"{server.url}/m.safetensors"
    register(daemon, "m", uri)
    pull(transfers, "m")
    here = daemon.sources.remote.here(uri)
    assert here is not None
    (path,) = here.files.values()
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff" * 1000)
    assert daemon.sources.remote.here(uri) is None
    with pytest.raises(DigestMismatchError, match=str(path)):
        pull(transfers, "m")
    reads(daemon, "m", WEIGHT)  # from the image in memory
    daemon.store.evict_image(daemon.store.key_of("m"), None, drain=False, name="m")
    with connect(daemon.config.runtime_dir) as session, pytest.raises(DigestMismatchError):
        session.open("m", place=place)
    path.unlink()
    pull(transfers, "m")
    reads(daemon, "m", WEIGHT)


def test_a_model_without_an_address_is_not_pulled(
    daemon: Daemon, transfers: Transfers, checkpoint: Callable[..., Path]
) -> None:
    daemon.registry.put({"name": "m", "artifact": {"path": str(checkpoint("a"))}}, "")
    with pytest.raises(CallerError, match="names no address"):
        transfers.pull("m", update=False)


def test_a_source_that_is_away_is_the_answer_of_the_pull(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA)
    register(daemon, "m", "http://127.0.0.1:1/m.safetensors")
    with pytest.raises(SourceUnavailableError):
        pull(transfers, "m")
    counts = transfers.counts()
    assert (counts["transfers.fetch"], counts["transfer_failures.source_unavailable"]) == (1, 1)
    assert transfers.running() == []


# fault (sources): a wrong checksum, of server, manifest or `trims.lock`
def test_a_pull_of_what_is_here_is_held_against_the_lock_file_beside_the_manifest(
    daemon: Daemon, transfers: Transfers, server: FileServer, folder: Path
) -> None:
    from trims.sources import lock

    server.serve("/m.safetensors", DATA)
    uri = f"{server.url}/m.safetensors"
    register(daemon, "m", uri)
    pull(transfers, "m")
    file = {"name": "m.safetensors", "nbytes": len(DATA), "checksums": {"blake3": "0" * 64}}
    (folder / "trims.lock").write_bytes(lock.written({uri: {"pinned": "", "files": [file]}}))
    register(daemon, "strict", uri, str(folder))
    with pytest.raises(DigestMismatchError, match="0" * 64):
        pull(transfers, "strict")
    with connect(daemon.config.runtime_dir) as session, pytest.raises(DigestMismatchError):
        session.open("strict")
    reads(daemon, "m", WEIGHT)


def test_a_pushed_images_manifest_fills_in_what_is_not_said_here(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    data, weight = image_bytes(100_000)
    uri = put(server, data, manifest={"description": "theirs", "license": "MIT", "residency": {"pin": True}})
    register(daemon, "m", uri, description="ours")
    pull(transfers, "m")
    raw = daemon.registry.raw("m")
    assert (raw["description"], raw["license"], raw.get("residency")) == ("ours", "MIT", None)
    reads(daemon, "m", weight)
    assert transfers.pulled("m").startswith("image ")
    assert transfers.pulled("m").endswith("left out what its publisher said of: residency")


def test_a_pushed_images_manifest_that_names_code_is_refused(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    uri = put(server, image_bytes(100_000)[0], manifest={"preprocess": [{"call": "os:system"}]})
    register(daemon, "m", uri)
    with pytest.raises(AddressRefusedError, match="os:system"):
        pull(transfers, "m")


@pytest.mark.parametrize(
    ("address", "error"), [("https://h/m", NotSupportedError), ("/tmp/m", CallerError), ("s3://k:w@b/m", CallerError)]
)
def test_only_buckets_are_pushed_to(
    address: str, error: type[Exception], daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA)
    register(daemon, "m", f"{server.url}/m.safetensors")
    with pytest.raises(error):
        transfers.push("m", address)


def test_prune_removes_downloads_that_no_model_has_and_not_while_one_is_written(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    for name in ("a", "b"):
        server.serve(f"/{name}.safetensors", DATA)
        register(daemon, name, f"{server.url}/{name}.safetensors")
        pull(transfers, name)
    daemon.registry.remove("b")
    slow = server.serve("/c.safetensors", DATA, stall_after=1 << 20)
    register(daemon, "c", f"{server.url}/c.safetensors")
    pulling = transfers.pull("c", update=False)
    server.wait_for(1 << 20, "/c.safetensors")
    with pytest.raises(InUseError):
        transfers.prune(dry_run=False)
    slow.stall_after = None
    slow.resume.set()
    pulling.pending.result(WAIT_S)
    daemon.sources.remote.forget(f"{server.url}/a.safetensors")  # as without the lock file: it is a model's still
    listed, nbytes = transfers.prune(dry_run=True)
    removed, freed = transfers.prune(dry_run=False)
    assert (len(removed), removed, freed) == (1, listed, nbytes)
    assert transfers.prune(dry_run=False) == ([], 0)
    reads(daemon, "a", WEIGHT)


def test_a_removed_model_takes_its_download_with_it_unless_another_has_it(
    daemon: Daemon, transfers: Transfers, server: FileServer
) -> None:
    server.serve("/m.safetensors", DATA)
    uri = f"{server.url}/m.safetensors"
    for name in ("one", "two"):
        register(daemon, name, uri)
        pull(transfers, name)
    here = daemon.sources.remote.here(uri)
    assert here is not None
    for name, left in (("one", True), ("two", False)):
        manifest = daemon.registry.get(name)
        daemon.registry.remove(name)
        transfers.forgotten(manifest)
        assert here.files["m.safetensors"].exists() == left
    wait_until(lambda: daemon.sources.remote.here(uri) is None, "it is still known")


def test_a_model_with_the_artifact_of_another_is_not_pushed(daemon: Daemon, transfers: Transfers) -> None:
    register(daemon, "m", "s3://bucket/m")
    daemon.registry.put({"name": "f", "artifact": {"model": "m"}}, "")
    with pytest.raises(CallerError, match="'f' has the artifact of 'm' and no image of its own; push 'm'"):
        transfers.push("f", "s3://bucket/f")
