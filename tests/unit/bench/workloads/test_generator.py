"""The generator's process against real servers that stall, refuse, break off, or do not answer."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import threading
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from load_server import load_server
from loads import closed_order, open_order, request
from trims_bench.workloads.generator import ClosedArrivals, Generator, OpenArrivals, take_precedence
from trims_bench.workloads.load import DONE, drive
from trims_bench.workloads.order import Order, Server
from trims_bench.workloads.records import COLD, WARM, is_answered, kind_of

EVERY_S = 0.005


def kinds(order: Order) -> dict[str, int]:
    """Outcomes of all requests."""
    driven = drive(order)
    assert driven.ended == DONE
    found = [kind_of(int(each)) for each in driven.records["status"]]
    assert len(found) == len(order.times_ns) or order.concurrency
    return {kind: found.count(kind) for kind in set(found)}


# fault (loads): the server stalls -> requests are sent on time; the wait is in their latency
def test_requests_of_a_stall_are_sent_in_it_and_their_latency_has_the_wait() -> None:
    begin, end, count = 50, 150, 200
    with load_server("--hold-from", str(begin), "--hold-until", str(end)) as port:
        records = drive(open_order(port, np.arange(count) * EVERY_S)).records
    assert len(records) == count
    assert is_answered(records).all(), "requests go on although none is answered: the one that ends the stall comes"
    assert (records["intended"] == np.arange(count) * round(EVERY_S * 1e9)).all()
    over = np.sort(records["sent"])[end]  # not before that the stall ended
    assert (records["done"] < over).sum() <= begin, "the wait is in each latency"


def test_a_closed_loop_hides_a_stall_in_few_requests() -> None:
    concurrency = 4
    with load_server("--hold-from", "20", "--hold-until", "1000000", "--hold-s", "0.3") as port:
        records = drive(closed_order(port, concurrency, most_requests=100)).records
    assert is_answered(records).all()
    slowest = records[np.argmax(records["done"] - records["intended"])]
    middle = (slowest["done"] + slowest["intended"]) / 2
    on_their_way = (records["intended"] <= middle) & (records["done"] >= middle)
    assert 1 <= on_their_way.sum() <= concurrency, "only those that were on their way have waited"


def test_a_closed_loop_has_as_many_requests_as_were_asked_for_and_no_more_at_once() -> None:
    with load_server("--cold", "3") as port:
        driven = drive(closed_order(port, 3, most_requests=100))
    records = driven.records
    assert driven.connections == 3
    assert list(records["number"]) == list(range(100))
    assert list(np.bincount(records["cold"])) == [97, 3], (WARM, COLD)
    begins, ends = np.sort(records["sent"]), np.sort(records["done"])
    on_their_way = [int((begins <= at).sum() - (ends < at).sum()) for at in begins]
    assert max(on_their_way) <= 3


# fault (loads): 503 or 429 -> counted, not sent again
@pytest.mark.parametrize(("status", "count"), [("503", 20), ("429", 20), ("404", 5)])
def test_an_error_is_counted_by_its_status_and_never_sent_again(status: str, count: int) -> None:
    with load_server("--status", status) as port:
        assert kinds(open_order(port, np.arange(count) * 0.002)) == {status: count}


# fault (loads): it refuses, ends, breaks off or speaks no HTTP -> `refused`, `closed`, `no_http`, counted
def test_a_server_that_refuses_connections_is_counted() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert kinds(open_order(port, np.arange(10) * 0.002, connections_ahead=3)) == {"refused": 10}
        assert kinds(closed_order(port, 2, most_requests=6)) == {"refused": 6}


def test_a_server_that_ends_in_the_middle_is_counted_and_the_load_goes_on() -> None:
    with load_server("--refuse-after", "10") as port:
        found = kinds(open_order(port, np.arange(40) * 0.02))
    assert found.pop("200") == 10
    assert found.keys() <= {"closed", "refused"}
    assert sum(found.values()) == 30


# fault (loads): it refuses, ends, breaks off or speaks no HTTP
def test_answers_that_break_off_are_counted() -> None:
    with load_server("--cut") as port:
        assert kinds(open_order(port, np.arange(10) * 0.002)) == {"closed": 10}


# fault (loads): an answer after the deadline -> `deadline`; the load ends
def test_an_answer_after_the_deadline_does_not_count() -> None:
    with load_server("--delay-s", "30") as port:
        order = open_order(port, [0.0, 0.01, 0.02], deadline_ns=200_000_000)
        records = drive(order).records
    assert [kind_of(each) for each in records["status"]] == ["deadline"] * 3
    assert (records["sent"] >= 0).all()


# fault (loads): more requests than connections -> late or `unsent`, counted
def test_requests_without_a_free_connection_are_late_or_never_sent() -> None:
    with load_server("--delay-s", "0.1") as port:
        driven = drive(open_order(port, [0.0] * 5, most_connections=2))
        assert driven.connections == 2
        late = driven.records["sent"] - driven.records["intended"] > 50_000_000
        assert late.sum() == 3, "those that found no connection"
    with load_server("--delay-s", "30") as port:
        found = kinds(open_order(port, [0.0] * 5, most_connections=2, deadline_ns=200_000_000))
    assert found == {"deadline": 2, "unsent": 3}


def test_what_is_no_http_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        assert kinds(open_order(port, [0.0], connections_ahead=0)) == {"no_http": 1}
        thread.join()


def test_each_request_is_for_its_model() -> None:
    models = array("H", [1, 0, 1])
    with load_server() as port:
        order = Order(
            Server("127.0.0.1", port), [request("a"), request("b")], models, array("q", [0, 1_000_000, 2_000_000])
        )
        records = drive(order).records
    assert list(records["model"]) == list(models)


def test_a_server_over_tls_is_asked_if_its_certificate_is_trusted(folder: Path) -> None:
    pem = str(folder / "pem")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", pem, "-out", f"{pem}.crt"], check=True, capture_output=True)
    with open(pem, "a") as file:
        file.write(Path(f"{pem}.crt").read_text())
    with load_server("--pem", pem) as port:
        for trusted, outcome in ((f"{pem}.crt", "200"), (None, "no_connection")):
            server = Server("127.0.0.1", port, True, "localhost", trusted)
            for ahead in (0, 3):
                order = replace(open_order(port, np.arange(6) * 0.002, connections_ahead=ahead), server=server)
                assert kinds(order) == {outcome: 6}


def test_open_arrivals_come_at_their_times() -> None:
    arrivals = OpenArrivals(open_order(1, [0.0, 0.5]), 1000)
    assert (arrivals.next_ns, arrivals.over) == (1000, False)
    assert arrivals.take().intended == 1000
    arrivals.done(5000, failed=True)
    assert arrivals.next_ns == 500_001_000
    assert arrivals.take().number == 1
    assert (arrivals.next_ns, arrivals.over) == (None, True)


def test_closed_arrivals_follow_their_answers_until_the_end() -> None:
    arrivals = ClosedArrivals(closed_order(1, 2, most_ns=100), 1000)
    assert [arrivals.take().intended for _ in range(2)] == [1000, 1000]
    assert (arrivals.next_ns, arrivals.over) == (None, False)
    arrivals.done(1050, failed=False)
    assert arrivals.take().intended == 1050
    arrivals.done(1200, failed=False)
    assert (arrivals.next_ns, arrivals.over) == (None, True), "the time is over"


def test_a_process_may_have_fewer_connections_than_asked_for() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with here, there:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        try:
            generator = Generator(open_order(1, [0.0], most_connections=1 << 30), there)
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
            generator.close()
            assert b"scheduling" in here.recv(1000)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("error", "policy"), [(None, "fifo"), (PermissionError(), "other")])
def test_a_generator_that_may_not_be_woken_first_says_so(
    error: PermissionError | None, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schedule(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    assert take_precedence() == policy
