"""Templates of programs that the daemon knows: which there are, who may use them, and how much memory they take.

A template belongs to a session, that of its host (`trims.programs.host`): it is known while the session lasts, and the
daemon ends it by ending the session. Each is its principal's alone, a user's or a tenant's, and serves callers of the
identity (`identity_of`) that its maker had, which the daemon looks up itself: what runs in a sandbox can neither use
nor make a template of what runs outside. Used in the attach door's thread.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trims.core.errors import CallerError, CapacityError, PermissionDeniedError, TrimsError
from trims.programs.identity import identity_of, mounts
from trims.wire.answers import error_message
from trims.wire.messages import Forget, Program, Template, Templates
from trims.wire.peer import PeerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.daemon.clients import Connection
    from trims.wire.frames import Message

#: Templates of all users together, those that are being made among them.
_MOST = 256
#: Variables that are named as those by which a program has no template yet.
_MOST_APART = 5
#: Programs without a template that are remembered, and for how many seconds: the cause may be of the moment.
_MOST_UNFIT, _UNFIT_S = 1024, 600.0


_Entry = TypeVar("_Entry")
_Value = TypeVar("_Value")


class Caller(NamedTuple):
    """A client, as far as it decides about templates.

    Attributes:
        tenant: Name of the tenant; empty for the operator.
        identity: Result of `identity_of`; only the user where the daemon may not look at another user's process.
        confined: Whether it may do less than the daemon: filters of system calls bind it, or it can gain no rights.
    """

    uid: int
    tenant: str
    identity: str
    confined: bool = False

    @property
    def principal(self) -> tuple[int, str]:
        """Return whose templates it may know."""
        return self.uid, self.tenant


#: Principal, identity and key, and the values of the variables that distinguish templates with this key.
_Base = tuple[tuple[int, str], str, str]
_Place = tuple[_Base, tuple["str | None", ...]]


@dataclass(slots=True, eq=False)
class _Known:
    """Template, or one that is being made as long as it has no address."""

    key: str
    name: str
    session: int
    maker: int
    unread: Mapping[str, str]
    variables: Mapping[str, str]
    place: _Place
    #: Secret of the daemon, the template's host and its callers, who prove by it that they mean the same template.
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    address: str = ""
    pid: int = 0
    nbytes: int = 0
    modules: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    used_s: float = field(default_factory=time.monotonic)

    @property
    def principal(self) -> tuple[int, str]:
        """Return whose it is."""
        return self.place[0][0]


def caller_of(connection: Connection) -> Caller:
    """Look up who a client is.

    Raises PermissionDeniedError for a client in another mount namespace, as predictors in a sandbox and programs in
    containers are: paths mean other files there.
    """
    peer, tenant = connection.peer, "" if connection.tenant is None else connection.tenant.name
    try:
        with PeerProcess(connection.sock, peer, time.time() - connection.began_at_s) as process:
            if mounts(peer.pid) != mounts():
                raise PermissionDeniedError(
                    "this process is in another mount namespace than the daemon, where paths mean other files"
                )
            identity = identity_of(peer.pid)
            process.check()
    except TrimsError:  # some of which are errors of the system, too
        raise
    except PermissionError as error:
        if peer.uid == os.geteuid():  # and hides, which a process of this user does not without a reason
            raise PermissionDeniedError(f"process {peer.pid} cannot be looked at: {error}") from error
        return Caller(peer.uid, tenant, f"user {peer.uid}")
    except OSError as error:
        raise PermissionDeniedError(f"programs are started only for processes that the daemon sees: {error}") from error
    return Caller(peer.uid, tenant, identity, _bounds(identity) != _own_bounds())


@functools.cache
def _own_bounds() -> list[str]:
    """Return what binds the daemon, which is so for its whole life."""
    return _bounds(identity_of())


def _bounds(identity: str) -> list[str]:
    return [line for line in identity.splitlines() if line.startswith(("NoNewPrivs", "Seccomp"))]


class ProgramTemplates:
    """Table of templates.

    Args:
        most_bytes: Memory that all of them may take; beyond it, the one that was not used for longest is ended.
        end: Ends a session, and why.
        caller: Looks up a client.
        loaders: Whether programs get the loaders that read through the store, unless their start says otherwise.
    """

    def __init__(
        self,
        most_bytes: int,
        end: Callable[[int, str], None],
        caller: Callable[[Connection], Caller] = caller_of,
        *,
        loaders: bool = True,
    ) -> None:
        self._most_bytes = most_bytes
        self._end, self._caller = end, caller
        self._to_start: Message = {"state": "ready"} if loaders else {"state": "ready", "loaders": False}
        self._known: dict[_Place, _Known] = {}
        #: Variables that the imports of a program read although most do not (see `Program.unread`).
        self._reads: dict[_Base, tuple[str, ...]] = {}
        self._by_session: dict[int, _Known] = {}
        #: Programs that can have no template: why, until when, and their names.
        self._unfit: dict[_Place, tuple[str, float, str]] = {}

    def answer(self, connection: Connection, request: Program | Template | Templates | Forget) -> Message:
        """Carry out a request. Return the answer, or the error that it ends in."""
        try:
            if isinstance(request, Template):  # of a host, whose session has a template already
                found = self._take(connection, request)
            elif isinstance(request, Program):
                found = self._find(connection, request, self._caller(connection))
            elif isinstance(request, Templates):
                found = {"templates": [_row(each) for each in self._of(self._caller(connection))]}
            else:
                found = {"ended": self._forget(self._caller(connection), request.template)}
        except TrimsError as error:
            return error_message(error, request.id)
        return {"id": request.id, **found}

    def _find(self, connection: Connection, request: Program, caller: Caller) -> Message:
        place = self._place((caller.principal, caller.identity, request.key), request.unread)
        known = self._known.get(place)
        if known is not None and known.address:
            known.used_s, known.starts = time.monotonic(), known.starts + 1
            return {**self._to_start, "address": known.address, "token": known.token}
        if known is not None:
            return {"state": "aside", "why": f"its template is being made of process {known.maker}"}
        why, until_s, _ = self._unfit.get(place, ("", 0.0, ""))
        if time.monotonic() < until_s:
            return {"state": "aside", "why": why}
        if connection.number in self._by_session:
            raise CallerError("a session makes one template")
        if not self._has_place(caller.principal):
            return {"state": "aside", "why": f"the daemon knows {_MOST} templates, as many as it may"}
        apart = self._apart(request, place)
        known = _Known(
            request.key, request.name, connection.number, connection.peer.pid, request.unread, request.variables, place
        )
        self._known[place] = self._by_session[connection.number] = known
        return {"state": "observe", "token": known.token, "apart": apart}

    def _apart(self, request: Program, place: _Place) -> list[str]:
        """Return the variables whose values differ from those of the nearest template of the program."""
        own = {**request.variables, **dict(zip(self._reads.get(place[0], ()), place[1], strict=False))}
        found: list[set[str]] = []
        for each in self._known.values():
            if each.name == request.name and each.place[0][:2] == place[0][:2]:
                others = {
                    **each.variables,
                    **dict(zip(self._reads.get(each.place[0], ()), each.place[1], strict=False)),
                }
                found.append({name for name in {*own, *others} if own.get(name) != others.get(name)})
        nearest = min(found, key=len, default=set())
        return [name or "working folder" for name in sorted(nearest)[:_MOST_APART]]

    def _has_place(self, principal: tuple[int, str]) -> bool:
        """Return whether one more template may be made; where all places are taken, the one with most gives one up."""
        if len(self._known) < _MOST:
            return True
        counts = Counter(each.principal for each in self._known.values())
        richest = max(counts, key=lambda each: counts[each])
        if counts[richest] <= counts[principal] + 1:
            return False
        given = min((each for each in self._known.values() if each.principal == richest), key=lambda each: each.used_s)
        self._end(given.session, "its place was needed for another user's template")
        return len(self._known) < _MOST

    def _take(self, connection: Connection, request: Template) -> Message:
        known = self._by_session.get(connection.number)
        if known is None or known.key != request.key:
            raise CallerError("this session may not make that template")
        if request.unfit is not None:
            self._note_unfit(known, request.unfit)
            return {"accepted": False}
        if request.nbytes > self._most_bytes:
            why = (
                f"its template takes {request.nbytes} bytes, and {self._most_bytes} are the most for all "
                f"(template_capacity_bytes)"
            )
            self._note_unfit(known, why)
            raise CapacityError(why)
        known.address, known.pid, known.nbytes = request.address, request.pid, request.nbytes
        known.modules, known.left_out = request.modules, request.left_out
        known.used_s = time.monotonic()
        self._distinguish(known, request.reads)
        try:
            self._make_room(known)
        except CapacityError:
            known.address = ""
            raise
        return {"accepted": True}

    def _place(self, base: _Base, unread: Mapping[str, str]) -> _Place:
        return base, tuple(unread.get(name) for name in self._reads.get(base, ()))

    def _distinguish(self, known: _Known, reads: Sequence[str]) -> None:
        """Distinguish the templates of a program by variables that its imports read."""
        base = known.place[0]
        names = tuple(sorted({*self._reads.get(base, ()), *reads}))
        if names == self._reads.get(base, ()):
            return
        _drop_oldest(self._reads, lambda base: base[0])
        self._reads[base] = names
        for each in [each for place, each in self._known.items() if place[0] == base]:
            del self._known[each.place]
            each.place = self._place(base, each.unread)
            self._known[each.place] = each

    def _make_room(self, kept: _Known) -> None:
        """End templates until the rest fits: of the principal that takes most, the one that was not used for longest.

        Raises CapacityError if only the new one is left to end: no principal's templates make room for a greater share.
        """
        ready = sorted((each for each in self._known.values() if each.address), key=lambda each: each.used_s)
        taken: Counter[tuple[int, str]] = Counter()
        for each in ready:
            taken[each.principal] += each.nbytes
        while taken.total() > self._most_bytes:
            greatest = max(taken, key=lambda each: (taken[each], each == kept.principal))
            given = next((each for each in ready if each.principal == greatest and each is not kept), None)
            if given is None:
                why = f"its template takes {kept.nbytes} bytes, and other users' templates have room, too"
                self._note_unfit(kept, why)
                raise CapacityError(f"{why} (template_capacity_bytes)")
            ready.remove(given)
            taken[greatest] -= given.nbytes
            self._end(given.session, "its template made room for another")

    def _note_unfit(self, known: _Known, why: str) -> None:
        _drop_oldest(self._unfit, lambda place: place[0][0])
        self._unfit[known.place] = (why, time.monotonic() + _UNFIT_S, known.name)

    def _of(self, caller: Caller) -> list[_Known]:
        return [each for place, each in self._known.items() if _may_know(caller, place)]

    def _forget(self, caller: Caller, wanted: str | None) -> list[str]:
        """End templates. Raises CallerError if none is meant. Return their keys."""

        def is_meant(key: str, name: str) -> bool:
            return wanted is None or key.startswith(wanted) or name == wanted

        found = [each for each in self._of(caller) if is_meant(each.key, each.name)]
        unfit = [place for place, (_, _, name) in self._unfit.items()
                 if _may_know(caller, place) and is_meant(place[0][2], name)]  # fmt: skip
        if wanted is not None and not found and not unfit:
            raise CallerError(f"there is no template {wanted!r}; `trims ps --templates` lists all")
        for place in unfit:
            del self._unfit[place]
        for each in found:
            self._end(each.session, "its template was forgotten")
        return [each.key for each in found]

    def session_ended(self, session: int) -> None:
        """Forget the template of a session that has ended."""
        known = self._by_session.pop(session, None)
        if known is not None and self._known.get(known.place) is known:
            del self._known[known.place]


def _may_know(caller: Caller, place: _Place) -> bool:
    """Return whether a template is the caller's: in a sandbox, only one that was made in an equal one."""
    principal, identity, _ = place[0]
    return principal == caller.principal and (identity == caller.identity or not caller.confined)


def _drop_oldest(table: dict[_Entry, _Value], principal: Callable[[_Entry], tuple[int, str]]) -> None:
    """Make room for one more entry: the oldest goes, of the principal that has most."""
    if len(table) < _MOST_UNFIT:
        return
    counts = Counter(map(principal, table))
    richest = max(counts, key=lambda each: counts[each])
    del table[next(each for each in table if principal(each) == richest)]


def _row(known: _Known) -> Message:
    return {
        "key": known.key, "name": known.name, "state": "ready" if known.address else "observing",
        "pid": known.pid or known.maker, "nbytes": known.nbytes, "modules": known.modules,
        "left_out": dict(known.left_out), "starts": known.starts, "idle_s": round(time.monotonic() - known.used_s, 1),
    }  # fmt: skip
