"""Copies between places: which way the bytes take, and when their source is hashed on the way."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import blake3
import pytest
from damages import DAMAGES

from trims.background.rate_limit import Behind, RateLimiter
from trims.core.errors import ImageError, LostPeerError
from trims.store.fill.copying import Copier, RealHostBytes
from trims.testing.tiers import an_image, put
from trims.testing.wrapped_tiers import WrappedTier
from trims.tiers.base import Draft, Extent, identity_of
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.keeper.messages import Verdict
    from trims.tiers.base import Tier


DATA = an_image(20_000)


class Device(WrappedTier):
    """A device whose memory are files of a tier round which it is; notes which way each copy went."""

    uuid, peers, reserve_bytes, unit_bytes = "GPU-1", frozenset[str](), 0, 1
    ends_with_session = False

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.ways: list[str] = []

    def copy_in(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        self._copy("in", source.fd, draft.fd, draft.nbytes, on_progress)

    def copy_across(self, draft: Draft, source: Extent, on_progress: Callable[[int], None] | None = None) -> None:
        self._copy("across", source.fd, draft.fd, draft.nbytes, on_progress)

    def copy_out(self, extent: Extent, draft: Draft, on_progress: Callable[[int], None] | None = None) -> None:
        self._copy("out", extent.fd, draft.fd, draft.nbytes, on_progress)

    def examine(self, extent: Extent) -> Verdict:
        raise AssertionError("what lies on a device cannot be read back cheaply")

    def _copy(self, way: str, source: int, to: int, nbytes: int, on_progress: Callable[[int], None] | None) -> None:
        self.ways.append(way)
        os.pwrite(to, os.pread(source, nbytes, 0), 0)
        if on_progress is not None:
            on_progress(nbytes)


class Bench:
    """Two tiers of files, the first of them a device if the test says so, and a source in one of them."""

    def __init__(self, folder: Path) -> None:
        self.host, self.other = DiskTier(folder / "host", 1 << 20), DiskTier(folder / "other", 1 << 20)
        self.device = Device(DiskTier(folder / "device", 1 << 20))
        self.stopping = threading.Event()
        self.bytes = RealHostBytes()
        self.copier = Copier(self.bytes, self.stopping)
        self.done: list[int] = []

    def source(self, tier: Tier, *, fresh: bool = True) -> Extent:
        extent = put(tier, DATA)
        extent.fresh, extent.identity = fresh, identity_of(extent.fd)
        return extent

    def copy(self, target: Tier, origin: Tier, source: Extent) -> str:
        """Return the digest that the copier reports, and keep the copied bytes, whatever it reports."""
        draft = target.create(source.key, 2, source.nbytes, allocate=False)
        try:
            return self.copier.copy(target, draft, origin, source, self.done.append)
        finally:
            self.copied = os.pread(draft.fd, source.nbytes + 1, 0)
            target.abort(draft)


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    made = Bench(folder)
    yield made
    made.bytes.stop()
    for tier in (made.host, made.other, made.device):
        tier.close()


@pytest.mark.parametrize("fresh", [True, False])
def test_a_copy_on_the_host_has_the_bytes_and_the_digest_of_its_source(bench: Bench, fresh: bool) -> None:
    source = bench.source(bench.host, fresh=fresh)
    assert bench.copy(bench.other, bench.host, source) == source.digest == blake3.blake3(DATA).hexdigest()
    assert bench.copied == DATA
    assert bench.done[-1] == len(DATA)
    assert source.fresh


@pytest.mark.parametrize(("origin", "target", "way"), [("host", "device", "in"), ("device", "host", "out")])
def test_a_copy_to_or_from_a_device_is_the_device_s_own_affair(
    bench: Bench, origin: str, target: str, way: str
) -> None:
    source = bench.source(getattr(bench, origin))
    assert bench.copy(getattr(bench, target), getattr(bench, origin), source) == source.digest
    assert (bench.device.ways, bench.copied) == ([way], DATA)


def test_a_copy_between_two_devices_is_made_by_the_device_that_gets_it(bench: Bench) -> None:
    other = Device(bench.other)
    bench.copy(bench.device, other, bench.source(other))
    assert (bench.device.ways, other.ways) == (["across"], [])


@pytest.mark.parametrize("way", ["host to host", "into a device", "out of a device"])
@pytest.mark.parametrize("seen_right_before", [False, True])
def test_a_source_whose_bytes_were_changed_is_found_by_the_copy(
    bench: Bench, way: str, seen_right_before: bool
) -> None:
    target: Tier = bench.device if way == "into a device" else bench.other
    origin: Tier = bench.device if way == "out of a device" else bench.host
    source = bench.source(origin, fresh=seen_right_before)
    DAMAGES["a bit flipped"](source)
    with pytest.raises(ImageError, match=r"the replica at disk \(.*\) hashes to .* was sealed: changed or truncated"):
        bench.copy(target, origin, source)
    assert source.identity != identity_of(source.fd), "it is not taken for what was sealed"


def test_a_source_that_was_seen_right_in_this_life_is_not_hashed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashed(*_: object) -> str:
        raise AssertionError("it was hashed")

    monkeypatch.setattr(bench.bytes, "digest", hashed)
    source = bench.source(bench.host)
    assert bench.copy(bench.other, bench.host, source) == source.digest
    os.utime(source.label, ns=(1, 1))
    with pytest.raises(AssertionError, match="it was hashed"):
        bench.copy(bench.other, bench.host, source)


def test_a_touched_source_with_the_right_bytes_is_known_again_after_one_hash(bench: Bench) -> None:
    source = bench.source(bench.host)
    os.utime(source.label, ns=(1, 1))
    assert bench.copy(bench.other, bench.host, source) == source.digest
    assert (source.fresh, source.identity) == (True, identity_of(source.fd))


def test_a_copy_of_a_device_stops_at_its_next_report_when_the_daemon_ends(bench: Bench) -> None:
    source = bench.source(bench.host)
    bench.stopping.set()
    with pytest.raises(LostPeerError, match="the copy was stopped: the daemon is shutting down"):
        bench.copy(bench.device, bench.host, source)
    assert bench.done == []


def test_a_source_that_is_too_short_is_an_image_error(bench: Bench) -> None:
    source = bench.source(bench.host)
    DAMAGES["cut short"](source)
    with pytest.raises(ImageError):
        bench.copy(bench.other, bench.host, source)


def test_a_copy_that_no_request_waits_for_keeps_its_pace_and_own_process(bench: Bench) -> None:
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = RateLimiter(len(DATA) * 10.0, lambda: now[0], sleep)
    source = bench.source(bench.host, fresh=False)
    bench.bytes._readers.shutdown()  # a copy that takes them fails
    draft = bench.other.create(source.key, 2, source.nbytes, allocate=False)
    behind = Behind(pace, lambda: False)
    bench.copier.copy(bench.other, draft, bench.host, source, bench.done.append, behind=behind)
    assert os.pread(draft.fd, source.nbytes + 1, 0) == DATA
    bench.other.abort(draft)
    assert sum(slept) == pytest.approx(0.1), "hashed while it is copied"
