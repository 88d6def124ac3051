"""Overview for the web page: the daemon, its places, its models and their predictors, in one JSON object.

The daemon is looked at once for all open pages. Not covered: the page itself (`page_routes`).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import trims
from trims.core.errors import NotSupportedError, TrimsError
from trims.manifests.references import name_of
from trims_predictors.endpoint.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.control import AsyncAdmin, Model, Replica, Stats, Status
    from trims.control.answers import Transfer

#: The page asks every second.
_FRESH_S = 0.9
#: Seconds for the daemon's answer; after that it is shown as away.
_PATIENCE_S = 1.0
_NO_PREDICTORS = {"starting": 0, "idle": 0, "busy": 0, "queued": 0}


@dataclass(frozen=True, slots=True)
class _Found:
    """Result of one look at the daemon."""

    daemon: Mapping[str, Any]
    places: list[dict[str, Any]]
    models: list[dict[str, Any]]
    transfers: list[dict[str, Any]]


class Overview:
    """The state that the page polls.

    Args:
        daemon: The control door of the daemon.
        trouble: Why nothing can run a model; empty if something can.
        failure: Why a model could not be loaded last; empty if nothing is known.
    """

    def __init__(self, daemon: AsyncAdmin, trouble: Callable[[Model], str], failure: Callable[[Model], str]) -> None:
        self._daemon = daemon
        self._trouble = trouble
        self._failure = failure
        self._look = SingleFlight(self._ask, fresh_s=_FRESH_S, patience_s=_PATIENCE_S)

    async def page(self, report: Callable[[], Mapping[str, Any]]) -> bytes:
        """The state as JSON, with the report of the pool."""
        found = await self._look.look() or _away(f"the daemon has not answered within {_PATIENCE_S:g} s")
        # In a thread, because many models make it long; what it reads of the pool is a copy.
        return await asyncio.to_thread(_write, found, report())

    def expire(self) -> None:
        """Have the next page look at the daemon again: an order was carried out."""
        self._look.expire()

    async def close(self) -> None:
        """Give up a look that is under way."""
        await self._look.close()

    async def _ask(self) -> _Found:
        try:
            models, status = await self._daemon.models(), await self._daemon.status()
            transfers = await self._transfers()
        except TrimsError as error:
            return _away(str(error))
        return await asyncio.to_thread(self._found, models, status, transfers)

    async def _transfers(self) -> list[Transfer]:
        """Return the transfers that run; none for a daemon that is older than they are."""
        try:
            return await self._daemon.transfers()
        except NotSupportedError:
            return []

    def _found(self, models: list[Model], status: Status, transfers: list[Transfer]) -> _Found:
        daemon = {
            "status": status.health.status,
            "trouble": "",
            "uptime_s": round(status.stats.uptime_s, 1),
            "sessions": status.stats.sessions,
            "leases": status.stats.leases,
        }
        ordered = sorted(models, key=lambda each: each.name)
        models_json = [_as_json(model, trouble=self._trouble(model), failure=self._failure(model)) for model in ordered]
        return _Found(daemon, _places(status.stats), models_json, [asdict(each) for each in transfers])


def _away(why: str) -> _Found:
    return _Found({"status": "away", "trouble": why, "uptime_s": 0, "sessions": 0, "leases": 0}, [], [], [])


def _places(stats: Stats) -> list[dict[str, Any]]:
    devices = {device.place: device for device in stats.devices}
    return [
        {
            "place": tier.place,
            "used_bytes": tier.charged_bytes,
            # What is served in place, or kept elsewhere, has no limit of ours.
            "capacity_bytes": None if tier.place in ("file", "cloud") else tier.capacity_bytes,
            "replicas": tier.replicas,
            "policy": tier.policy,
            "device": devices[tier.place].name if tier.place in devices else "",
            "trouble": devices[tier.place].trouble if tier.place in devices else "",
        }
        for tier in stats.tiers
    ]


def _as_json(model: Model, *, trouble: str, failure: str) -> dict[str, Any]:
    return {
        "name": model.name if model.is_default else model.opened_as,
        "version": model.version,
        "description": model.description,
        "framework": model.framework,
        "format": model.format,
        "image_bytes": model.image_bytes,
        "trouble": trouble,
        "failure": failure,
        "replicas": [_replica(each) for each in model.replicas],
    }


def _replica(replica: Replica) -> dict[str, Any]:
    return {
        "place": replica.place,
        "state": replica.state,
        "bytes": replica.nbytes,
        "leases": replica.leases,
        "waiters": replica.waiters,
        "pinned": replica.pinned,
        "keep_left_s": replica.keep_left_s,
    }


def _write(found: _Found, report: Mapping[str, Any]) -> bytes:
    running, versions, hot = report["models"], report["versions"], report["hot"]
    several = {name_of(each["name"]) for each in found.models if "@" in each["name"]}

    def predictors(model: Mapping[str, Any]) -> dict[str, int]:
        name = name_of(model["name"])
        counts = versions.get(f"{name}@{model['version']}") if name in several else running.get(name)
        return {**(counts or _NO_PREDICTORS), "hot": hot.get(model["name"], 0)}

    message = {
        "version": trims.__version__,
        "daemon": found.daemon,
        "places": found.places,
        "transfers": found.transfers,
        "models": [{**each, "predictors": predictors(each)} for each in found.models],
        "spares": report["spares"],
        "device_spares": report["device_spares"],
        "templates": report["templates"],
    }
    return json.dumps(message, separators=(",", ":")).encode()
