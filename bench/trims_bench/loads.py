"""Loads of an endpoint, or of another server, by the generator of `trims_bench.workloads`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trims_bench.endpoint import EndpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trims_bench.endpoint import EndpointProcess
    from trims_bench.workloads.result import Workload
    from trims_bench.workloads.scenarios import Target


def target(url: str, models: Mapping[str, tuple[bytes, dict[str, str]]]) -> Target:
    """Return the target of a generator: one request for each model, with its name in the path of the URL."""
    from trims_bench.workloads.order import Server, http_request
    from trims_bench.workloads.scenarios import Target

    parts = urlsplit(url)
    requests = [
        http_request(parts.path.replace("MODEL", name), parts.netloc, body, headers)
        for name, (body, headers) in models.items()
    ]
    return Target(Server(parts.hostname or "", parts.port or 0), list(models), requests)


def requests_to(endpoint: EndpointProcess, models: Mapping[str, tuple[bytes, dict[str, str]]]) -> Target:
    """Return the target of inference requests to an endpoint; see `target`."""
    return target(f"http://127.0.0.1:{endpoint.port}/v2/models/MODEL/infer", models)


def load_of(scenario: str, target: Target, **options: object) -> Workload:
    """Make a load of a scenario of `trims load`, with its options, and return its result."""
    from trims_bench.workloads.scenarios import choose, run_scenario

    return run_scenario(choose(scenario, options), target)


def ns_of(found: Workload, name: str) -> int:
    """Return the nanoseconds of a percentile, such as `p99`. Raises EndpointError if nothing was answered."""
    if found.latency is None:
        raise EndpointError(f"no request was answered: {dict(found.errors)}")
    seconds: float = getattr(found.latency, name)
    return max(1, round(seconds * 1e9))
