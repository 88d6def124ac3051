"""Parts of an answer as they come, for protocols that stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from trims_predictors.deployment.deployment import Answer, Deployment
    from trims_predictors.tensors import Tensor

    OnPart = Callable[[Sequence[Tensor]], None]

#: Bytes of parts that may wait for a client that does not read, and what each takes beside its tensors.
_MOST_WAITING_BYTES, _A_PART_BYTES = 8 << 20, 512


class Streamed(NamedTuple):
    """A part of an answer, or its end.

    Attributes:
        tensors: Outputs of the part; of the end, all that was asked for.
        end: The whole answer and who gave it; None for a part.
    """

    tensors: Sequence[Tensor]
    end: tuple[Deployment, Answer] | None = None


async def parts_of(start: Callable[[OnPart], Awaitable[tuple[Deployment, Answer]]]) -> AsyncGenerator[Streamed, None]:
    """Yield the parts of an answer as they come, then its end. A caller that closes the generator ends the run.

    Args:
        start: Runs a request, given what takes its parts.

    Raises what the request raises; CapacityError for a client that lets too many parts wait.
    """
    waiting: asyncio.Queue[Streamed | None] = asyncio.Queue()
    waiting_bytes = 0
    overflow = False

    def take(tensors: Sequence[Tensor]) -> None:
        nonlocal overflow, waiting_bytes
        waiting_bytes += _bytes_of(tensors)
        if waiting_bytes <= _MOST_WAITING_BYTES:
            waiting.put_nowait(Streamed(tensors))
        else:
            overflow = True
            running.cancel()

    running = asyncio.ensure_future(start(take))
    running.add_done_callback(lambda _: waiting.put_nowait(None))
    try:
        while (part := await waiting.get()) is not None:
            waiting_bytes -= _bytes_of(part.tensors)
            yield part
        if overflow:
            raise CapacityError(f"more than {_MOST_WAITING_BYTES >> 20} MiB of the answer wait for their client")
        deployment, answer = await running
        yield Streamed(answer.outputs, (deployment, answer))
    finally:
        running.cancel()


def _bytes_of(tensors: Sequence[Tensor]) -> int:
    return _A_PART_BYTES + sum(each.nbytes for each in tensors)
