"""Requests of clients at the attach door, and their answers: open, resume, close, attach, workspace.

Nothing here waits: what takes time is the store's, which answers later and from any thread. Not covered: greeting,
sending and the ends of sessions (`attach_door`), the fields of a message (`wire.messages`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from trims.core.errors import (
    BadMessageError,
    BusyError,
    DeviceLostError,
    ModelNotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    TrimsError,
)
from trims.core.place import ANYWHERE, DISK, FILE, Place
from trims.memory.cuda.drivers import export_message
from trims.store.catalog import FILE_PREFIX
from trims.store.file_names import parse_file_name
from trims.store.pending_requests import Granted, Outcome, log_failure
from trims.trace.context import parse_context
from trims.trace.levels import Level
from trims.trace.spans import Within, is_recording, span
from trims.wire.answers import error_message
from trims.wire.messages import Attach, Close, Open, Resume, Workspace

if TYPE_CHECKING:
    from trims.daemon.clients import Connection
    from trims.memory.pages import Pages
    from trims.store.store import Store
    from trims.tenants import Tenant
    from trims.trace.context import SpanContext
    from trims.wire.frames import Message
    from trims.wire.peer import Peer

#: Requests a client may have open before its session ends.
MAX_PENDING = 256
#: Most files of an artifact whose descriptors go with a grant; a client asks for each of those of a larger one.
MAX_FILES_WITH_GRANT = 8
#: Prefetches that may run at once, of all clients without a tenant; each tenant may have MAX_PENDING.
MAX_PREFETCHES = 4096

log = logging.getLogger(__name__)


#: Called with the error that a request ends in; None for an answer.
Over = Callable[[BaseException | None], None]


def _nothing(error: BaseException | None) -> None:
    """Do nothing at the end of a request that is not recorded."""


class Send(Protocol):
    """Function that sends messages."""

    def __call__(self, connection: Connection, message: Message, *fds: int) -> None:
        """Send one message with descriptors, which stay the caller's."""


