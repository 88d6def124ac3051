"""grpc.health.v1: the checks of load balancers and Kubernetes before they send requests.

The endpoint serves while the daemon does. The daemon is asked at each check, as over HTTP, and now and then for
watchers, who are notified of a change that they did not ask for. The servicer of grpcio-health-checking is not used:
its watchers keep a server that ends waiting for them. Here they get NOT_SERVING and their streams end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

#: The whole server, and its one service by its full name.
SERVICES = ("", "inference.GRPCInferenceService")
#: Seconds between two questions to the daemon.
_LOOK_S = 2.0
_Answer = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """Handlers of the health protocol, whose method names are the protocol's, and the status that they report.

    Args:
        is_ready: Whether requests can be answered.
        look_s: Seconds between two questions.
    """

    def __init__(self, is_ready: Callable[[], Awaitable[bool]], look_s: float = _LOOK_S) -> None:
        self._is_ready = is_ready
        self._look_s = look_s
        self._serving = False
        self._draining = False
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def Check(self, request: Any, context: Any) -> Any:
        """The status of a service now. An unknown one is NOT_FOUND, as the protocol says."""
        if request.service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r:.80}")
        await self._look()
        return _Answer(status=self._status())

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The status of a service now and whenever it changes, until the endpoint ends."""
        last = None
        while True:
            changed, draining = self._changed, self._draining
            status = self._status() if request.service in SERVICES else _Answer.SERVICE_UNKNOWN
            if status != last:
                last = status
                yield _Answer(status=status)
            if draining:  # and the watcher was notified
                return
            await changed.wait()

    def _status(self) -> Any:
        return _Answer.SERVING if self._serving and not self._draining else _Answer.NOT_SERVING

    async def start(self) -> None:
        """Find out the status, and have it followed until `drain`."""
        self._serving = await self._is_ready()
        self._looking = asyncio.ensure_future(self._follow())

    def drain(self) -> None:
        """Say NOT_SERVING from now on, while running calls finish. Idempotent."""
        self._draining = True
        if self._looking is not None:
            self._looking.cancel()
        self._notify()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self._look()

    async def _look(self) -> None:
        serving = await self._is_ready()
        if serving != self._serving:
            self._serving = serving
            self._notify()

    def _notify(self) -> None:
        """Wake all watchers; each has the event that was there when it looked."""
        self._changed.set()
        self._changed = asyncio.Event()
