"""Making images: sealed memory of a tier with the right bytes, or an error and nothing left."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, cast

import blake3
import pytest
from damages import DAMAGES
from store_parts import Conversion, resolved

from trims.background.rate_limit import RateLimiter
from trims.core.errors import ImageError, InternalError
from trims.core.place import CPU, DISK
from trims.core.replica import ReplicaId
from trims.memory.shm import PosixShm
from trims.store.fill.copying import RealHostBytes
from trims.store.fill.image_maker import BrokenSourceError, ImageMaker
from trims.store.fill.plans import Plans
from trims.testing.tiers import an_image, put
from trims.tiers.cpu import CpuTier
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.tiers.base import Extent

KEY = "a" * 64
AT_CPU, AT_DISK = ReplicaId(KEY, CPU, 1), ReplicaId(KEY, DISK, 2)
DATA = an_image(10_000)


class Bench:
    """Two tiers of files, and a conversion that is planned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tiers: Any = {
            CPU: CpuTier(PosixShm("trims-making", folder), 1 << 20),
            DISK: DiskTier(folder / "images", 1 << 20),
        }
        self.conversion, self.host, self.awaited = Conversion(len(DATA), DATA), RealHostBytes(), True
        plans = Plans(lambda _: cast("Any", self.conversion), 1)
        plan, _ = plans.begin(AT_CPU, resolved(), gives_way=False)
        plans.measure(AT_CPU, plan)
        self.maker = ImageMaker(
            self.tiers, plans, self.host, RateLimiter(),
            is_awaited=lambda _: self.awaited, stopping=threading.Event(),
        )  # fmt: skip
        self.made: list[Extent] = []

    def make(self, source: ReplicaId | None = None, lent: Extent | None = None) -> Extent:
        self.made.append(self.maker.make(AT_CPU, len(DATA), source, lent))
        return self.made[-1]

    def segments(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.startswith("trims-making")]


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    made = Bench(folder)
    yield made
    for extent in made.made:
        made.tiers[extent.place].free(extent)
    made.host.stop()


def test_a_conversion_is_written_checked_and_sealed(bench: Bench) -> None:
    made = bench.make()
    assert os.pread(made.fd, len(DATA) + 1, 0) == DATA
    assert (made.digest, made.identity is not None) == (blake3.blake3(DATA).hexdigest(), True)
    progress = bench.maker.progress(KEY, CPU)
    assert progress is not None
    assert progress.total_bytes == len(DATA)
    bench.maker.forget(AT_CPU)
    bench.maker.forget(AT_CPU)
    assert bench.maker.progress(KEY, CPU) is None


def test_a_conversion_that_is_no_image_leaves_nothing(bench: Bench) -> None:
    bench.conversion.data = b"\7" * len(DATA)
    with pytest.raises(ImageError):
        bench.make()
    assert bench.segments() == []


def test_a_copy_has_the_bytes_of_its_source(bench: Bench) -> None:
    bench.made.append(put(bench.tiers[DISK], DATA, key=KEY))
    assert os.pread(bench.make(AT_DISK, bench.made[0]).fd, len(DATA), 0) == DATA


def test_a_source_with_wrong_bytes_is_told_from_an_image_that_is_wrong(bench: Bench) -> None:
    bench.made.append(lent := put(bench.tiers[DISK], DATA, key=KEY))
    lent.fresh = False
    DAMAGES["a bit flipped"](lent)
    with pytest.raises(BrokenSourceError) as caught:
        bench.make(AT_DISK, lent)
    assert isinstance(caught.value.__cause__, ImageError)
    assert bench.segments() == []


def test_a_source_without_memory_is_a_fault_of_ours(bench: Bench) -> None:
    with pytest.raises(InternalError, match="is borrowed but has no memory"):
        bench.make(AT_DISK)
    assert bench.segments() == []


def test_an_image_that_no_request_waits_for_is_put_together_by_a_copier(bench: Bench) -> None:
    bench.conversion.is_carriable, bench.awaited = True, False
    made = bench.make()
    assert (bench.conversion.written, made.digest) == ([], blake3.blake3(DATA).hexdigest())
