"""Templates of programs that the daemon knows: which there are, who may use them, and how much memory they take.

A template belongs to a session, that of its host (`trims.programs.host`): it is known while the session lasts, and the
daemon ends it by ending the session. Each is its user's alone. Used in the attach door's thread.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trims.core.errors import CallerError, CapacityError, TrimsError
from trims.wire.answers import error_message
from trims.wire.messages import Forget, Program, Template, Templates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.daemon.clients import Connection
    from trims.wire.frames import Message

#: Templates of all users together, those that are being made among them.
_MOST = 256
#: Programs without a template that are remembered, and for how many seconds: the cause may be of the moment.
_MOST_UNFIT, _UNFIT_S = 1024, 600.0


#: User, key, and the values of the variables that tell templates with this key apart.
_Place = tuple[int, str, tuple["str | None", ...]]


@dataclass(slots=True, eq=False)
class _Known:
    """Template, or one that is being made as long as it has no address."""

    uid: int
    key: str
    name: str
    session: int
    maker: int
    unread: Mapping[str, str]
    place: _Place
    address: str = ""
    pid: int = 0
    nbytes: int = 0
    modules: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    used_s: float = field(default_factory=time.monotonic)


class ProgramTemplates:
    """Table of templates.

    Args:
        most_bytes: Memory that all of them may take; beyond it, the one that was not used for longest is ended.
        end: Ends a session, and why.
    """

    def __init__(self, most_bytes: int, end: Callable[[int, str], None]) -> None:
        self._most_bytes = most_bytes
        self._end = end
        self._known: dict[_Place, _Known] = {}
        #: Variables that the imports of a program read although most do not (see `Program.unread`).
        self._reads: dict[tuple[int, str], tuple[str, ...]] = {}
        self._by_session: dict[int, _Known] = {}
        #: Programs that can have no template: why, until when, and their names.
        self._unfit: dict[_Place, tuple[str, float, str]] = {}
        self._mounts = os.readlink("/proc/self/ns/mnt")

    def answer(self, connection: Connection, request: Program | Template | Templates | Forget) -> Message:
        """Carry out a request. Return the answer, or the error that it ends in."""
        try:
            if isinstance(request, Program):
                found = {**self._find(connection, request), "mounts": self._mounts}
            elif isinstance(request, Template):
                found = self._take(connection, request)
            elif isinstance(request, Templates):
                found = {"templates": [_row(each) for each in self._of(connection.peer.uid)]}
            else:
                found = {"ended": self._forget(connection.peer.uid, request.template)}
        except TrimsError as error:
            return error_message(error, request.id)
        return {"id": request.id, **found}

    def _find(self, connection: Connection, request: Program) -> Message:
        place = self._place(connection.peer.uid, request.key, request.unread)
        known = self._known.get(place)
        if known is not None and known.address:
            known.used_s, known.starts = time.monotonic(), known.starts + 1
            return {"state": "ready", "address": known.address}
        if known is not None:
            return {"state": "aside", "why": f"its template is being made of process {known.maker}"}
        why, until_s, _ = self._unfit.get(place, ("", 0.0, ""))
        if time.monotonic() < until_s:
            return {"state": "aside", "why": why}
        if len(self._known) >= _MOST:
            return {"state": "aside", "why": f"the daemon knows {_MOST} templates, as many as it may"}
        if connection.number in self._by_session:
            raise CallerError("a session makes one template")
        known = _Known(
            connection.peer.uid, request.key, request.name, connection.number, connection.peer.pid, request.unread,
            place,
        )  # fmt: skip
        self._known[place] = self._by_session[connection.number] = known
        return {"state": "observe"}

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
        self._tell_apart(known, request.reads)
        self._make_room(known)
        return {"accepted": True}

    def _place(self, uid: int, key: str, unread: Mapping[str, str]) -> _Place:
        return uid, key, tuple(unread.get(name) for name in self._reads.get((uid, key), ()))

    def _tell_apart(self, known: _Known, reads: Sequence[str]) -> None:
        """Have the templates of a program told apart by variables that its imports read."""
        base = (known.uid, known.key)
        names = tuple(sorted({*self._reads.get(base, ()), *reads}))
        if names == self._reads.get(base, ()):
            return
        while len(self._reads) >= _MOST_UNFIT:
            del self._reads[next(iter(self._reads))]
        self._reads[base] = names
        for each in [each for place, each in self._known.items() if place[:2] == base]:
            del self._known[each.place]
            each.place = self._place(each.uid, each.key, each.unread)
            self._known[each.place] = each

    def _make_room(self, kept: _Known) -> None:
        """End the templates that were not used for longest until the rest fits."""
        ready = sorted((each for each in self._known.values() if each.address), key=lambda each: each.used_s)
        excess = sum(each.nbytes for each in ready) - self._most_bytes
        for each in ready:
            if excess <= 0:
                return
            if each is not kept:
                excess -= each.nbytes
                self._end(each.session, "its template made room for another")

    def _note_unfit(self, known: _Known, why: str) -> None:
        while len(self._unfit) >= _MOST_UNFIT:
            del self._unfit[next(iter(self._unfit))]
        self._unfit[known.place] = (why, time.monotonic() + _UNFIT_S, known.name)

    def _of(self, uid: int) -> list[_Known]:
        return [each for each in self._known.values() if each.uid == uid]

    def _forget(self, uid: int, wanted: str | None) -> list[str]:
        """End templates. Raises CallerError if none is meant. Return their keys."""

        def is_meant(key: str, name: str) -> bool:
            return wanted is None or key.startswith(wanted) or name == wanted

        found = [each for each in self._of(uid) if is_meant(each.key, each.name)]
        unfit = [place for place, (_, _, name) in self._unfit.items() if place[0] == uid and is_meant(place[1], name)]
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


def _row(known: _Known) -> Message:
    return {
        "key": known.key, "name": known.name, "state": "ready" if known.address else "observing",
        "pid": known.pid or known.maker, "nbytes": known.nbytes, "modules": known.modules,
        "left_out": dict(known.left_out), "starts": known.starts, "idle_s": round(time.monotonic() - known.used_s, 1),
    }  # fmt: skip
