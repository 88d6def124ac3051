"""Orders of an operator, as messages of the control door: one place for the blocking and the asyncio client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trims.core.errors import CallerError, DaemonAwayError
from trims.wire import trims_pb2 as pb
from trims.wire.address import CONTROL_SOCKET, default_runtime_dir, why_too_long

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from google.protobuf.message import Message

    from trims.control.answers import TensorInfo

_Message = TypeVar("_Message", bound="Message")


def control_socket(runtime_dir: str | os.PathLike[str] | None) -> Path:
    """Return the control door of the daemon in that folder; None for the default of this user.

    Raises DaemonAwayError for a folder in which no socket can lie.
    """
    folder = Path(runtime_dir or default_runtime_dir()).absolute()
    if refusal := why_too_long(folder):
        raise DaemonAwayError(refusal)
    return folder / CONTROL_SOCKET


def message(kind: type[_Message], **fields: Any) -> _Message:
    """Return a message with the given fields.

    Raises CallerError for a value of a type that the field lacks, None included.
    """
    made = kind()
    for name, value in fields.items():
        try:
            setattr(made, name, value)
        except (TypeError, ValueError) as error:  # ValueError: a text that is no text
            wanted = type(getattr(made, name)).__name__
            raise CallerError(f"{name} is {value!r}; it must be of type {wanted}") from error
    return made


def learn(name: str, key: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> pb.LearnRequest:
    """Keep what a run of a model had."""
    made = message(pb.LearnRequest, name=name, key=key)
    for listed, tensors in ((made.inputs, inputs), (made.outputs, outputs)):
        listed.extend(pb.TensorInfo(name=each.name, dtype=each.dtype, shape=each.shape) for each in tensors)
    return made


def load(name: str, place: str | None, deadline_s: float | None) -> pb.LoadRequest:
    """Have a model at a place."""
    deadline = {} if deadline_s is None else {"deadline_s": deadline_s}
    return message(pb.LoadRequest, name=name, place="" if place is None else place, **deadline)


def evict(name: str, place: str | None, *, drain: bool) -> pb.EvictRequest:
    """Free a model's memory at a place; None for all places."""
    return message(pb.EvictRequest, name=name, place="" if place is None else place, drain=drain)
