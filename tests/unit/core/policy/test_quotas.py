"""Quotas of tenants: what each may lease and bring to memory, and that one tenant's greed is not another's loss."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.support.books import Bench, error_of, kinds, only
from trims.core.errors import QuotaError
from trims.core.place import CPU, DISK, FILE, GPU, Place
from trims.core.policy.eviction import LeastRecentlyUsed
from trims.core.policy.quotas import Account, Quota
from trims.core.replica import State
from trims.core.residency.events import (
    Abandon,
    Closed,
    Fill,
    Filled,
    Free,
    Freed,
    Grant,
    Measure,
    Measured,
    Refuse,
    SessionEnded,
)
from trims.core.residency.residency import Residency


def bench(**quotas: Quota) -> Bench:
    return Bench(quotas=quotas)


def loaded(books: Bench, key: str, nbytes: int, **more: Any) -> list[Any]:
    """Open a model that lies nowhere, and have it brought to shared memory."""
    books.ask(key, **more)
    out = books.measured(key, nbytes)
    return books.filled(key) if Fill in kinds(out) else out


def account(books: Bench, name: str = "blue") -> Account:
    return books.residency.tenancy.accounts[name]


def test_a_tenant_with_as_many_leases_as_it_may_is_refused_and_another_is_not() -> None:
    books = bench(blue=Quota(leases=1), red=Quota(leases=1))
    books.resident("a", 10)
    (first,) = books.ask("a", tenant="blue")
    error = error_of(books.ask("a", session=2, tenant="blue"))
    assert isinstance(error, QuotaError)
    assert "tenant 'blue' has 1 leases, as many as it may" in str(error)
    assert kinds(books.ask("a", session=3, tenant="red")) == [Grant]
    assert isinstance(first, Grant)
    books.feed(Closed, lease=first.lease.number, session=1)
    assert kinds(books.ask("a", session=2, tenant="blue")) == [Grant]


def test_a_tenant_that_may_have_no_lease_has_nothing_loaded_for_it() -> None:
    books = bench(blue=Quota(leases=0))
    assert isinstance(error_of(books.ask("a", tenant="blue")), QuotaError)
    assert books.state("a") is State.ABSENT


def test_the_operator_has_no_limits_and_pays_for_nothing() -> None:
    books = bench(blue=Quota(leases=0, resident_bytes=0))
    assert Grant in kinds(loaded(books, "a", 90))
    assert (account(books).leases, account(books).resident_bytes) == (0, 0)


def test_leased_bytes_count_once_for_each_model_however_many_leases() -> None:
    books = bench(blue=Quota(leased_bytes=60))
    for key in "ab":
        books.resident(key, 40)
    assert kinds(books.ask("a", tenant="blue") + books.ask("a", session=2, tenant="blue")) == [Grant, Grant]
    assert account(books).leased_bytes == 40
    error = error_of(books.ask("b", tenant="blue"))
    assert "leases 40 B in memory, and 40 B more would exceed its 60 B" in str(error)
    books.feed(SessionEnded, session=1)
    assert account(books).leased_bytes == 40  # the second session reads on
    books.feed(SessionEnded, session=2)
    assert kinds(books.ask("b", tenant="blue")) == [Grant]


def test_beyond_its_leased_bytes_a_tenant_is_served_on_disk_if_the_image_lies_there() -> None:
    books = bench(blue=Quota(leased_bytes=10))
    books.resident("a", 40, CPU, DISK)
    (grant,) = books.ask("a", tenant="blue", anywhere=True, modest=True)
    assert isinstance(grant, Grant)
    assert (grant.lease.place, account(books).leased_bytes) == (DISK, 0)


def test_beyond_its_leased_bytes_a_tenant_is_served_from_the_artifacts_own_files() -> None:
    books = bench(blue=Quota(leased_bytes=10))
    places = {CPU: 100, DISK: 1000, FILE: 1000}
    policies = {place: LeastRecentlyUsed() for place in places}
    books.residency = Residency(places, policies, quotas={"blue": Quota(leased_bytes=10)})
    books.resident("a", 40)
    out = books.ask("a", tenant="blue", anywhere=True, in_place="own files")
    assert [(each.key, each.place) for each in only(Measure, out) if isinstance(each, Measure)] == [("own files", FILE)]


def test_the_lease_quota_holds_for_those_that_waited_for_the_same_load() -> None:
    books = bench(blue=Quota(leases=1))
    books.ask("a", tenant="blue")
    books.ask("a", session=2, tenant="blue")
    books.measured("a", 10)
    out = books.filled("a")
    assert sorted(kinds(out), key=str) == sorted([Grant, Refuse], key=str)
    assert isinstance(error_of(out), QuotaError)


def test_what_a_tenant_brings_to_memory_pushes_out_its_own_and_no_other() -> None:
    books = bench(blue=Quota(resident_bytes=50))
    loaded(books, "others", 30)
    loaded(books, "a", 20, tenant="blue")
    loaded(books, "b", 20, tenant="blue")
    books.feed(SessionEnded, session=1)
    books.ask("c", tenant="blue")
    out = books.measured("c", 20)
    assert [each.key for each in only(Free, out) if isinstance(each, Free)] == ["a"]
    assert Fill in kinds(out)
    assert books.state("others") is State.SEALED
    books.filled("c")
    assert account(books).resident_bytes == 40


def test_a_tenant_whose_models_are_all_read_is_refused_more_memory() -> None:
    books = bench(blue=Quota(resident_bytes=50))
    loaded(books, "a", 40, tenant="blue")
    error = error_of(loaded(books, "b", 20, session=2, tenant="blue"))
    assert isinstance(error, QuotaError)
    assert "tenant 'blue' has 40 B in memory that cannot leave now" in str(error)
    assert books.state("b") is State.ABSENT
    assert books.state("a") is State.SEALED


def test_a_model_larger_than_the_whole_quota_evicts_nothing() -> None:
    books = bench(blue=Quota(resident_bytes=50))
    loaded(books, "a", 40, tenant="blue")
    books.feed(SessionEnded, session=1)
    assert isinstance(error_of(loaded(books, "b", 60, session=2, tenant="blue")), QuotaError)
    assert books.state("a") is State.SEALED


def test_a_tenant_that_waits_for_anothers_load_can_pay_for_it() -> None:
    books = bench(blue=Quota(resident_bytes=10), red=Quota(resident_bytes=50))
    books.ask("a", tenant="blue")
    books.ask("a", session=2, tenant="red")
    books.measured("a", 40)
    assert [type(each) for each in books.filled("a")].count(Grant) == 2
    assert (account(books).resident_bytes, account(books, "red").resident_bytes) == (0, 40)


def test_a_request_without_a_tenant_takes_the_bill() -> None:
    books = bench(blue=Quota(resident_bytes=10))
    books.ask("a", tenant="blue")
    books.ask("a", session=2)
    books.measured("a", 40)
    assert [type(each) for each in books.filled("a")].count(Grant) == 2
    assert account(books).resident_bytes == 0


def test_beyond_its_resident_bytes_a_tenant_reads_from_disk() -> None:
    books = bench(blue=Quota(resident_bytes=10))
    books.resident("a", 40, DISK)
    (grant,) = books.ask("a", tenant="blue", anywhere=True, modest=True)
    assert isinstance(grant, Grant)
    assert grant.lease.place is DISK
    for _ in range(20):  # its use would have earned it shared memory
        assert kinds(books.ask("a", tenant="blue", anywhere=True, modest=True)) == [Grant]
    assert books.state("a") is State.ABSENT
    out = books.ask("a", session=2, anywhere=True, modest=True)
    assert Fill in kinds(out), "the quota of one tenant holds back no other"


def test_nothing_is_evicted_for_a_request_that_its_quota_refuses_in_the_end() -> None:
    books = bench(blue=Quota(leased_bytes=10))
    loaded(books, "others", 90)
    books.feed(SessionEnded, session=1)
    error = error_of(loaded(books, "large", 40, session=2, tenant="blue"))
    assert "the model takes 40 B in memory, and tenant 'blue' may lease 10 B in all" in str(error)
    assert (books.state("others"), books.state("large")) == (State.SEALED, State.ABSENT)


def test_others_that_wait_for_the_same_model_are_served_when_a_quota_refuses_one() -> None:
    books = bench(blue=Quota(leased_bytes=10), red=Quota())
    books.ask("a", tenant="blue")
    books.ask("a", session=2, tenant="red")
    out = books.measured("a", 40)
    assert isinstance(error_of(out), QuotaError)
    assert kinds(books.filled("a")) == [Grant]
    assert account(books, "red").resident_bytes == 40


def test_a_tenant_that_reads_on_pays_once_the_payer_has_stopped() -> None:
    books = bench(blue=Quota(resident_bytes=50), red=Quota(resident_bytes=50))
    (grant,) = [each for each in loaded(books, "a", 40, tenant="blue") if isinstance(each, Grant)]
    assert kinds(books.ask("a", session=2, tenant="red")) == [Grant]
    books.feed(Closed, lease=grant.lease.number, session=1)
    assert (account(books).resident_bytes, account(books, "red").resident_bytes) == (0, 40)
    assert Grant in kinds(loaded(books, "b", 40, tenant="blue"))


def test_a_reader_without_room_for_it_does_not_get_the_bill() -> None:
    books = bench(blue=Quota(resident_bytes=50), red=Quota(resident_bytes=10))
    (grant,) = [each for each in loaded(books, "a", 40, tenant="blue") if isinstance(each, Grant)]
    books.ask("a", session=2, tenant="red")
    books.feed(Closed, lease=grant.lease.number, session=1)
    assert (account(books).resident_bytes, account(books, "red").resident_bytes) == (40, 0)


def test_the_operator_that_reads_on_takes_the_bill() -> None:
    books = bench(blue=Quota(resident_bytes=50))
    (grant,) = [each for each in loaded(books, "a", 40, tenant="blue") if isinstance(each, Grant)]
    books.ask("a", session=2)
    books.feed(Closed, lease=grant.lease.number, session=1)
    assert account(books).resident_bytes == 0


def test_a_device_counts_as_memory_and_the_host_copy_on_the_way_as_well() -> None:
    books = bench(blue=Quota(resident_bytes=70))
    books.resident("a", 40, DISK)
    out = books.ask("a", tenant="blue", place=GPU)
    assert Fill in kinds(out)
    assert Grant in kinds(books.filled("a", GPU))
    assert account(books).resident_bytes == 40
    books.resident("b", 40, DISK)
    assert isinstance(error_of(books.ask("b", tenant="blue", place=GPU)), QuotaError)


@pytest.mark.parametrize("seed", range(20))
def test_no_tenant_exceeds_its_quotas_or_keeps_another_waiting(seed: int) -> None:
    Walk(seed).run(600)


class Walk:
    """Three tenants open and close at random; one is greedy. The ledger here is made of instructions alone."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.quotas = {
            "greedy": Quota(leases=6, leased_bytes=45, resident_bytes=50),
            "modest": Quota(leases=4, leased_bytes=30, resident_bytes=40),
            "third": Quota(),
        }
        self.books = Bench(cpu_bytes=100, quotas=self.quotas)
        self.sizes = {f"m{number}": self.dice.randint(1, 30) for number in range(12)}
        self.leases: dict[int, tuple[str, int, Any]] = {}
        self.asked: dict[int, str] = {}
        self.answers: Counter[tuple[str, str]] = Counter()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.leases and self.dice.random() < 0.4:
                self._close(self.dice.choice(list(self.leases)))
            else:
                self._open(self.dice.choices(["greedy", "modest", "third"], [8, 1, 1])[0])
            self._check()
        assert self.answers["modest", "granted"] > 5
        assert not self.asked, "each request was answered"

    def _open(self, tenant: str) -> None:
        session = {"greedy": 1, "modest": 2, "third": 3}[tenant]
        self.asked[self.books.ticket + 1] = tenant
        key = self.dice.choice(list(self.sizes))
        self._follow(self.books.ask(key, session=session, tenant=tenant), session)

    def _close(self, number: int) -> None:
        _, session, _ = self.leases.pop(number)
        self._follow(self.books.feed(Closed, lease=number, session=session), session)

    def _follow(self, out: list[Any], session: int) -> None:
        """Do what the books ask for, at once."""
        for each in out:
            if isinstance(each, Grant):
                tenant = self.asked.pop(each.ticket)
                self.leases[each.lease.number] = (tenant, each.lease.session, (each.lease.key, each.lease.place))
                self.answers[tenant, "granted"] += 1
            elif isinstance(each, Refuse):
                self.answers[self.asked.pop(each.ticket), "refused"] += 1
            elif isinstance(each, Measure):
                self._follow(self._did(Measured, each, nbytes=self.sizes[each.key]), session)
            elif isinstance(each, Fill):
                self._follow(self._did(Filled, each, cost_s=1.0), session)
            elif isinstance(each, Free):
                self._follow(self._did(Freed, each), session)

    def _did(self, kind: Any, each: Any, **more: Any) -> list[Any]:
        facts = {"key": each.key, "place": each.place, "generation": each.generation, **more}
        if kind is Measured:
            facts["measurement"] = each.measurement
        return self.books.feed(kind, **facts)

    def _check(self) -> None:
        for tenant, quota in self.quotas.items():
            mine = [what for holder, _, what in self.leases.values() if holder == tenant]
            leased = sum(self.sizes[key] for key, place in set(mine) if place == Place.parse("cpu"))
            told = account(self.books, tenant)
            assert (told.leases, told.leased_bytes) == (len(mine), leased)
            assert quota.leases is None or len(mine) <= quota.leases
            assert quota.leased_bytes is None or leased <= quota.leased_bytes
            assert quota.resident_bytes is None or told.resident_bytes <= quota.resident_bytes


