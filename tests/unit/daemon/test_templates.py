"""Templates that the daemon knows: which there are, who may use them, and which end to make room."""

from __future__ import annotations

import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from trims.core.errors import CallerError, CapacityError, PermissionDeniedError
from trims.daemon import templates as module
from trims.daemon.templates import Caller, ProgramTemplates, caller_of
from trims.wire.answers import raise_if_error
from trims.wire.messages import Forget, Program, Template, Templates
from trims.wire.peer import Peer

A, B = "a" * 32, "b" * 32
MOST = 1000


class Table:
    """Table of templates, asked by sessions of users; what it ends are sessions, whose ends it is told of.

    Attributes:
        ended: Sessions that the table has ended, in this order.
        identity: Of the sessions that ask now, as the daemon sees them.
        confined: They are in a sandbox.
        tenant: Theirs; empty for the operator.
        tokens: Tokens that the table has given out, in this order.
        apart: Variables by which the program that was asked for last had no template yet.
    """

    def __init__(self) -> None:
        self.ended: list[int] = []
        self.identity, self.confined, self.tenant = "outside", False, ""
        self.tokens: list[str] = []
        self.apart: list[str] = []
        self.templates = ProgramTemplates(MOST, self._end, self._caller)

    def _caller(self, connection: Any) -> Caller:
        return Caller(connection.peer.uid, self.tenant, self.identity, self.confined)

    def _end(self, session: int, why: str) -> None:
        assert why
        self.ended.append(session)
        self.templates.session_ended(session)

    def _ask(self, session: int, uid: int, request: Any) -> dict[str, Any]:
        connection: Any = SimpleNamespace(number=session, peer=SimpleNamespace(uid=uid, pid=session + 1000))
        answer = self.templates.answer(connection, request)
        assert answer.pop("id") == request.id
        return raise_if_error(answer)

    def find(self, session: int, key: str = A, uid: int = 1, **unread: str) -> dict[str, Any]:
        """Ask for a template."""
        answer = self._ask(session, uid, Program(session, key, f"name of {key[0]}", unread))
        assert ("token" in answer) == (answer["state"] != "aside")
        self.tokens += [answer.pop("token")] if "token" in answer else []
        self.apart = answer.pop("apart", [])
        return answer

    def take(self, session: int, key: str = A, uid: int = 1, **facts: Any) -> dict[str, Any]:
        """Make a template known."""
        given = {} if "unfit" in facts else {"address": f"address {session}", "pid": session + 2000, "nbytes": 100}
        return self._ask(session, uid, Template(session, key, **{**given, **facts}))

    def make(
        self, session: int, key: str = A, uid: int = 1, unread: dict[str, str] | None = None, **facts: Any
    ) -> None:
        """Make a template, from the first question on."""
        assert self.find(session, key, uid, **(unread or {})) == {"state": "observe"}
        assert self.take(session, key, uid, **facts) == {"accepted": True}

    def rows(self, uid: int = 1) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask(99, uid, Templates(99))["templates"]
        return found

    def forget(self, template: str | None = None, uid: int = 1) -> list[str]:
        found: list[str] = self._ask(99, uid, Forget(99, template))["ended"]
        return found


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_program_is_observed_once_and_then_started_from_its_template(table: Table) -> None:
    assert table.find(1) == {"state": "observe"}
    assert table.find(2)["state"] == "aside"
    table.take(1)
    assert table.find(2) == table.find(3) == {"state": "ready", "address": "address 1"}
    assert table.find(4, B) == {"state": "observe"}
    assert table.ended == []


def test_a_template_is_listed_while_it_is_made_and_when_it_is_ready(table: Table) -> None:
    assert table.rows() == []
    table.find(1)
    (row,) = table.rows()
    assert row.pop("idle_s") >= 0
    making = {
        "key": A, "name": "name of a", "state": "observing", "pid": 1001, "nbytes": 0, "modules": 0, "left_out": {},
        "starts": 0,
    }  # fmt: skip
    assert row == making
    table.take(1, modules=7, left_out={"m": "it prints"})
    table.find(2)
    table.find(3)
    (row,) = table.rows()
    del row["idle_s"]
    ready = {"state": "ready", "pid": 2001, "nbytes": 100, "modules": 7, "left_out": {"m": "it prints"}, "starts": 2}
    assert row == {**making, **ready}


def test_a_template_that_is_made_again_states_what_it_takes_now(table: Table) -> None:
    table.make(1)
    table.take(1, nbytes=200, modules=9, address="another")
    (row,) = table.rows()
    assert (row["nbytes"], row["modules"]) == (200, 9)
    assert table.find(2) == {"state": "ready", "address": "another"}


