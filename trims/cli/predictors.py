"""Predictors of the endpoint beside a daemon, as `trims ps` shows them. They are asked of the endpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trims.cli.output import note, say, table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.wire.endpoint_file import EndpointAddress

_DEADLINE_S = 5.0
_MOST_BYTES = 16 << 20
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