# -- to the byte -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nbytes", "fits"), [(59, True), (60, True), (61, False)])
def test_a_tenant_may_lease_as_many_bytes_as_its_quota_says_and_not_one_more(nbytes: int, fits: bool) -> None:
    books = bench(blue=Quota(leased_bytes=60))
    books.resident("a", nbytes)
    out = books.ask("a", tenant="blue")
    assert kinds(out) == [Grant if fits else Refuse]
    assert account(books).leased_bytes == (nbytes if fits else 0)
    assert account(books).may_ever_lease(nbytes) is fits


@pytest.mark.parametrize(("nbytes", "fits"), [(19, True), (20, True), (21, False)])
def test_what_a_tenant_leases_already_counts_to_the_byte(nbytes: int, fits: bool) -> None:
    books = bench(blue=Quota(leased_bytes=60))
    books.resident("a", 40)
    books.resident("b", nbytes)
    books.ask("a", tenant="blue")
    assert kinds(books.ask("b", tenant="blue")) == [Grant if fits else Refuse]


@pytest.mark.parametrize(("nbytes", "fits"), [(59, True), (60, True), (61, False)])
def test_an_image_is_loaded_for_a_tenant_up_to_its_leased_bytes(nbytes: int, fits: bool) -> None:
    books = bench(blue=Quota(leased_bytes=60))
    books.ask("a", tenant="blue")
    assert kinds(books.measured("a", nbytes)) == ([Fill] if fits else [Refuse, Abandon])


