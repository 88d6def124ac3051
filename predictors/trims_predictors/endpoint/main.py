"""The endpoint's process: one event loop for HTTP and the pool, from a free port to a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from trims.control import aadmin
from trims.core.errors import ConfigError
from trims.environments.environment_store import EnvironmentStore
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.logs import configure
from trims.trace import spans
from trims.trace.context import current
from trims.wire.endpoint_file import EndpointAddress, leave_address, read_address, withdraw_address
from trims_predictors.children.launcher import Environment
from trims_predictors.endpoint.credentials import Renewal, ServerCertificate
from trims_predictors.endpoint.evaluations import MeasuringRoutes, measuring_routes
from trims_predictors.endpoint.grpc.health import Health
from trims_predictors.endpoint.grpc.service import start_server
from trims_predictors.endpoint.http.app import build_app
from trims_predictors.endpoint.http.connections import ImpatientProtocol, most_connections, shares
from trims_predictors.endpoint.http.listening import accept_no_more, listening
from trims_predictors.endpoint.json.workers import JsonWorkers
from trims_predictors.endpoint.observe.access_log import RequestLog
from trims_predictors.endpoint.observe.tracing import make_exporter
from trims_predictors.endpoint.principals import Principals
from trims_predictors.endpoint.requests.shared_memory import SharedMemory
from trims_predictors.endpoint.service import Service
from trims_predictors.endpoint.settings import is_loopback
from trims_predictors.malloc import keep_memory
from trims_predictors.pool.pool import WorkerPool
from trims_predictors.sandbox.sandbox import PROCESS

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Generator, Iterator

    from fastapi import FastAPI

    from trims_predictors.endpoint.settings import EndpointSettings

#: Seconds after which a connection without requests is closed. Clients that keep one for less do not meet its end.
_KEEP_CONNECTIONS_S = 75
#: Seconds between the end of the pool, which fails running requests, and that of connections: clients get the errors.
_LAST_WORDS_S = 5.0
#: Seconds between the last connection that is accepted and the end of those that are idle.
_LINGER_S = 0.3
#: Read of a body that is too large, beyond what a body may have: clients that have sent it all read the answer.
_MORE_DRAINED_BYTES = 1 << 20
_log = logging.getLogger(__name__)


def serve(settings: EndpointSettings) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests finish. Raises ConfigError, or OSError for the port."""
    settings.validate()
    keep_memory()
    configure(settings.log_level, settings.log_format)
    spans.configure_from_environment("endpoint")
    current.set(None)  # requests are no parts of what has started this process
    isolation = settings.pool.isolation
    _log.info("predictors are isolated at the level %s", isolation.level)
    if isolation.why_not_more:
        _log.warning("predictors have the rights of this user: no namespaces, because %s", isolation.why_not_more)
    try:
        uvloop.run(_serve(settings))
    finally:
        spans.stop()


async def _serve(settings: EndpointSettings) -> None:
    exporter = make_exporter(os.environ)
    with listening(settings.host, settings.port) as sock:
        async with aadmin(settings.pool.runtime_dir) as daemon:
            pool = WorkerPool(settings.pool)
            env_store = None if settings.environments_dir is None else EnvironmentStore(settings.environments_dir)
            picker = InterpreterSelection(settings.environments, env_store)
            shared_memory = SharedMemory(offered=settings.shared_memory, most_bytes=settings.most_body_bytes)
            service = Service(daemon, pool, picker, exporter, shared_memory, variables=settings.model_variables)
            workers = JsonWorkers(settings.most_body_bytes)
            evaluations = measuring_routes(settings)
            callers = Principals(settings.token, settings.tenants)
            certificate = _certificate(settings)
            ending = _Shutdown(pool, settings.drain_s)
            ending.add_sign(service.drain)
            if settings.tenants and settings.pool.isolation.level == PROCESS:
                _log.warning("predictors run at the level process, which is no border between tenants: see --isolation")
            background = [
                asyncio.ensure_future(service.watch()),
                asyncio.ensure_future(Renewal(settings, callers, certificate).run()),
            ]
            try:
                for framework in settings.preload:
                    python = picker.pick(f"--preload {framework}", framework)
                    pool.prepare(Environment(framework, "" if python is None else str(python)))
                pool.begin_recent()
                grpc = await _start_grpc(settings, service, workers, ending, callers=callers, certificate=certificate)
                with _announced(settings, sock, grpc, ending):
                    app = _app(settings, service, workers, evaluations, callers)
                    await _answer(settings, app, sock, ending, certificate)
            finally:
                for task in background:
                    task.cancel()
                await ending.wait()
                await evaluations.close()
                await workers.close()
                await service.close()
                if exporter is not None:
                    await asyncio.to_thread(exporter.close)


