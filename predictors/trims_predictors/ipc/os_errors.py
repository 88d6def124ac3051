"""Errors of the system at the start of a process, or at a message to one, in our words: what lacks, and what helps."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from trims_client.connection.sockets import explained, lacks_descriptors

from trims.core.errors import CapacityError, PredictorError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A process more than the user may have, or no memory for one.
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)


def as_trims_error(error: Exception, what: str) -> TrimsError:
    """The error to raise for one of the system; it begins with `what`.

    A lack of descriptors, processes or memory passes, so it is a CapacityError, which clients try again.
    """
    if isinstance(error, TrimsError):
        return error
    if lacks_descriptors(error):
        return explained(error, what)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return CapacityError(
            f"{what}: {error.strerror}: no process or memory left; end other programs, or raise the limit of processes "
            "(`ulimit -u`)"
        )
    return PredictorError(f"{what}: {error}")


@contextlib.contextmanager
def as_trims_errors(what: str) -> Iterator[None]:
    """Turn errors of the system into errors of ours (see `as_trims_error`)."""
    try:
        yield
    except TrimsError:
        raise
    except OSError as error:
        raise as_trims_error(error, what) from error
