"""Requests for any device: which one serves, and the next one when it cannot."""

from __future__ import annotations

import pytest
from books import OTHER, Devices, error_of, kinds, only

from trims.core.errors import CapacityError, DeviceLostError, NoSpaceError, QuotaError, TooLargeError
from trims.core.lease import Waiter
from trims.core.place import ANY_GPU, CPU, GPU, Place
from trims.core.policy.quotas import Quota
from trims.core.replica import State
from trims.core.residency.events import Closed, Fill, FillFailed, Grant, Instruction, Refuse, Requested
from trims.core.residency.placement import devices


def place_of(out: list[Instruction]) -> Place:
    (grant,) = only(Grant, out)
    assert isinstance(grant, Grant)
    return grant.lease.place


def filled_at(bench: Devices, out: list[Instruction]) -> Place:
    (fill,) = only(Fill, out)
    assert isinstance(fill, Fill)
    return fill.place


def test_the_name_of_any_device_is_not_that_of_the_first() -> None:
    assert Place.wanted("gpu") is ANY_GPU
    assert (str(ANY_GPU), str(GPU)) == ("gpu", "gpu:0")
    assert Place.wanted("gpu:0") is GPU
    assert Place.parse("gpu") is GPU
    assert OTHER.is_in(ANY_GPU)
    assert not CPU.is_in(ANY_GPU)
    assert not OTHER.is_in(GPU)


def test_an_image_that_lies_on_one_device_is_served_there_though_the_other_is_empty() -> None:
    bench = Devices()
    bench.resident("a", 40, OTHER)
    assert place_of(bench.ask("a", place=ANY_GPU)) is OTHER


def test_of_two_devices_that_have_it_the_one_with_fewer_readers_serves() -> None:
    bench = Devices()
    bench.resident("a", 40, GPU, OTHER)
    assert [place_of(bench.ask("a", place=ANY_GPU, session=number)) for number in (1, 2, 3)] == [GPU, OTHER, GPU]


def test_a_second_request_joins_the_fill_that_runs() -> None:
    bench = Devices()
    bench.resident("a", 40)
    bench.resident("b", 20, GPU)
    assert filled_at(bench, bench.ask("a", place=ANY_GPU)) is OTHER
    assert not only(Fill, bench.ask("a", place=ANY_GPU, session=2))
    assert {place_of([each]) for each in only(Grant, bench.filled("a", OTHER))} == {OTHER}


def test_the_device_with_most_room_is_filled_and_of_equals_the_first() -> None:
    bench = Devices()
    for key in ("a", "b"):
        bench.resident(key, 30)
    assert filled_at(bench, bench.ask("a", place=ANY_GPU)) is GPU
    assert filled_at(bench, bench.ask("b", place=ANY_GPU)) is OTHER


def test_room_is_preferred_to_an_eviction_and_then_the_smaller_eviction() -> None:
    bench = Devices()
    bench.resident("idle", 50, GPU)
    bench.resident("more", 80, OTHER)
    bench.resident("a", 40)
    bench.resident("b", 60)
    assert devices(bench.residency._ledger, "a", 0)[0] is GPU, "50 are free there"
    assert devices(bench.residency._ledger, "b", 0) == [GPU, OTHER], "10 are missing here, 40 there"


@pytest.mark.parametrize("error", [NoSpaceError("full", 0), DeviceLostError("lost"), CapacityError("no context")])
def test_a_device_whose_fill_fails_is_passed_over_for_the_other(error: Exception) -> None:
    bench = Devices()
    bench.resident("a", 40)
    bench.ask("a", place=ANY_GPU)
    out = bench.feed(FillFailed, key="a", place=GPU, generation=bench.generation("a", GPU), error=error)
    assert Refuse not in kinds(out)
    assert filled_at(bench, out) is OTHER
    assert place_of(bench.filled("a", OTHER)) is OTHER


def test_the_last_refusal_has_the_numbers_of_all_devices() -> None:
    bench = Devices()
    for key, place in (("a", GPU), ("b", OTHER)):
        bench.resident(key, 80, place)
        bench.ask(key, place=place)
    bench.resident("c", 40)
    error = error_of(bench.ask("c", place=ANY_GPU))
    assert isinstance(error, CapacityError)
    assert "no room at gpu:1: 40 B needed" in str(error)
    assert "No other device can serve it: gpu:0 has 20 B free of 100 B" in str(error)
    assert bench.state("c", GPU) is bench.state("c", OTHER) is State.ABSENT


def test_an_image_larger_than_all_devices_stays_too_large() -> None:
    bench = Devices()
    bench.resident("a", 200)
    assert isinstance(error_of(bench.ask("a", place=ANY_GPU)), TooLargeError)


def test_a_request_that_names_a_device_is_never_served_by_the_other() -> None:
    bench = Devices()
    bench.resident("a", 80, GPU)
    bench.ask("a", place=GPU)
    bench.resident("b", 40)
    assert "no room at gpu:0" in str(error_of(bench.ask("b", place=GPU)))
    assert bench.state("b", OTHER) is State.ABSENT


def test_a_device_that_a_session_could_not_use_serves_it_last() -> None:
    bench = Devices(peers=True)
    bench.resident("a", 40, GPU)
    waiter = Waiter(7, 1, wants_lease=True, deadline_at_s=None, avoids=GPU)
    assert filled_at(bench, bench.feed(Requested, key="a", place=ANY_GPU, waiter=waiter)) is OTHER
    assert devices(bench.residency._ledger, "b", 0, GPU) == [OTHER, GPU]


def test_a_quota_is_no_matter_of_another_device() -> None:
    bench = Devices(quotas={"t": Quota(leased_bytes=30)})
    bench.resident("a", 40, GPU)
    error = error_of(bench.ask("a", place=ANY_GPU, tenant="t"))
    assert isinstance(error, QuotaError)
    assert bench.state("a", OTHER) is State.ABSENT


def test_a_waiter_with_a_deadline_waits_where_least_is_missing() -> None:
    bench = Devices()
    for key, nbytes, place in (("a", 70, GPU), ("b", 90, OTHER)):
        bench.resident(key, nbytes, place)
        bench.ask(key, place=place)
    bench.resident("c", 40)
    assert not bench.ask("c", place=ANY_GPU, deadline_in_s=60)
    (lease,) = [each.number for each in bench.residency.leases.by_number.values() if each.key == "a"]
    out = bench.feed(Closed, lease=lease, session=1)
    assert bench.state("c", GPU) is not State.ABSENT
    assert Refuse not in kinds(out)