class Requests:
    """Carries out what greeted clients ask. All methods are called in the door's thread.

    Args:
        send: Sends what can be answered at once.
        answered: Called by the store with an answer, from any thread, with the request's id; the door calls `answer`
            for it, so that no lease ends between grant and send.
    """

    def __init__(self, store: Store, send: Send, answered: Callable[[Connection, int, Outcome], None]) -> None:
        self._store = store
        self._leases = store.device_leases
        self._send = send
        self._answered = answered
        self._lock = threading.Lock()
        #: Number of running prefetches by tenant; None stands for clients without one.
        self._prefetching: Counter[str | None] = Counter()

    def handle(self, connection: Connection, request: Open | Resume | Close | Attach | Workspace) -> None:
        """Do what is asked, or have the store do it. Raises BadMessageError if too much is asked at once."""
        if isinstance(request, Close):
            self._store.close(connection.number, request.lease)
            if request.id is not None:
                self._send(connection, {"id": request.id, "closed": request.lease})
        elif isinstance(request, Attach):
            self._export(connection, request)
        elif isinstance(request, Workspace):
            self._report_workspace(connection, request)
        else:
            self._ask(connection, request)

    def answer(self, connection: Connection, request_id: int, outcome: Outcome) -> None:
        """Send the outcome of an open or a resume."""
        connection.pending -= 1
        try:
            if isinstance(outcome, TrimsError):
                raise outcome
            if isinstance(outcome, Granted):
                if outcome.export is not None:
                    self._check_device_grant(connection, outcome)
                pages = (part.fd for part in pages_with_grant(outcome))
                self._send(connection, grant_message(request_id, outcome), outcome.fd, *pages)
                if outcome.place is DISK and outcome.resumed:
                    self._store.taken_up(connection.number, outcome.key)
        except TrimsError as error:
            self._send(connection, error_message(error, request_id))

    def _export(self, connection: Connection, request: Attach) -> None:
        try:
            if request.file is not None:
                pages = self._store.pages_of(connection.number, request.lease, request.file)
                where = {"descriptor": True, "begin": pages.begin, "nbytes": pages.nbytes, "offset": pages.offset}
                self._send(connection, {"id": request.id, **where}, pages.fd)
                return
            export = self._leases.export_of(connection.number, request.lease)
        except TrimsError as error:
            self._send(connection, error_message(error, request.id))
            return
        fds = (export.fd,) if export.fd >= 0 else ()
        self._send(connection, {"id": request.id, "descriptor": bool(fds), **export_message(export)}, *fds)

    def _report_workspace(self, connection: Connection, request: Workspace) -> None:
        try:
            if connection.tenant is not None or connection.peer.uid not in (0, os.geteuid()):
                raise PermissionDeniedError(
                    f"{who(connection)} may not tell this daemon what models need; the daemon runs as user "
                    f"{os.geteuid()}"
                )
            counted = self._leases.report_workspace(connection.number, request.lease, request.nbytes)
        except TrimsError as error:
            self._send(connection, error_message(error, request.id))
        else:
            self._send(connection, {"id": request.id, "workspace_bytes": counted})

    def _ask(self, connection: Connection, request: Open | Resume) -> None:
        if connection.pending >= MAX_PENDING:
            raise BadMessageError(f"more than {MAX_PENDING} requests are waiting for an answer")
        connection.pending += 1
        traceparent = request.traceparent if isinstance(request, Open) else None
        try:
            if traceparent is None and not is_recording():
                self._pass_on(connection, request)
            else:
                self._pass_on_recorded(connection, request, parse_context(traceparent))
        except TrimsError as error:
            self._answered(connection, request.id, error)

    def _pass_on_recorded(self, connection: Connection, request: Open | Resume, parent: SpanContext | None) -> None:
        """Pass a request on as a span, which ends with its answer."""
        model = (request.model or request.path) if isinstance(request, Open) else request.key[:16]
        serving = span("serve open", Level.APPLICATION, parent, model=model)
        try:
            with Within(serving.context):
                self._pass_on(connection, request, serving.end)
        except TrimsError as error:
            serving.end(error)
            raise

    def _pass_on(self, connection: Connection, request: Open | Resume, over: Over = _nothing) -> None:
        """Have the store answer.

        Args:
            over: Called with the error, or None, before the answer is sent.
        """
        tenant = connection.tenant

        def answer(outcome: Outcome) -> None:
            if tenant is not None and isinstance(outcome, ModelNotFoundError) and isinstance(request, Open):
                outcome = ModelNotFoundError(f"no model {name!r} is registered")  # without a hint at others' models
            over(outcome if isinstance(outcome, TrimsError) else None)
            if log.isEnabledFor(logging.DEBUG):
                _send_outcome(connection, request, outcome)
            self._answered(connection, request.id, outcome)

        whose = None if tenant is None else tenant.name
        if isinstance(request, Resume):
            if tenant is not None:
                self._check_key(tenant, request.key)
                if tenant.verified and request.place == str(FILE):
                    raise PermissionDeniedError(f"tenant {tenant.name!r} reads verified images only; open it by name")
            self._store.resume(connection.number, request.key, Place.parse(request.place), answer, tenant=whose)
            return
        name = name_of(connection, request)
        verified = tenant is not None and tenant.verified
        place, avoids = _place(request.place), _place(request.instead_of)
        if request.instead_of is not None:
            self._store.counters["fallbacks"] += 1
        if request.prefetch:
            self._prefetch(connection, request, name, place, over)
            return
        self._store.open(
            name, answer, session=connection.number, place=place, deadline_s=request.deadline_s, tenant=whose,
            verified=verified, avoids=avoids,
        )  # fmt: skip

    def _prefetch(self, connection: Connection, request: Open, name: str, place: Place | None, over: Over) -> None:
        """Begin a load that outlives the session, and answer at once."""
        tenant = connection.tenant
        whose = None if tenant is None else tenant.name
        self._begin_prefetch(whose)
        connection.pending -= 1
        self._send(connection, {"id": request.id, "accepted": True})
        failed = log_failure(f"a prefetch of {name} failed", logging.WARNING if tenant is None else logging.DEBUG)

        def prefetched(outcome: Outcome) -> None:
            over(outcome if isinstance(outcome, TrimsError) else None)
            with self._lock:
                self._prefetching[whose] -= 1
            failed(outcome)

        self._store.open(
            name, prefetched, place=place, deadline_s=request.deadline_s, lease=False, tenant=whose,
            verified=tenant is not None and tenant.verified, hint=True,
        )  # fmt: skip

    def _begin_prefetch(self, tenant: str | None) -> None:
        """Count one more prefetch.

        Raises BusyError if too many run: they outlive their sessions, so no session bounds them.
        """
        most = MAX_PREFETCHES if tenant is None else MAX_PENDING
        with self._lock:
            if self._prefetching[tenant] >= most:
                raise BusyError(f"{most} prefetches run already; ask for fewer at a time")
            self._prefetching[tenant] += 1

    def _check_key(self, tenant: Tenant, key: str) -> None:
        """Raise PermissionDeniedError unless one of the names that stand for an image is the tenant's to open."""
        if not any(tenant.may_open(name) for name in self._store.read.names_of(key)):
            raise PermissionDeniedError(f"tenant {tenant.name!r} may not open the image {key[:16]}; open it by name")

    def _check_device_grant(self, connection: Connection, granted: Granted) -> None:
        """Raise an error if what was granted is gone already, or cannot be granted to this process after all."""
        leases = self._leases
        if not leases.has(connection.number, granted.lease):
            raise DeviceLostError(f"the memory at {granted.place} was lost at this moment; open again")
        if leases.must_outlive(granted.place) and not connection.watch_process():
            leases.take_back(connection.number, granted.lease)
            raise NotSupportedError(
                f"process {connection.peer.pid} cannot be seen from here, and memory at {granted.place} must not be "
                "freed before it has ended: share process ids (containers: --pid=host), or have the daemon use vmm"
            )


