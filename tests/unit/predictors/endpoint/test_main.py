"""The endpoint's process; its whole life is in tests/e2e/test_endpoint.py."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest
import uvicorn
from nursing import until
from trims_predictors.deployment.deployment import Settings
from trims_predictors.endpoint.main import _Server, _Shutdown, serve
from trims_predictors.endpoint.settings import EndpointSettings

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = Settings("/run")


def test_settings_are_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="it needs a token"):
        serve(EndpointSettings(FLEET, host="0.0.0.0"))


class Closing:
    """A pool whose requests finish when the test says so, or as soon as they are hurried."""

    def __init__(self, told: list[object]) -> None:
        self._told = told
        self.idle = asyncio.Event()

    async def close(self, grace_s: float) -> None:
        self._told.append(grace_s)
        if grace_s:
            await self.idle.wait()
        else:
            self.idle.set()


class Parts:
    """An end of a pool and of two servers, and the calls that they got, in order."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.pool = Closing(self.told)
        self.ending = _Shutdown(self.pool, 7.0)  # type: ignore[arg-type]
        self.ending.add_sign(lambda: self.told.append("not ready"))
        self.ending.add_server(self._stop)

    async def _stop(self, grace_s: float) -> None:
        self.told.append(("grpc", round(grace_s)))


async def _app(scope: object, receive: object, send: object) -> None:
    raise NotImplementedError


@pytest.fixture
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.usefixtures("handlers")
def test_servers_answer_until_all_runs_have_ended_or_a_second_signal_comes() -> None:
    async def run() -> None:
        parts = Parts()
        server = _Server(uvicorn.Config(_app), parts.ending, parts.sock)
        with server.capture_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: parts.told)
            await _turns()
            assert (server.should_exit, server.force_exit, parts.told) == (False, False, ["not ready", 7.0])
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: server.should_exit)
            assert not server.force_exit
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: server.force_exit)
        await parts.ending.wait()
        parts.sock.close()
        assert parts.told == ["not ready", 7.0, 0.0, ("grpc", 5)]
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)

    asyncio.run(run())


def test_a_server_leaves_once_what_runs_has_finished_with_time_for_its_answers() -> None:
    async def run() -> None:
        parts = Parts()
        server = _Server(uvicorn.Config(_app), parts.ending, parts.sock)
        parts.ending.begin()
        await _turns()
        assert not server.should_exit
        parts.pool.idle.set()
        await parts.ending.wait()
        assert (server.should_exit, server.force_exit, server.config.timeout_graceful_shutdown) == (True, False, 12)
        assert parts.told == ["not ready", 7.0, ("grpc", 12)]
        parts.sock.close()

    asyncio.run(run())


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("asked_before", [False, True])
def test_the_end_of_the_daemon_frees_the_ports_and_hurries_no_request(asked_before: bool) -> None:
    async def run() -> None:
        parts = Parts()
        lifeline, held = os.pipe()
        server = _Server(uvicorn.Config(_app), parts.ending, parts.sock, lifeline)
        with server.capture_signals():
            if asked_before:
                server._stop()
                await _turns()
            os.close(held)
            await until(lambda: server.should_exit)
            await _turns()
            assert (server.force_exit, parts.told) == (False, ["not ready", *parts.told[1:]])
            assert set(parts.told) == {"not ready", 7.0, ("grpc", 12)}
        parts.pool.idle.set()
        await parts.ending.wait()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
        os.close(lifeline)
        parts.sock.close()

    asyncio.run(run())


def test_parts_end_without_a_signal_too() -> None:
    async def run() -> None:
        parts = Parts()
        parts.pool.idle.set()
        await parts.ending.wait()
        assert set(parts.told) == {"not ready", 7.0, ("grpc", 12)}
        parts.sock.close()

    asyncio.run(run())