@pytest.mark.parametrize(("nbytes", "fits"), [(49, True), (50, True), (51, False)])
def test_a_tenant_has_as_many_bytes_in_memory_as_its_quota_and_not_one_more(nbytes: int, fits: bool) -> None:
    books = bench(blue=Quota(resident_bytes=50))
    books.ask("a", tenant="blue")
    assert kinds(books.measured("a", nbytes)) == ([Fill] if fits else [Refuse, Abandon])
    assert account(books).missing_bytes(0) == 0
    assert account(books).resident_bytes == (nbytes if fits else 0)


@pytest.mark.parametrize(("nbytes", "evicted"), [(20, []), (21, ["idle"])])
def test_a_tenant_gives_up_an_idle_image_for_the_first_byte_beyond_its_quota(nbytes: int, evicted: list[str]) -> None:
    books = bench(blue=Quota(resident_bytes=50))
    loaded(books, "idle", 30, tenant="blue", session=2)
    books.feed(SessionEnded, session=2)
    books.ask("a", tenant="blue")
    out = books.measured("a", nbytes)
    assert [each.key for each in only(Free, out) if isinstance(each, Free)] == evicted
    assert Fill in kinds(out)


@pytest.mark.parametrize(("most", "fits"), [(1, [Grant, Refuse]), (2, [Grant, Grant])])
def test_a_tenant_may_have_as_many_leases_as_its_quota_says_and_not_one_more(most: int, fits: list[type[Any]]) -> None:
    books = bench(blue=Quota(leases=most))
    books.resident("a", 10)
    assert kinds(books.ask("a", tenant="blue") + books.ask("a", session=2, tenant="blue")) == fits