def test_another_users_templates_are_not_seen(table: Table) -> None:
    table.make(1, uid=1)
    assert table.rows(uid=2) == []
    assert table.find(2, uid=2) == {"state": "observe"}
    assert table.forget(uid=3) == []
    with pytest.raises(CallerError):
        table.forget(A, uid=3)
    assert table.forget(uid=2) == [A]
    assert table.ended == [2]


@pytest.mark.parametrize("session", [1, 2])
def test_a_session_makes_only_the_template_that_it_was_told_to(table: Table, session: int) -> None:
    table.find(1)
    with pytest.raises(CallerError):
        table.take(session, B)
    with pytest.raises(CallerError):
        table.find(1, B)
    assert table.take(1) == {"accepted": True}


def test_a_program_without_a_template_is_remembered_for_a_while(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.find(1)
    assert table.take(1, unfit="it starts threads") == {"accepted": False}
    table.templates.session_ended(1)
    assert table.find(2) == {"state": "aside", "why": "it starts threads"}
    assert table.find(3, uid=2) == {"state": "observe"}
    assert table.rows() == []
    later = time.monotonic() + module._UNFIT_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert table.find(4) == {"state": "observe"}


def test_only_so_many_programs_without_a_template_are_remembered(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_UNFIT", 2)
    for session in (1, 2, 3):
        table.find(session, f"{session:032x}")
        table.take(session, f"{session:032x}", unfit="why")
        table.templates.session_ended(session)
    assert [table.find(9 + each, f"{each:032x}")["state"] for each in (3, 2, 1)] == ["aside", "aside", "observe"]


def test_the_template_that_was_not_used_for_longest_makes_room_for_the_newest(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    table.make(1, f"{1:032x}", nbytes=400)
    table.make(2, f"{2:032x}", nbytes=300, uid=2)
    table.make(3, f"{3:032x}", nbytes=300)
    assert table.ended == []
    table.find(9, f"{1:032x}")
    table.make(4, f"{4:032x}", nbytes=200)
    assert table.ended == [3], "of the user who takes most"
    table.make(5, f"{5:032x}", nbytes=700)
    assert table.ended == [3, 1, 4]


def test_a_template_that_claims_more_than_others_leave_ends_only_its_own_users(table: Table) -> None:
    table.make(1, f"{1:032x}", nbytes=300)
    table.make(2, f"{2:032x}", nbytes=300, uid=2)
    table.find(3, f"{3:032x}", uid=2)
    with pytest.raises(CapacityError):
        table.take(3, f"{3:032x}", uid=2, nbytes=MOST)
    assert table.ended == [2]
    assert [row["state"] for row in table.rows()] == ["ready"]
    assert table.find(4, f"{3:032x}", uid=2)["state"] == "aside"


def test_a_template_that_is_being_made_makes_no_room(table: Table) -> None:
    table.find(1, f"{1:032x}")
    table.make(2, f"{2:032x}", nbytes=MOST)
    assert table.ended == []


def test_a_template_that_is_too_large_by_itself_is_refused_and_remembered(table: Table) -> None:
    table.make(1, B)
    table.find(2)
    with pytest.raises(CapacityError):
        table.take(2, nbytes=MOST + 1)
    table.templates.session_ended(2)
    assert table.find(3)["state"] == "aside"
    assert table.ended == []


def test_there_are_only_so_many_templates(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    table.find(1, A)
    table.make(2, B)
    assert table.find(3, "c" * 32)["state"] == "aside"
    assert table.find(3, B)["state"] == "ready"
    table.templates.session_ended(1)
    assert table.find(3, "c" * 32) == {"state": "observe"}


def test_a_user_who_has_taken_all_places_gives_one_up_for_another(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST", 3)
    for session in (1, 2, 3):
        table.make(session, f"{session:032x}")
    assert table.find(4, A, uid=2) == {"state": "observe"}
    assert table.ended == [1]
    assert table.find(5, B, uid=2)["state"] == "aside", "each has as much as the other, but for one"


def test_what_runs_in_a_sandbox_has_no_part_in_templates_of_what_runs_outside(table: Table) -> None:
    table.make(1)
    table.identity, table.confined = "inside", True
    assert table.rows() == []
    assert table.forget() == []
    with pytest.raises(CallerError):
        table.forget(A)
    assert table.find(2) == {"state": "observe"}, "a template of its own, that only its like are given"
    table.take(2, address="evil")
    assert table.find(3) == {"state": "ready", "address": "evil"}
    table.identity, table.confined = "outside", False
    assert table.find(4) == {"state": "ready", "address": "address 1"}
    assert len(table.rows()) == 2, "the user sees all"
    assert len(set(table.tokens)) == 2


def test_a_tenants_templates_are_not_those_of_the_operator_with_its_user(table: Table) -> None:
    table.make(1)
    table.tenant = "blue"
    assert table.rows() == []
    assert table.forget() == []
    assert table.find(2) == {"state": "observe"}
    table.take(2, unfit="it starts threads")
    table.tenant = ""
    assert table.find(3)["state"] == "ready"
    assert len(table.rows()) == 1


def test_what_imports_read_tells_templates_apart(table: Table) -> None:
    table.make(1, unread={"TERM": "x", "LINES": "5"}, reads=["TERM"])
    assert table.apart == []
    assert table.find(2, TERM="x", LINES="6")["state"] == "ready"
    assert table.find(3, TERM="y", LINES="5") == {"state": "observe"}
    assert table.apart == ["TERM"]
    assert table.find(4, LINES="5") == {"state": "observe"}
    assert table.find(5, B, TERM="y") == {"state": "observe"}
    table.take(3, reads=["LINES", "TERM"])
    assert table.find(6, TERM="y", LINES="5") == {"state": "ready", "address": "address 3"}
    assert table.find(6, TERM="x", LINES="5") == {"state": "ready", "address": "address 1"}
    assert table.find(6, TERM="x", LINES="6") == {"state": "observe"}
    assert len(table.rows()) == 5
    table.templates.session_ended(1)
    assert table.find(7, TERM="x", LINES="5") == {"state": "observe"}


def test_a_program_is_unfit_only_where_what_its_imports_read_is_the_same(table: Table) -> None:
    table.make(1, unread={"TERM": "x"}, reads=["TERM"])
    table.find(2, TERM="y")
    table.take(2, unfit="why")
    table.templates.session_ended(2)
    assert table.find(3, TERM="y")["state"] == "aside"
    assert table.find(3, TERM="x")["state"] == "ready"
    assert table.find(3, TERM="z") == {"state": "observe"}


def test_only_so_many_programs_are_told_apart_by_what_they_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_UNFIT", 1)
    table.make(1, A, unread={"TERM": "x"}, reads=["TERM"])
    table.make(2, B, unread={"TERM": "x"}, reads=["TERM"])
    assert table.find(3, B, TERM="y") == {"state": "observe"}
    assert table.find(4, A, TERM="x") == {"state": "observe"}  # its template is not found any more
    assert len(table.rows()) == 4


@pytest.mark.parametrize(
    ("wanted", "ended"),
    [(None, [1, 2, 3]), (A, [1]), ("a", [1]), ("name of b", [2]), ("0", [3]), ("bb", [2])],
)
def test_templates_are_forgotten_by_key_by_name_or_all(table: Table, wanted: str | None, ended: list[int]) -> None:
    keys = (A, B, "0" * 32)
    for session, key in enumerate(keys, 1):
        table.make(session, key)
    table.make(4, uid=2)
    assert table.forget(wanted) == [keys[session - 1] for session in ended]
    assert table.ended == ended
    for session in ended:
        table.templates.session_ended(session)
    assert len(table.rows()) == 3 - len(ended)
    assert len(table.rows(uid=2)) == 1


@pytest.mark.parametrize("wanted", ["c", "name", "name of", A + "a", "observing"])
def test_a_template_that_is_not_there_cannot_be_forgotten(table: Table, wanted: str) -> None:
    table.make(1)
    with pytest.raises(CallerError):
        table.forget(wanted)
    assert table.ended == []


@pytest.mark.parametrize("wanted", [None, "aa", A])
def test_a_program_without_a_template_may_be_forgotten_and_is_observed_again(table: Table, wanted: str | None) -> None:
    table.find(1)
    table.take(1, unfit="why")
    table.templates.session_ended(1)
    assert table.forget(wanted) == []
    assert table.find(2) == {"state": "observe"}


def test_a_template_is_known_as_long_as_its_session(table: Table) -> None:
    table.make(1)
    table.templates.session_ended(2)
    assert table.find(2)["state"] == "ready"
    for _ in range(2):
        table.templates.session_ended(1)
        assert table.rows() == []
    table.make(3)
    table.templates.session_ended(1)
    assert table.find(4) == {"state": "ready", "address": "address 3"}


@pytest.mark.parametrize("other_user", [0, 1])
def test_a_client_in_another_mount_namespace_is_refused_whatever_its_user(
    monkeypatch: pytest.MonkeyPatch, other_user: int
) -> None:
    monkeypatch.setattr(module, "mounts", lambda pid="self": f"mnt:[{pid}]")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(os.getpid(), os.geteuid() + other_user, os.getegid())
        connection: Any = SimpleNamespace(sock=ours, peer=peer, tenant=None, began_at_s=time.time())
        with pytest.raises(PermissionDeniedError):
            caller_of(connection)
