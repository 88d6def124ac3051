"""Requests judged by size alone: at each place, for each tenant, before anything is read."""

from __future__ import annotations

import pytest
from books import Bench

from trims.core.errors import NotSupportedError, QuotaError, TooLargeError, TrimsError
from trims.core.lease import Waiter
from trims.core.place import CPU, DISK, FILE, GPU, Place, TierKind
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.policy.quotas import Quota
from trims.core.residency.residency import Residency


def waiter(tenant: str | None = None, *, lease: bool = True) -> Waiter:
    return Waiter(1, 1, lease, None, tenant=tenant)


def kind(bench: Bench, nbytes: int, place: Place | None, asks: Waiter | None = None) -> type[TrimsError] | None:
    error = bench.residency.never_fits(nbytes, place, asks or waiter())
    return None if error is None else type(error)


@pytest.mark.parametrize(
    ("place", "most"), [(CPU, 100), (DISK, 1000), (GPU, 80), (None, 1000)], ids=["cpu", "disk", "gpu", "anywhere"]
)
def test_an_image_never_fits_from_the_first_byte_beyond_a_place(place: Place | None, most: int) -> None:
    bench = Bench(gpu_bytes=80)
    assert kind(bench, most, place) is None
    assert kind(bench, most + 1, place) is TooLargeError


def test_an_image_for_a_device_must_fit_on_the_host_on_its_way() -> None:
    bench = Bench(cpu_bytes=10, disk_bytes=20, gpu_bytes=100)
    assert kind(bench, 20, GPU) is None
    assert kind(bench, 21, GPU) is TooLargeError


def test_a_device_counts_in_its_units() -> None:
    bench, places = Bench(), {CPU: 1000, GPU: 100}
    bench.residency = Residency(places, {place: LeastRecentlyUsed() for place in places}, units={GPU: 64})
    assert kind(bench, 64, GPU) is None
    assert kind(bench, 65, GPU) is TooLargeError


def test_a_place_that_is_not_there_is_told_and_files_have_no_size() -> None:
    bench = Bench()
    assert kind(bench, 1, Place(TierKind.GPU, 7)) is NotSupportedError
    assert kind(bench, 1 << 50, FILE) is None


@pytest.mark.parametrize(("nbytes", "error"), [(60, None), (61, QuotaError)])
def test_a_tenant_never_leases_more_in_memory_than_its_quota(nbytes: int, error: type[TrimsError] | None) -> None:
    bench = Bench(quotas={"blue": Quota(leased_bytes=60)})
    assert kind(bench, nbytes, CPU, waiter("blue")) is error
    assert kind(bench, nbytes, CPU, waiter("blue", lease=False)) is None
    assert kind(bench, nbytes, DISK, waiter("blue")) is None
    assert kind(bench, nbytes, None, waiter("blue")) is None, "it is served on disk"


@pytest.mark.parametrize(("nbytes", "error"), [(60, None), (61, QuotaError)])
def test_a_tenant_never_brings_more_to_memory_than_its_quota(nbytes: int, error: type[TrimsError] | None) -> None:
    bench = Bench(quotas={"blue": Quota(resident_bytes=60)})
    bench.resident("another's", 60)
    assert kind(bench, nbytes, CPU, waiter("blue", lease=False)) is error
    bench.resident("more", 1)
    assert kind(bench, nbytes, CPU, waiter("blue")) is None, "the image may be there already, at another's expense"


def test_what_never_fits_is_what_the_books_refuse_once_the_size_is_known() -> None:
    for place, most in ((CPU, 100), (DISK, 1000)):
        for nbytes in (most, most + 1):
            bench = Bench()
            bench.ask("a", place=place)
            refused = any(type(each).__name__ == "Refuse" for each in bench.measured("a", nbytes, place))
            assert refused is (kind(bench, nbytes, place) is TooLargeError)