def _place(text: str | None) -> Place | None:
    return None if text in (None, ANYWHERE) else Place.wanted(text)


def pages_with_grant(granted: Granted) -> tuple[Pages, ...]:
    """Return pages of files whose descriptors go with the grant: all or, of an artifact of many files, none."""
    return granted.pages if len(granted.pages) <= MAX_FILES_WITH_GRANT else ()


def grant_message(request_id: int, granted: Granted) -> Message:
    """Return the answer to a request that was granted."""
    return {
        "id": request_id,
        "lease": granted.lease,
        "key": granted.key,
        "place": str(granted.place),
        "generation": granted.generation,
        "nbytes": granted.nbytes,
        "digest": granted.digest,
        "warm": granted.warm,
        **({"device": granted.export.device} if granted.export else {}),
        **({"files": len(granted.pages)} if granted.pages else {}),
        **({"pages": [part[1:] for part in pages]} if (pages := pages_with_grant(granted)) else {}),
        **({"anywhere": True} if granted.anywhere else {}),
        **({"foreign": granted.foreign} if granted.foreign else {}),
    }


def name_of(connection: Connection, request: Open) -> str:
    """Return the store's name of the request's model. Raises PermissionDeniedError if this client may not open it."""
    model, tenant = request.model, connection.tenant
    path = request.path if model is None else model.removeprefix(FILE_PREFIX) if _is_path(model) else None
    if tenant is not None:
        if model is None or path is not None:
            raise PermissionDeniedError(
                f"{who(connection)} may open registered models of this daemon, no files by path"
            )
        tenant.check(model)
    return file_name(connection.peer, path) if path is not None else model or ""


def _send_outcome(connection: Connection, request: Open | Resume, outcome: Outcome) -> None:
    """Log what came of a request."""
    asked = f"open {request.model or request.path}" if isinstance(request, Open) else f"resume {request.key[:16]}"
    facts = {"facts": {"model": request.model or request.path}} if isinstance(request, Open) else None
    granted = f"lease {outcome.lease} at {outcome.place}" if isinstance(outcome, Granted) else outcome
    log.debug("session %d, %s: %s: %s", connection.number, who(connection), asked, granted, extra=facts)


def _is_path(model: str) -> bool:
    return model.startswith(FILE_PREFIX)


def who(connection: Connection) -> str:
    """Return a client's description, for an error."""
    return f"user {connection.peer.uid}" if connection.tenant is None else f"tenant {connection.tenant.name!r}"


def file_name(peer: Peer, path: str) -> str:
    """Return the store's name of a file. Refuse another user's paths: the daemon may see more files than that user."""
    where = parse_file_name(path).path
    if peer.uid not in (0, os.geteuid()):
        raise PermissionDeniedError(
            f"user {peer.uid} may open registered models of this daemon, but no files by path; it runs as user "
            f"{os.geteuid()}"
        )
    return FILE_PREFIX + path.removesuffix(where) + os.path.normpath(where)
