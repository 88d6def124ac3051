"""Predictors of the endpoint beside a daemon, as `trims ps` shows them. They are asked of the endpoint."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from trims.cli.output import note, notes, say, table
from trims.core.units import format_bytes
from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trims.wire.endpoint_file import EndpointAddress

_DEADLINE_S = 5.0
_MOST_BYTES = 16 << 20
#: Seconds to wait for what is prepared, and between two looks.
_PREPARED_S, _POLL_S = 60.0, 0.1
_COLUMNS = ("model", "idle>", "running>", "starting>", "requests waiting>")


def say_predictors(address: EndpointAddress, token_file: Path | None) -> None:
    """Print how many predictors each model has. What cannot be asked is a note, because the rest was shown."""
    try:
        state = _state(address, token_file)
    except (OSError, ValueError) as error:
        note(f"predictors are not shown: {_why(error, address)}")
        return
    rows = [
        [model, *(str(counts.get(name, 0)) for name in ("idle", "busy", "starting", "queued"))]
        for model, counts in sorted(_counts(state).items())
    ]
    if rows:
        say("\npredictors:")
        table(_COLUMNS, rows)
    for spare in state.get("device_spares", ()):
        say(
            f"process {spare['pid']} waits on {spare['place']} for models of {spare['framework']}: "
            f"{format_bytes(spare['bytes'])} of the device, no weights"
        )
    for model in state.get("preparing", ()):
        say(f"the endpoint prepares for the first request of {model}")


def say_prepared(names: Iterable[str], runtime_dir: str) -> None:
    """Print that the daemon's endpoint is prepared for the first requests of models that were just added.

    A terminal waits for it, at most a minute; a log gets a line that names what is still prepared. Nothing is printed
    without an endpoint, or for one that needs a token.
    """
    address = read_address(runtime_dir)
    if address is None:
        return
    wanted, until_s = set(names), time.monotonic() + _PREPARED_S
    try:
        left = wanted & set(_state(address, None).get("preparing", ()))
        if not notes().is_terminal:
            for name in sorted(left):
                note(f"{name}: the endpoint prepares for its first request, which takes longer until then (trims ps)")
            return
        with notes().status("the endpoint prepares for first requests"):
            while left and time.monotonic() < until_s:
                time.sleep(_POLL_S)
                left = wanted & set(_state(address, None).get("preparing", ()))
    except (OSError, ValueError):  # it has ended, or needs a token: the models are registered all the same
        return
    for name in sorted(wanted):
        note(f"{name}: {'its first request takes longer: the endpoint is busy' if name in left else 'ready'}")


def _counts(state: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    """Return the counts of each model, or of each version of a model that has predictors of several."""
    models, versions = dict(state.get("models", {})), state.get("versions", {})
    names = [each.rpartition("@")[0] for each in versions]
    for name, version in zip(names, versions, strict=True):
        if names.count(name) > 1:
            models.pop(name, None)
            models[version] = versions[version]
    return models


def _state(address: EndpointAddress, token_file: Path | None) -> Mapping[str, Any]:
    import urllib.request  # for a daemon with an endpoint only: it takes long to import

    headers = {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text().strip()}"}
    request = urllib.request.Request(f"{address.url}/state", headers=headers)  # noqa: S310 - its scheme is the endpoint's
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_DEADLINE_S) as answer:
        found: Mapping[str, Any] = json.loads(answer.read(_MOST_BYTES))
    return found


def _why(error: Exception, address: EndpointAddress) -> str:
    import urllib.error

    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"the endpoint at {address.url} needs the operator's token (--token-file)"
    return f"the endpoint at {address.url} does not answer: {getattr(error, 'reason', error)}"
