"""Messages of the attach door, checked: what a client may ask and what the daemon answers.

Every request carries an `id` that its answer repeats; answers may come in another order. Unknown fields are refused, so
that a misspelt one is not silently ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trims.core.errors import BadMessageError
from trims.wire.fields import number, only, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.wire.frames import Message

_KEY = re.compile("[0-9a-f]{32}")
MAX_DEADLINE_S = 1e6


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of every session."""

    protocol: int
    agent: str


@dataclass(frozen=True, slots=True)
class Open:
    """Lease a model (`model`), or any file by its path (`path`); exactly one of the two.

    Attributes:
        id: Repeated by the answer.
        place: Where to have it; None leaves it to the manifest.
        deadline_s: Seconds to wait for a load and for room; None waits for a load but not for room.
        prefetch: Whether only the load is wanted: the answer comes at once and there is no lease.
        instead_of: The place that was preferred to this one and could not serve; None if this is the first choice.
        traceparent: The client's span, in W3C's form; None if it records none.
    """

    id: int
    model: str | None
    path: str | None
    place: str | None
    deadline_s: float | None
    prefetch: bool
    instead_of: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Lease, after a restart of the daemon, exactly the image this client has mapped already, if it was re-adopted."""

    id: int
    key: str
    place: str


@dataclass(frozen=True, slots=True)
class Close:
    """Give a lease back. Without an `id` there is no answer."""

    id: int | None
    lease: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Ask for what lets this client open the memory that one of its leases is for.

    Attributes:
        file: Number of the artifact's file; None for memory of a device.
    """

    id: int
    lease: int
    file: int | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """Report how much of the device this process was seen to need beside the weights that one of its leases is for."""

    id: int
    lease: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """Ask for the template of a program, by its key; without one, the session may make it.

    Attributes:
        name: Name of the program, for `trims ps --templates`.
        unread: Variables that distinguish templates only where an import reads one; the working folder under no name.
        variables: Digests of the other variables' values, to name the one that another template is needed for.
    """

    id: int
    key: str
    name: str
    unread: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Template:
    """Make a template known that this session may make, or state what it takes now.

    Attributes:
        address: Where it is asked for forks.
        nbytes: Memory that it takes.
        left_out: Modules that cannot be in it, and why.
        reads: Names among `Program.unread` that its imports read.
        unfit: Why there can be none, in place of all that; None if there is one.
    """

    id: int
    key: str
    address: str = ""
    pid: int = 0
    nbytes: int = 0
    modules: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    reads: Sequence[str] = ()
    unfit: str | None = None


@dataclass(frozen=True, slots=True)
class Templates:
    """List the templates of this client's user."""

    id: int


@dataclass(frozen=True, slots=True)
class Forget:
    """End templates of this client's user: one, by the beginning of its key or its name, or all (None)."""

    id: int
    template: str | None


Request = Hello | Open | Resume | Close | Attach | Workspace | Program | Template | Templates | Forget


def parse_request(message: Message) -> Request:
    """Check a client's message. Raises BadMessageError saying what is wrong with which field."""
    operation = message.get("op")
    parse = _PARSERS.get(operation) if isinstance(operation, str) else None
    if parse is None:
        raise BadMessageError(f"unknown op {operation!r}; {', '.join(_PARSERS)} are known"[:200])
    return parse(message)


def _parse_close(message: Message) -> Close:
    only(message, "id", "lease")
    return Close(None if "id" not in message else number(message, "id"), number(message, "lease"))


def _parse_attach(message: Message) -> Attach:
    only(message, "id", "lease", "file")
    file = number(message, "file") if "file" in message else None
    return Attach(number(message, "id"), number(message, "lease"), file)


def _parse_workspace(message: Message) -> Workspace:
    only(message, "id", "lease", "nbytes")
    return Workspace(number(message, "id"), number(message, "lease"), number(message, "nbytes"))


def _parse_hello(message: Message) -> Hello:
    only(message, "protocol", "agent")
    return Hello(number(message, "protocol"), text(message, "agent") or "")


def _parse_resume(message: Message) -> Resume:
    only(message, "id", "key", "place")
    return Resume(number(message, "id"), text(message, "key") or "", text(message, "place") or "")


def _parse_open(message: Message, *, prefetch: bool) -> Open:
    only(message, "id", "model", "path", "place", "deadline_s", "instead_of", "traceparent")
    model, path = text(message, "model"), text(message, "path")
    if (model is None) == (path is None):
        raise BadMessageError("an open needs exactly one of 'model' and 'path'")
    place, instead_of = text(message, "place"), text(message, "instead_of")
    traceparent = text(message, "traceparent")
    return Open(number(message, "id"), model, path, place, _deadline(message), prefetch, instead_of, traceparent)


def _parse_program(message: Message) -> Program:
    only(message, "id", "key", "name", "unread", "variables")
    name, variables = text(message, "name") or "", _texts(message, "variables")
    return Program(number(message, "id"), _key(message), name, _texts(message, "unread"), variables)


def _parse_template(message: Message) -> Template:
    if "unfit" in message:
        only(message, "id", "key", "unfit")
        return Template(number(message, "id"), _key(message), unfit=text(message, "unfit"))
    only(message, "id", "key", "address", "pid", "nbytes", "modules", "left_out", "reads")
    reads = message.get("reads", [])
    if not isinstance(reads, list) or not all(isinstance(name, str) for name in reads):
        raise BadMessageError("'reads' must be a list of texts")
    return Template(
        number(message, "id"), _key(message), text(message, "address") or "", number(message, "pid"),
        number(message, "nbytes"), number(message, "modules"), _texts(message, "left_out"), reads,
    )  # fmt: skip


def _parse_templates(message: Message) -> Templates:
    only(message, "id")
    return Templates(number(message, "id"))


def _parse_forget(message: Message) -> Forget:
    only(message, "id", "template")
    return Forget(number(message, "id"), text(message, "template"))


_PARSERS: dict[str, Callable[[Message], Request]] = {
    "open": partial(_parse_open, prefetch=False),
    "prefetch": partial(_parse_open, prefetch=True),
    "close": _parse_close,
    "resume": _parse_resume,
    "attach": _parse_attach,
    "workspace": _parse_workspace,
    "program": _parse_program,
    "template": _parse_template,
    "templates": _parse_templates,
    "forget": _parse_forget,
    "hello": _parse_hello,
}


def _texts(message: Message, name: str) -> dict[str, str]:
    found = message.get(name, {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise BadMessageError(f"{name!r} must be an object whose values are text")
    return found


def _key(message: Message) -> str:
    key = text(message, "key") or ""
    if not _KEY.fullmatch(key):
        raise BadMessageError("'key' must be 32 hexadecimal digits")
    return key


def _deadline(message: Message) -> float | None:
    value = message.get("deadline_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DEADLINE_S:
        raise BadMessageError(f"'deadline_s' must be a number of seconds from 0 to {MAX_DEADLINE_S:.0f}")
    return float(value)