class _Shutdown:
    """End of all parts: from its beginning on they take no requests, and those that run may finish.

    1. All say that they are not ready, so that no more requests are sent here. Servers go on answering that.
    2. The pool lets what runs finish.
    3. Servers close their ports, and send the answers that are left.

    Args:
        pool: When the time is over it fails what still runs, so that each client gets an error.
    """

    def __init__(self, pool: WorkerPool, drain_s: float) -> None:
        self._pool = pool
        self._drain_s = drain_s
        self._signs: list[Callable[[], None]] = []
        self._servers: list[Callable[[float], Awaitable[None]]] = []
        self._until_s = 0.0
        self._tasks: list[asyncio.Future[None]] = []

    def add_sign(self, sign: Callable[[], None]) -> None:
        """Have it called once, when the end begins."""
        self._signs.append(sign)

    def add_server(self, stop: Callable[[float], Awaitable[None]]) -> None:
        """Have a server end with the others; `stop` is given the seconds that its last answers may take."""
        self._servers.append(stop)

    def begin(self) -> None:
        """Begin. Idempotent."""
        if not self._tasks:
            for sign in self._signs:
                sign()
            self._until_s = asyncio.get_running_loop().time() + self._drain_s + _LAST_WORDS_S
            self._tasks.append(asyncio.ensure_future(self._drain()))

    async def _drain(self) -> None:
        try:
            await self._pool.close(self._drain_s)
        finally:
            self.release()

    def release(self) -> None:
        """Close the ports now, which another endpoint may be waiting for. Begins, if that has not been done."""
        self.begin()
        left_s = max(_LAST_WORDS_S, self._until_s - asyncio.get_running_loop().time())
        while self._servers:
            self._tasks.append(asyncio.ensure_future(self._servers.pop()(left_s)))

    def raise_priority(self) -> None:
        """Fail now what still runs. Begins, if that has not been done."""
        self.begin()
        self._until_s = 0.0
        self._tasks.append(asyncio.ensure_future(self._pool.close(0.0)))

    async def wait(self) -> None:
        """Wait until all parts have ended. Begin their end, if that has not been done."""
        self.release()
        for task in self._tasks:  # which may grow meanwhile
            await task


def _certificate(settings: EndpointSettings) -> ServerCertificate | None:
    """Return the certificate of both doors; None without TLS. Raises ConfigError, OSError."""
    if settings.certificate is None or settings.private_key is None:
        return None
    return ServerCertificate(settings.certificate, settings.private_key)


