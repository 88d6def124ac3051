"""Sources of a daemon: what earlier lives knew, images in memory, and a start beside a damaged lock file."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pushed_images import KEY, described, image_bytes

from tests.support.file_server import FileServer, file_server
from trims.core.errors import ConfigError, ImageError, LostPeerError, SourceUnavailableError, TrimsError
from trims.daemon.config import build_config
from trims.daemon.sources import Sources
from trims.sources import lock
from trims.tiers.cloud import CloudImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon
    from trims.tiers.base import Draft

DATA, _ = image_bytes(24_000_000)
DESCRIBED = {name: value for name, value in described(DATA).items() if name not in ("kind", "format_version")}


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


class Catalog:
    """Names of images, as a catalog knows them."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def names_of(self, key: str) -> list[str]:
        return ["m"] if key in self.keys else []


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Callable[..., Sources]]:
    running: list[Sources] = []

    def make(*keys: str) -> Sources:
        settings = {"state_dir": tmp_path, "runtime_dir": tmp_path, "fetch_patience_s": 0.5}
        catalog: Any = Catalog(*keys)
        running.append(Sources(build_config(settings, environment={}), catalog))
        return running[-1]

    yield make
    for each in running:
        each.close()
        each.close()


@pytest.fixture
def memory() -> Iterator[Draft]:
    fd = os.memfd_create("draft")
    os.ftruncate(fd, len(DATA))
    yield SimpleNamespace(fd=fd, nbytes=len(DATA), pages=None)  # type: ignore[misc]
    os.close(fd)


def image(server: FileServer, **changed: Any) -> CloudImage:
    fields = {"checksums": DESCRIBED["checksums"], **changed}
    return CloudImage(KEY, DESCRIBED["digest"], len(DATA), f"{server.url}/m.safetensors", **fields)


def fetch(made: Sources, it: CloudImage, draft: Draft, **more: Any) -> list[int]:
    """Fetch an image; return the progress that was reported."""
    told: list[int] = []
    made.tier.fetch(made.tier.know(it), draft, more.get("tell", told.append), more.get("stopped", lambda: False))
    return told


def test_images_of_names_that_are_still_there_are_known_again(sources: Callable[..., Sources], tmp_path: Path) -> None:
    ours = {"pinned": "s3://b/m", "image": DESCRIBED, "pushed": True}
    (tmp_path / "trims.lock").write_bytes(
        lock.written({"s3://b/m": ours, "s3://b/o": {"pinned": "", "image": DESCRIBED}})
    )
    (extent,) = sources(KEY).tier.scan()
    assert (extent.key, extent.nbytes, extent.label) == (KEY, len(DATA), "s3://b/m/m.safetensors")
    assert list(sources().tier.scan()) == []


def test_an_image_that_others_pushed_has_a_key_of_its_address_and_digest(
    sources: Callable[..., Sources], tmp_path: Path
) -> None:
    theirs = {"pinned": "", "image": DESCRIBED}
    (tmp_path / "trims.lock").write_bytes(lock.written({"s3://b/m": theirs, "s3://b/o": theirs}))
    one, other = (sources().remote.here(address) for address in ("s3://b/m", "s3://b/o"))
    assert one is not None
    assert other is not None
    assert len({KEY, one.image_key, other.image_key}) == 3
    (extent,) = sources(one.image_key).tier.scan()
    assert extent.key == one.image_key


def test_an_image_comes_into_memory_and_says_how_far_it_is(
    sources: Callable[..., Sources], server: FileServer, memory: Draft
) -> None:
    server.serve("/m.safetensors", DATA)
    assert fetch(sources(), image(server), memory)[-1] == len(DATA)
    assert os.pread(memory.fd, len(DATA), 0) == DATA


@pytest.mark.parametrize("changed", [{"checksums": {"crc64nvme": "0" * 16}}, {"checksums": {"sha256": "0" * 64}}])
def test_other_bytes_are_a_broken_image_that_names_its_address(
    changed: dict[str, Any], sources: Callable[..., Sources], server: FileServer, memory: Draft
) -> None:
    server.serve("/m.safetensors", DATA)
    with pytest.raises(ImageError, match=r"/m\.safetensors"):
        fetch(sources(), image(server, **changed), memory)


@pytest.mark.parametrize(("status", "error"), [(404, ImageError), (503, SourceUnavailableError)])
def test_an_image_that_is_gone_is_broken_and_one_out_of_reach_is_not(
    status: int, error: type[TrimsError], sources: Callable[..., Sources], server: FileServer, memory: Draft
) -> None:
    served = server.serve("/m.safetensors", DATA, statuses=[status] * 1000)
    served.headers = {"Retry-After": "0"}
    with pytest.raises(error):
        fetch(sources(), image(server), memory)


def test_a_process_that_is_killed_in_the_middle_fetches_only_what_is_missing(
    sources: Callable[..., Sources], server: FileServer, memory: Draft
) -> None:
    server.serve("/m.safetensors", DATA, bytes_per_s=20e6)
    made, killed = sources(), list[int]()

    def tell(done_bytes: int) -> None:
        pid = made.fetcher.pid
        if (
            len(killed) < 3
            and done_bytes > (len(killed) + 1) * len(DATA) // 5
            and pid is not None
            and pid not in killed
        ):
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    fetch(made, image(server), memory, tell=tell)
    assert len(killed) == 3
    assert os.pread(memory.fd, len(DATA), 0) == DATA
    assert made.fetcher.counts()["transferred_bytes"] <= 1.5 * len(DATA)


def test_a_daemon_that_ends_stops_what_is_fetched(
    sources: Callable[..., Sources], server: FileServer, memory: Draft
) -> None:
    served = server.serve("/m.safetensors", DATA, stall_after=1 << 20)
    stopping = list[int]()
    with pytest.raises(LostPeerError):
        fetch(sources(), image(server), memory, tell=stopping.append, stopped=lambda: bool(stopping))
    served.resume.set()


# fault (sources): `trims.lock` is damaged or too new -> no start: `bad_config` that names it
@pytest.mark.parametrize(
    "written", [b"{", b'{"trims_lock": 2, "addresses": {}}', b'{"trims_lock": 1, "addresses": {"a": {"image": {}}}}']
)
def test_a_daemon_does_not_start_beside_a_lock_file_that_it_cannot_read(
    written: bytes, folder: Path, serve: Callable[..., Daemon]
) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "trims.lock").write_bytes(written)
    with pytest.raises(ConfigError, match=r"trims\.lock.*move it away"):
        serve()
    assert (folder / "state" / "trims.lock").read_bytes() == written
    (folder / "state" / "trims.lock").unlink()
    serve()
