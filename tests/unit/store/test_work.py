"""Pools of daemon threads: what is submitted runs once, however the pool ends."""

from __future__ import annotations

import os
import threading
import time

import pytest

from trims.store.work import BEHIND, PoolsByMount, Slots, ThreadPool, stepped_back

WAIT_S = 120.0


def test_work_runs_in_order_with_one_thread_and_all_of_it() -> None:
    pool, done = ThreadPool("one", 1), []
    for number in range(100):
        assert pool.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert pool.stop(timeout_s=WAIT_S)
    assert done == list(range(100))


def test_no_more_threads_than_asked_for_run_at_once() -> None:
    pool, go_on, running, most, lock = ThreadPool("three", 3), threading.Event(), [0], [0], threading.Lock()

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        assert go_on.wait(WAIT_S)
        with lock:
            running[0] -= 1

    for _ in range(10):
        pool.submit(work)
    until = time.monotonic() + WAIT_S
    while running[0] < 3 and time.monotonic() < until:
        time.sleep(0.001)
    assert most[0] == 3
    go_on.set()
    assert pool.stop(timeout_s=WAIT_S)
    assert most[0] == 3


def test_a_stopped_pool_takes_no_work_and_drops_what_has_not_begun_if_asked() -> None:
    pool, entered, go_on, done = ThreadPool("drop", 1), threading.Event(), threading.Event(), []

    def first() -> None:
        entered.set()
        assert go_on.wait(WAIT_S)

    pool.submit(first)
    assert entered.wait(WAIT_S)
    pool.submit(lambda: done.append("second"))
    assert not pool.stop(drop=True, timeout_s=0.01), "the first is still running"
    assert not pool.submit(lambda: done.append("third"))
    go_on.set()
    assert pool.stop(timeout_s=WAIT_S)
    assert done == []


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_work_that_fails_is_logged_and_the_next_runs(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    pool, done = ThreadPool("fails", 1), []

    def fails() -> None:
        raise kind("a bug in some work")

    pool.submit(fails)
    pool.submit(lambda: done.append("next"))
    assert pool.stop(timeout_s=WAIT_S)
    assert done == ["next"]
    assert "a bug in some work" in caplog.text


def test_many_threads_may_submit_at_once_and_nothing_is_lost() -> None:
    pool, done, lock = ThreadPool("many", 4), [], threading.Lock()

    def add(number: int) -> None:
        with lock:
            done.append(number)

    def submit(begin: int) -> None:
        for number in range(begin, begin + 500):
            pool.submit(lambda: add(number))  # noqa: B023 - called with whatever number it is by then: all are counted

    threads = [threading.Thread(target=submit, args=(begin,)) for begin in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.stop(timeout_s=WAIT_S)
    assert len(done) == 4000


def test_the_threads_of_a_pool_are_as_nice_as_it_says_and_no_others() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    pool, found = ThreadPool("nice", 1, niceness=BEHIND), []
    pool.submit(lambda: found.append(os.getpriority(os.PRIO_PROCESS, 0)))
    assert pool.stop(timeout_s=WAIT_S)
    assert found == [max(BEHIND, before)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_work_that_steps_back_hands_its_result_and_error_to_the_waiting_thread() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert stepped_back(lambda: os.getpriority(os.PRIO_PROCESS, 0)) == max(BEHIND, before)
    with pytest.raises(ZeroDivisionError):
        stepped_back(lambda: 1 // 0)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_tenants_take_turns_in_a_pool() -> None:
    pool, entered, go_on, done = ThreadPool("turns", 1), threading.Event(), threading.Event(), []

    def first() -> None:
        entered.set()
        assert go_on.wait(WAIT_S)

    pool.submit(first)
    assert entered.wait(WAIT_S)
    for number in range(3):
        pool.submit(lambda number=number: done.append(f"greedy {number}"), "greedy")  # type: ignore[misc]
    pool.submit(lambda: done.append("modest"), "modest")
    go_on.set()
    assert pool.stop(timeout_s=WAIT_S)
    assert done == ["greedy 0", "modest", "greedy 1", "greedy 2"]


def test_each_mount_point_has_a_pool_of_its_own_and_one() -> None:
    made: list[tuple[str, int]] = []

    def pool(name: str, threads: int, *, niceness: int = 0) -> ThreadPool:
        made.append((name, threads))
        return ThreadPool(name, threads, niceness=niceness)

    pools, entered, go_on, done = PoolsByMount(pool, "read", 1), threading.Event(), threading.Event(), []

    def hang() -> None:
        entered.set()
        assert go_on.wait(WAIT_S)

    pools.of("/dead").submit(hang)
    assert entered.wait(WAIT_S)
    pools.of("/").submit(lambda: done.append("well"))
    assert pools.of("/") is pools.of("/")
    assert pools.of("/").stop(timeout_s=WAIT_S)
    assert (made, done) == ([("read", 1)] * 2, ["well"])
    assert not pools.stop(timeout_s=0.01), "one of them has not ended"
    go_on.set()
    assert pools.stop(timeout_s=WAIT_S)


def test_slots_are_taken_by_name_and_given_back_whatever_happens() -> None:
    slots = Slots(1)
    with slots.one_of("/") as first, slots.one_of("/") as second, slots.one_of("/mnt") as other:
        assert (first, second, other) == (True, False, True)
    with pytest.raises(ZeroDivisionError), slots.one_of("/"):
        _ = 1 // 0
    with slots.one_of("/") as again:
        assert again