async def _start_grpc(
    settings: EndpointSettings,
    service: Service,
    workers: JsonWorkers,
    ending: _Shutdown,
    *,
    callers: Principals,
    certificate: ServerCertificate | None,
) -> str:
    """Start the gRPC server if it is configured. Return its address; empty without one."""
    if settings.grpc_port is None:
        return ""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    health = Health(service.is_ready)
    try:
        server, port = await start_server(
            service,
            health,
            f"{host}:{settings.grpc_port}",
            most_body_bytes=settings.most_body_bytes,
            most_connections=_connections(settings)[1],
            callers=callers,
            certificate=certificate,
            workers=workers,
            access_log=settings.access_log,
            ping_s=settings.grpc_ping_s,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {host}:{settings.grpc_port} for gRPC; choose another --grpc-port or none, or end what "
            "listens there"
        ) from error
    ending.add_server(server.stop)
    ending.add_sign(health.drain)
    await health.start()
    _log.info("serves it over gRPC at %s:%d", host, port)
    return f"{host}:{port}"


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn's own handlers would end the process before the pool has ended.

    Args:
        ending: Shutdown of all parts, this one included.
        lifeline: Descriptor whose end is a signal, too.
    """

    def __init__(
        self, config: uvicorn.Config, ending: _Shutdown, sock: socket.socket, lifeline: int | None = None
    ) -> None:
        super().__init__(config)
        self._ending = ending
        self._sock = sock
        self._lifeline = lifeline
        self._asked = 0
        ending.add_server(self.leave)

    async def leave(self, grace_s: float) -> None:
        """Close the port, and send the answers that are left within these seconds.

        Clients that have connected are answered first: a port that is closed resets them, and they cannot know whether
        their requests were carried out.
        """
        accept_no_more(self._sock)
        await asyncio.sleep(_LINGER_S)
        self.config.timeout_graceful_shutdown = round(grace_s)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` has it ignored
            loop.add_signal_handler(signal.SIGHUP, self._ending.begin)
        if self._lifeline is not None:
            loop.add_reader(self._lifeline, self._look_at_lifeline, self._lifeline)
        yield

    def _look_at_lifeline(self, lifeline: int) -> None:
        if not os.read(lifeline, 1):
            _log.info("ends with the daemon that has started it")
            asyncio.get_running_loop().remove_reader(lifeline)
            self._ending.release()  # the next daemon starts another endpoint, which needs the ports

    def _stop(self) -> None:
        self._asked += 1
        if self._asked > 2:
            self.should_exit = self.force_exit = True
        elif self._asked == 2:
            _log.warning("asked once more to end: requests that run are failed now")
            self._ending.raise_priority()
        else:
            _log.info("ends once the requests that run are answered; Ctrl-C or SIGTERM once more fails them")
            self._ending.begin()


def _app(
    settings: EndpointSettings,
    service: Service,
    workers: JsonWorkers,
    evaluations: MeasuringRoutes,
    callers: Principals,
) -> FastAPI:
    return build_app(
        service,
        most_body_bytes=settings.most_body_bytes,
        token=settings.token,
        loopback=is_loopback(settings.host) and settings.token is None,
        callers=callers,
        workers=workers,
        evaluations=evaluations,
    )


async def _answer(
    settings: EndpointSettings,
    app: FastAPI,
    sock: socket.socket,
    ending: _Shutdown,
    certificate: ServerCertificate | None,
) -> None:
    config = uvicorn.Config(
        RequestLog(app, lines=settings.access_log),
        http=_protocol(settings),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.private_key,
        timeout_keep_alive=_KEEP_CONNECTIONS_S,
    )
    config.load()
    if certificate is not None:
        assert config.ssl is not None
        certificate.connect(config.ssl)
    await _Server(config, ending, sock, sys.stdin.fileno() if settings.supervised else None).serve([sock])


def _protocol(settings: EndpointSettings) -> type[ImpatientProtocol]:
    """HTTP with the bounds that follow from the settings."""
    return ImpatientProtocol.within(
        most_connections=_connections(settings)[0],
        most_drained_bytes=settings.most_body_bytes + _MORE_DRAINED_BYTES,
    )


def _connections(settings: EndpointSettings) -> tuple[int, int]:
    """Return how many connections over HTTP and over gRPC leave enough descriptors for predictors."""
    pool = settings.pool
    of_tenants = sum(pool.of_tenants.get(name, pool.predictors) for name in settings.tenants.by_name)
    most = most_connections(pool.predictors + of_tenants + pool.hot_spares + pool.device_spares)
    return shares(most, grpc=settings.grpc_port is not None)


@contextlib.contextmanager
def _announced(settings: EndpointSettings, sock: socket.socket, grpc: str, ending: _Shutdown) -> Iterator[None]:
    """Say where it answers, in the log and in the daemon's folder, until it ends: the socket listens already."""
    scheme = "https" if settings.certificate else "http"
    host, port = sock.getsockname()[:2]
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    folder = settings.address_dir or settings.pool.runtime_dir
    before = read_address(folder)
    try:
        leave_address(folder, EndpointAddress(os.getpid(), url, grpc))
    except OSError as error:
        _log.warning(
            "`trims run` and `trims status` will not find it: %s cannot be written: %s", folder, error.strerror
        )
    ending.add_sign(partial(withdraw_address, folder, os.getpid(), before))
    _log.info("serves the Open Inference Protocol at %s/v2", url)  # last: `trims run` finds it from now on
    try:
        yield
    finally:
        withdraw_address(folder, os.getpid(), before)
