"""Requests to the store: how an answer is waited for, and what a session that ended gets."""

from __future__ import annotations

import threading

import pytest

from trims.core.errors import ArtifactError, CapacityError, NotInPlaceError, QuotaError, TooLargeError, TrimsError
from trims.core.lease import Waiter
from trims.core.place import CPU
from trims.store.pending_requests import Loaded, Pending, PendingRequest, log_failure, session_ended

LOADED = Loaded("a" * 64, CPU, 40)


def test_an_answer_that_came_is_returned_however_often_it_is_asked_for() -> None:
    pending = Pending()
    assert not pending.done(0)
    pending.set(LOADED)
    assert pending.done(0)
    assert [pending.result(0), pending.result()] == [LOADED, LOADED]


def test_an_error_is_raised_where_the_answer_is_waited_for() -> None:
    pending, error = Pending(), ArtifactError("m.npz is truncated; copy it again")
    pending.set(error)
    with pytest.raises(ArtifactError) as caught:
        pending.result(0)
    assert caught.value is error


def test_waiting_for_an_answer_that_does_not_come_ends_with_the_time() -> None:
    with pytest.raises(TimeoutError):
        Pending().result(0)


def test_an_answer_that_another_thread_gives_wakes_the_waiting_one() -> None:
    pending = Pending()
    answering = threading.Thread(target=pending.set, args=(LOADED,))
    answering.start()
    assert pending.result(60) == LOADED
    answering.join()


def test_a_request_of_a_session_that_ended_is_named_in_its_refusal() -> None:
    ask = PendingRequest(Waiter(1, 7, wants_lease=True, deadline_at_s=None), "bert", None, Pending().set)
    assert "'bert'" in str(session_ended(ask))
    assert session_ended(ask).retryable


def test_a_failure_that_no_client_waits_for_is_logged_and_a_success_is_not(caplog: pytest.LogCaptureFixture) -> None:
    tell = log_failure("bert is not kept on disk")
    tell(LOADED)
    assert caplog.records == []
    tell(CapacityError("the disk is full"))
    assert [record.getMessage() for record in caplog.records] == ["bert is not kept on disk: the disk is full"]


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (CapacityError("cpu is full"), "bert.onnx: cpu is full"),
        (TooLargeError("it is larger than cpu"), "bert.onnx: it is larger than cpu"),
        (NotInPlaceError("it is compressed"), "bert.onnx cannot be served at file: it is compressed; open it"),
        (QuotaError("ann holds 2 leases"), "ann holds 2 leases"),
        (ArtifactError("bert.onnx is truncated"), "bert.onnx is truncated"),
    ],
    ids=lambda each: each.code if isinstance(each, TrimsError) else "",
)
def test_a_refusal_of_the_books_names_the_file_that_was_asked_for(refusal: TrimsError, told: str) -> None:
    ask = PendingRequest(Waiter(1, 7, wants_lease=True, deadline_at_s=None), "file:bert.onnx", None, Pending().set)
    assert str(ask.in_words(refusal)).startswith(told)
    assert type(ask.in_words(refusal)) is type(refusal)


def test_a_refusal_of_what_the_store_asks_for_itself_tells_no_key() -> None:
    ask = PendingRequest(
        Waiter(1, None, wants_lease=False, deadline_at_s=None, internal=True), "key:014f", CPU, Pending().set
    )
    assert str(ask.in_words(CapacityError("the disk is full"))) == "the disk is full"
