"""Loads of models, which wait for what the daemon lacks: memory, a lease, the end of a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import BusyError, CapacityError, DeadlineError, InUseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trims.wire.frames import Message
    from trims_predictors.children.worker_process import PredictorProcess

#: Seconds to wait for room, once another predictor has ended for it: the daemon has to see its end.
_ROOM_S = 5.0
#: Seconds to wait for readers of weights that are being evicted, which can be loaded again only after that.
_READERS_S = 10.0


async def load(
    process: PredictorProcess,
    message: Message,
    deadline_s: float,
    make_way: Callable[[], Awaitable[bool]],
) -> Message:
    """Have a process load its model.

    Args:
        process: The predictor's.
        message: Order to load (see `worker`). Without a deadline of its own, the daemon reports at once what there is
            to wait for.
        deadline_s: Seconds of each try; the process ends if it is over.
        make_way: Ends something that holds memory or a lease; says whether there was anything.

    Returns:
        What the process answers.

    Raises:
        BusyError: The weights are being evicted, and are still read.
        TrimsError: Raised by `PredictorProcess.ask`.
    """
    has_waited = False
    while True:
        try:
            return await process.ask(message, deadline_s=deadline_s)
        except DeadlineError:
            if process.dying or message["deadline_s"] is None:
                raise
            message = {**message, "deadline_s": None}  # a load that has begun goes on
        except InUseError as error:
            if has_waited:
                raise BusyError(
                    f"{error}; its predictor has waited for {_READERS_S:g} s: ask again, or name another place"
                ) from error
            has_waited = True
            message = {**message, "deadline_s": _READERS_S}
        except CapacityError:
            if not await make_way():
                raise
            message = {**message, "deadline_s": _ROOM_S}
