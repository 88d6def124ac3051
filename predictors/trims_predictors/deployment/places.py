"""Places that a request allows for a model's weights, in order of preference, such as `gpu,cpu`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from trims.core.errors import CallerError, CapacityError, DeviceLostError, NotSupportedError
from trims.core.place import ANYWHERE, Place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from trims_predictors.deployment.deployment import Deployment

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
#: Places of one request.
_MOST = 8


def parse_places(text: str) -> tuple[str, ...]:
    """Return the places of a text such as `gpu:1`, or `gpu,cpu`. Raises CallerError for what is no place."""
    names = [each.strip() for each in text.split(",")]
    if len(names) > _MOST:
        raise CallerError(f"{text[:80]!r} names {len(names)} places; name {_MOST} at most")
    found = tuple(each if each == ANYWHERE else str(Place.wanted(each)) for each in names)
    if len(set(found)) < len(found):
        raise CallerError(f"{text!r} names a place twice; name each once, the best first")
    return found


async def first_that_serves(
    deployment: Deployment,
    places: Sequence[str],
    ask: Callable[[Deployment], Awaitable[_Answer]],
    may_go_on: Callable[[], bool] = lambda: True,
) -> tuple[Deployment, _Answer]:
    """Return the answer from the first place that can give one, and its deployment.

    A place is passed over that has no room, for the weights or for a run, that the daemon or the framework lacks, or
    whose device is lost. Other errors are the request's at every place.

    Args:
        places: Best first; none for that of its manifest.
        ask: Asks the deployment of one place.
        may_go_on: Whether the next place may be asked, which is not so once parts of an answer were sent.

    Raises what `ask` raises at the last place.
    """
    for place in places[:-1]:
        here = deployment.at(place)
        try:
            return here, await ask(here)
        except (CapacityError, NotSupportedError, DeviceLostError) as error:
            if not may_go_on():
                raise
            _log.info("%s is not answered at %s, the next place is tried: %s", deployment.subject, place, error)
    last = deployment.at(places[-1]) if places else deployment
    return last, await ask(last)
