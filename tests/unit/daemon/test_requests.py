"""Requests of clients: what each asks of the store, and what the client is answered."""

from __future__ import annotations

import os
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import (
    BadMessageError,
    BusyError,
    CallerError,
    CapacityError,
    DeviceLostError,
    ModelNotFoundError,
    PermissionDeniedError,
)
from trims.core.place import ANY_GPU, CPU, Place
from trims.daemon.clients import Connection
from trims.daemon.requests import MAX_FILES_WITH_GRANT, MAX_PENDING, Requests, file_name, grant_message
from trims.memory.cuda.drivers import Export
from trims.memory.pages import Pages
from trims.store.pending_requests import Granted, Outcome
from trims.tenants import Tenant
from trims.wire.messages import Attach, Close, Open, Resume, Workspace, parse_request
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from trims.wire.frames import Message

ME = os.geteuid()
OPERATOR = {"tenant": None, "verified": False}
EXPORT = Export("vmm", "GPU-1", 100, fd=5)


class Bench:
    """Requests to a store that answers as the test says; keeps all that was asked of it and all that was sent."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.sent: list[tuple[Any, ...]] = []
        self.answered: list[tuple[int, Outcome]] = []
        self.has, self.outlives = True, False
        self.failure: Exception | None = None
        self.counters: Counter[str] = Counter()
        self.names: dict[str, list[str]] = {}
        leases = SimpleNamespace(
            export_of=self._export_of,
            report_workspace=self._report_workspace,
            has=lambda *_: self.has,
            must_outlive=lambda _: self.outlives,
            take_back=lambda *given: self.asked.append(("take back", *given)),
        )
        store: Any = SimpleNamespace(
            device_leases=leases,
            counters=self.counters,
            read=SimpleNamespace(names_of=lambda key: self.names[key]),
            close=lambda *given: self.asked.append(("close", *given)),
            open=lambda name, _, **more: self.asked.append(("open", name, more)),
            resume=lambda *given, tenant: self.asked.append(("resume", *given[:3], *([tenant] if tenant else []))),
        )
        self.requests = Requests(store, self._send, lambda _, number, outcome: self.answered.append((number, outcome)))
        self.connection = self.client(ME)

    def client(self, uid: int, pid: int = 1) -> Connection:
        sock: Any = None
        return Connection(3, sock, Peer(pid, uid, 0))

    def _send(self, connection: Connection, message: Message, *fds: int) -> None:
        self.sent.append((message, *fds))

    def _export_of(self, session: int, lease: int) -> Export:
        if self.failure is not None:
            raise self.failure
        return EXPORT

    def _report_workspace(self, *given: int) -> int:
        self.asked.append(("workspace", *given))
        return 70

    def error(self) -> dict[str, Any]:
        ((message,),) = self.sent
        error: dict[str, Any] = message["error"]
        return error


@pytest.fixture
def bench() -> Bench:
    return Bench()


def granted(**more: Any) -> Granted:
    return Granted(7, "a" * 64, CPU, 2, 40, "d" * 64, 5, warm=True, **more)


@pytest.mark.parametrize(("number", "sent"), [(9, [({"id": 9, "closed": 4},)]), (None, [])])
def test_a_close_is_confirmed_if_the_client_wants_to_know(bench: Bench, number: int | None, sent: list[object]) -> None:
    bench.requests.handle(bench.connection, Close(lease=4, id=number))
    assert (bench.asked, bench.sent) == ([("close", 3, 4)], sent)


def test_an_open_is_passed_on_with_the_session_and_counts_until_it_is_answered(bench: Bench) -> None:
    bench.requests.handle(bench.connection, an_open(model="bert", place="gpu:1", deadline_s=5.0))
    wanted = {"session": 3, "place": Place.parse("gpu:1"), "deadline_s": 5.0, "avoids": None, **OPERATOR}
    assert bench.asked == [("open", "bert", wanted)]
    assert bench.connection.pending == 1
    bench.requests.answer(bench.connection, 1, granted())
    assert bench.connection.pending == 0
    assert bench.sent == [(grant_message(1, granted()), 5)]


@pytest.mark.parametrize(
    ("instead_of", "avoids"), [("gpu:1", Place.parse("gpu:1")), ("cpu", CPU), ("auto", None), (None, None)]
)
def test_an_open_for_any_device_avoids_the_one_that_could_not_serve(
    bench: Bench, instead_of: str | None, avoids: Place | None
) -> None:
    bench.requests.handle(bench.connection, an_open(model="bert", place="gpu", instead_of=instead_of))
    ((_, _, asked),) = bench.asked
    assert (asked["place"], asked["avoids"]) == (ANY_GPU, avoids)


def test_pages_of_an_artifacts_files_go_with_the_grant(bench: Bench) -> None:
    pages = (Pages(11, 8192, 5000, 4096), Pages(12, 16384, 70, 0))
    bench.requests.answer(bench.connection, 1, granted(pages=pages))
    ((message, *fds),) = bench.sent
    assert (message["files"], message["pages"]) == (2, [(8192, 5000, 4096), (16384, 70, 0)])
    assert fds == [5, 11, 12]


def test_pages_of_many_files_are_left_to_be_asked_for(bench: Bench) -> None:
    many = tuple(Pages(10 + number, 8192 * number, 10, 0) for number in range(1, MAX_FILES_WITH_GRANT + 2))
    bench.requests.answer(bench.connection, 1, granted(pages=many))
    ((message, *fds),) = bench.sent
    assert (message["files"], "pages" in message, fds) == (len(many), False, [5])


def test_a_prefetch_is_accepted_at_once_and_outlives_its_session(bench: Bench) -> None:
    bench.requests.handle(bench.connection, an_open("prefetch", model="bert"))
    assert bench.sent == [({"id": 1, "accepted": True},)]
    assert bench.asked == [
        ("open", "bert", {"place": None, "deadline_s": None, "lease": False, "hint": True, **OPERATOR})
    ]
    assert bench.connection.pending == 0


def test_an_open_that_stands_for_a_fallback_is_counted(bench: Bench) -> None:
    bench.requests.handle(bench.connection, an_open(model="bert", instead_of="gpu"))
    assert bench.counters["fallbacks"] == 1


def test_too_many_requests_that_wait_are_a_bad_message(bench: Bench) -> None:
    for _ in range(MAX_PENDING):
        bench.requests.handle(bench.connection, an_open(model="bert"))
    with pytest.raises(BadMessageError, match=f"more than {MAX_PENDING} requests are waiting"):
        bench.requests.handle(bench.connection, an_open(model="bert"))


def test_a_request_that_names_no_place_is_answered_with_the_error(bench: Bench) -> None:
    bench.requests.handle(bench.connection, an_open(model="bert", place="moon"))
    ((number, error),) = bench.answered
    assert number == 1
    assert isinstance(error, CallerError)
    assert "'moon' is not a place" in str(error)


def test_an_error_is_sent_with_the_number_of_its_request(bench: Bench) -> None:
    bench.connection.pending = 1
    bench.requests.answer(bench.connection, 6, CapacityError("no room at cpu"))
    assert (bench.sent[0][0]["id"], bench.error()["code"]) == (6, "capacity")


def test_an_attach_sends_the_export_with_its_descriptor_or_the_error(bench: Bench) -> None:
    bench.requests.handle(bench.connection, Attach(id=1, lease=4))
    ((message, fd),) = bench.sent
    assert (message["id"], message["descriptor"], message["device"], fd) == (1, True, "GPU-1", 5)
    bench.sent.clear()
    bench.failure = DeviceLostError("gone")
    bench.requests.handle(bench.connection, Attach(id=2, lease=4))
    assert bench.error()["code"] == "device_lost"


@pytest.mark.parametrize(("uid", "may"), [(ME, True), (0, True), (ME + 1, False)])
def test_what_models_need_is_told_by_the_daemons_user_and_by_root_only(bench: Bench, uid: int, may: bool) -> None:
    bench.requests.handle(bench.client(uid), Workspace(id=1, lease=4, nbytes=60))
    if may:
        assert (bench.sent, bench.asked) == ([({"id": 1, "workspace_bytes": 70},)], [("workspace", 3, 4, 60)])
    else:
        assert bench.error()["code"] == "permission_denied"
        assert f"user {uid} may not" in bench.error()["message"]
        assert bench.asked == []


def test_a_grant_whose_memory_was_lost_meanwhile_is_an_error(bench: Bench) -> None:
    bench.has = False
    bench.requests.answer(bench.connection, 1, granted(export=EXPORT))
    assert bench.error()["code"] == "device_lost"
    assert "open again" in bench.error()["message"]


def test_memory_that_must_outlive_its_process_needs_a_process_that_can_be_seen(bench: Bench) -> None:
    bench.outlives = True
    bench.requests.answer(bench.client(ME, pid=0), 1, granted(export=EXPORT))
    assert bench.asked == [("take back", 3, 7)]
    assert bench.error()["code"] == "not_supported"
    assert "--pid=host" in bench.error()["message"]


def test_a_grant_names_the_device_only_of_memory_on_one() -> None:
    assert "device" not in grant_message(1, granted())
    assert grant_message(1, granted(export=EXPORT))["device"] == "GPU-1"


def test_a_file_is_named_by_its_absolute_path_without_detours() -> None:
    assert file_name(Peer(1, ME, 0), "/models/../models/a.npz") == "file:/models/a.npz"
    assert file_name(Peer(1, ME, 0), "bytes:1:2:/models/./a.npz") == "file:bytes:1:2:/models/a.npz"
    for wrong in ("a.npz", "bytes:1:2:a.npz", "bytes:/models/a.npz", "words:1:/models/a.npz"):
        with pytest.raises(CallerError):
            file_name(Peer(1, ME, 0), wrong)
    with pytest.raises(CallerError, match=r"'a\.npz' is not absolute; the daemon does not know your current folder"):
        file_name(Peer(1, ME, 0), "a.npz")
    with pytest.raises(PermissionDeniedError, match=f"user {ME + 1} may open registered models"):
        file_name(Peer(1, ME + 1, 0), "/models/a.npz")


BLUE = Tenant("blue", models=("bert-*",), verified=True)


def test_a_tenants_open_carries_its_name_and_its_trust(bench: Bench) -> None:
    bench.connection.tenant = BLUE
    bench.requests.handle(bench.connection, an_open(model="bert-base"))
    ((_, name, more),) = bench.asked
    assert (name, more["tenant"], more["verified"]) == ("bert-base", "blue", True)


@pytest.mark.parametrize("what", [{"model": "gpt2"}, {"model": "file:/models/a.npz"}, {"path": "/models/a.npz"}])
def test_a_tenant_is_refused_what_is_not_its_to_open(bench: Bench, what: dict[str, str]) -> None:
    bench.connection.tenant = BLUE
    bench.requests.handle(bench.connection, an_open(**what))
    ((_, error),) = bench.answered
    assert isinstance(error, PermissionDeniedError)
    assert "tenant 'blue' may" in str(error)
    assert bench.asked == []


def test_another_user_opens_no_path_that_is_dressed_up_as_a_model(bench: Bench) -> None:
    stranger = bench.client(ME + 1)
    bench.requests.handle(stranger, an_open(model="file:/models/a.npz"))
    ((_, error),) = bench.answered
    assert isinstance(error, PermissionDeniedError)
    assert bench.asked == []


def test_a_tenant_takes_up_only_images_of_its_models(bench: Bench) -> None:
    bench.connection.tenant = BLUE
    bench.names = {"a": ["gpt2"], "b": ["gpt2", "bert-base"]}
    for number, key in enumerate("ab"):
        bench.requests.handle(bench.connection, Resume(id=number, key=key, place="cpu"))
    ((number, error),) = bench.answered
    assert (number, type(error)) == (0, PermissionDeniedError)
    assert bench.asked == [("resume", 3, "b", CPU, "blue")]


def test_a_tenant_that_wants_verified_images_takes_up_no_files(bench: Bench) -> None:
    bench.connection.tenant = BLUE
    bench.names = {"b": ["bert-base"]}
    bench.requests.handle(bench.connection, Resume(id=1, key="b", place="file"))
    ((_, error),) = bench.answered
    assert "reads verified images only" in str(error)


def test_a_tenant_is_told_of_no_other_models_when_one_is_missing(bench: Bench) -> None:
    answers: list[Any] = []
    store: Any = bench.requests._store
    store.open = lambda _, answer, **__: answers.append(answer)
    bench.connection.tenant = BLUE
    bench.requests.handle(bench.connection, an_open(model="bert-x"))
    answers[0](ModelNotFoundError("no model 'bert-x' is registered; did you mean 'red-secret'?"))
    ((_, error),) = bench.answered
    assert str(error) == "no model 'bert-x' is registered"


def test_prefetches_of_a_tenant_are_bounded_whichever_session_asks(bench: Bench) -> None:
    over: list[Any] = []
    store: Any = bench.requests._store
    store.open = lambda _, answer, **__: over.append(answer)
    for session in (bench.connection, bench.client(ME)):
        session.tenant = BLUE
        for _ in range(MAX_PENDING):
            bench.requests.handle(session, an_open("prefetch", model="bert-base"))
    assert len(over) == MAX_PENDING
    assert {type(error) for _, error in bench.answered} == {BusyError}
    over[0](CapacityError("no room"))
    bench.requests.handle(bench.client(ME), an_open("prefetch", model="bert-base"))
    assert len(over) == MAX_PENDING + 1


def test_a_tenant_tells_nothing_about_workspaces(bench: Bench) -> None:
    bench.connection.tenant = BLUE
    bench.requests.handle(bench.connection, Workspace(id=1, lease=4, nbytes=70))
    assert "tenant 'blue' may not tell this daemon what models need" in bench.error()["message"]


def an_open(op: str = "open", **more: Any) -> Open:
    request = parse_request({"op": op, "id": 1, **more})
    assert isinstance(request, Open)
    return request
