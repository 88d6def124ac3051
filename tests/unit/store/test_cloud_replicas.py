"""Replicas in the cloud in a daemon's books: found at an address, filled from, broken, forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from awscrt import checksums
from looking import WAIT_S, Asker, error_of, states, wait_until
from pushed_images import KEY, image_bytes, put
from trims_client import connect

from tests.support.file_server import FileServer, file_server
from trims.core.errors import ImageError, NotSupportedError, SourceUnavailableError, TrimsError
from trims.core.place import CLOUD, CPU, DISK
from trims.image.program import Program
from trims.tiers.cloud import CloudImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon

DATA, WEIGHT = image_bytes()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(allow_hosts="127.0.0.1", fetch_patience_s=0.3)


@pytest.fixture
def register(daemon: Daemon, server: FileServer) -> Callable[..., None]:
    """Return a function that puts an image on the server and registers its address as `m`."""

    def put_there(data: bytes = DATA, **changed: Any) -> None:
        uri = put(server, data, **changed)
        daemon.registry.put({"name": "m", "artifact": {"uri": uri}}, "")

    return put_there


def reads_true(daemon: Daemon, **place: str) -> None:
    with connect(daemon.config.runtime_dir) as session, session.open("m", **place) as weights:
        np.testing.assert_array_equal(weights["weight"], WEIGHT)


def test_an_open_fills_memory_from_the_cloud_and_disk_behind_it(
    daemon: Daemon, server: FileServer, register: Callable[..., None]
) -> None:
    register()
    reads_true(daemon)
    wait_until(lambda: states(daemon) == {"cloud": "sealed", "cpu": "sealed", "disk": "sealed"}, "no disk behind it")
    assert server.sent["/bert/m.safetensors"] <= len(DATA) + 1
    reads_true(daemon, place="disk")


def test_many_opens_at_once_fetch_once(daemon: Daemon, server: FileServer, register: Callable[..., None]) -> None:
    register()
    asker = Asker(daemon)
    pending = [asker.ask("m") for _ in range(8)]
    digests = {each.result(WAIT_S).digest for each in pending}  # type: ignore[union-attr]
    assert len(digests) == 1
    assert server.sent["/bert/m.safetensors"] <= len(DATA) + 1
    asker.end()


def test_what_is_known_is_taken_into_the_books_once(daemon: Daemon) -> None:
    image = CloudImage(KEY, "d" * 64, 10, "s3://b/m")
    for _ in range(3):
        daemon.store.know_in_cloud(image)
    assert states(daemon) == {"cloud": "sealed"}


def test_evict_everywhere_leaves_the_replica_in_the_cloud_and_there_alone_is_refused(
    daemon: Daemon, register: Callable[..., None]
) -> None:
    register()
    reads_true(daemon)
    wait_until(lambda: states(daemon).get("disk") == "sealed", "no disk behind it")
    daemon.store.evict("m", None, drain=True)
    wait_until(lambda: states(daemon) == {"cloud": "sealed"}, "the host keeps something")
    with pytest.raises(NotSupportedError):
        daemon.store.evict("m", CLOUD)
    reads_true(daemon)


def test_an_open_in_the_cloud_is_refused(daemon: Daemon, register: Callable[..., None]) -> None:
    register()
    asker = Asker(daemon)
    assert isinstance(error_of(asker.ask("m", CLOUD)), NotSupportedError)
    asker.end()


# fault (sources): a cloud image with other bytes or length -> `bad_image` with its address
@pytest.mark.parametrize("place", [CPU, DISK])
@pytest.mark.parametrize("damage", ["other bytes", "another length", "another form"])
def test_a_broken_replica_is_retried_once_and_refused_with_its_address(
    damage: str, place: Any, daemon: Daemon, server: FileServer, register: Callable[..., None]
) -> None:
    if damage == "another form":
        register(b"\xff" * len(DATA))
    else:
        register()
        served = server.files["/bert/m.safetensors"]
        served.data = DATA[:-1] + b"x" if damage == "other bytes" else DATA[:-1]
    asker = Asker(daemon)
    error = error_of(asker.ask("m", place))
    assert isinstance(error, ImageError), repr(error)
    wait_until(lambda: states(daemon) in ({}, {"cloud": "sealed"}), "a draft or the broken replica is left")
    looks = [path for _, path, headers in server.requests if headers["Range"] == "bytes=0-0"]
    assert looks.count("/bert/m.safetensors") <= 2, "it was tried again and again"
    server.serve("/bert/m.safetensors", DATA)
    if damage != "another form":
        reads_true(daemon)
    asker.end()


def test_a_digest_that_is_not_that_of_the_bytes_is_found_behind_the_first_reader(
    daemon: Daemon, register: Callable[..., None]
) -> None:
    register(digest="0" * 64)
    asker = Asker(daemon)
    asker.open("m")
    asker.end()
    wait_until(lambda: "cpu" not in states(daemon), "what is not as it was described stays in memory")


# fault (sources): its server is away -> `source_unavailable`
def test_a_server_that_is_away_fails_the_open_and_the_next_one_is_served(
    daemon: Daemon, server: FileServer, register: Callable[..., None]
) -> None:
    register()
    asker = Asker(daemon)
    served = server.files["/bert/m.safetensors"]
    served.statuses = [503] * 1000
    served.headers = {"Retry-After": "0"}
    error: TrimsError = error_of(asker.ask("m"))
    assert isinstance(error, SourceUnavailableError)
    assert error.retryable
    wait_until(lambda: states(daemon) == {"cloud": "sealed"}, "a replica that cannot be reached is not broken")
    served.statuses = []
    served.headers = {}
    reads_true(daemon)
    asker.end()


# fault (sources): its checksum is right, its digest wrong -> an ERROR after the first session, then `bad_image`
def test_a_wrong_digest_takes_the_replica_out_of_service_until_it_is_right(
    daemon: Daemon, server: FileServer, register: Callable[..., None]
) -> None:
    data, _ = image_bytes(seed=6)
    wrong = checksums.crc64nvme(data)  # which the description states, as one who writes there can have it do
    register(checksums={"crc64nvme": f"{wrong:016x}"})
    server.serve("/bert/m.safetensors", data, etag=f'"{wrong:x}"')
    asker = Asker(daemon)
    asker.open("m", None)
    wait_until(lambda: "cloud" not in states(daemon), "it stays in the books")
    asker.end()
    wait_until(lambda: not states(daemon), "a copy of it stays")
    asker = Asker(daemon)
    for place in (CPU, DISK, None):
        wait_until(lambda: not states(daemon), "the replica is being forgotten")  # until then it cannot be found again
        error = error_of(asker.ask("m", place))
        assert isinstance(error, ImageError), repr(error)
        assert f"{server.url}/bert/m.safetensors" in str(error)
    assert set(states(daemon)) <= {"cloud"}
    register()
    daemon.store.resolver.remote.forget(f"{server.url}/bert")  # type: ignore[union-attr]
    daemon.store.manifest_changed("m")
    asker.end()
    wait_until(lambda: set(states(daemon)) <= {"cloud"}, "a draft is left")
    reads_true(daemon)


def test_a_program_that_runs_code_is_proven_before_it_is_lent(daemon: Daemon, register: Callable[..., None]) -> None:
    data, _ = image_bytes(program=Program("torch-skeleton", {}, b"x"))
    register(data, digest="0" * 64)
    asker = Asker(daemon)
    error = error_of(asker.ask("m"))
    assert isinstance(error, ImageError)
    assert "is not as it was described" in str(error)
    asker.end()
