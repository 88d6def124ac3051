"""The endpoint's process; its whole life is in tests/e2e/test_endpoint.py."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import uvicorn
from trims_predictors.endpoint.main import _Ending, _listening, _Server, serve
from trims_predictors.endpoint.settings import EndpointSettings
from trims_predictors.records import Settings

from trims.core.errors import ConfigError

FLEET = Settings("/run")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_found_and_a_taken_one_is_named(host: str) -> None:
    with _listening(EndpointSettings(FLEET, host=host, port=0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f":{port}: Address already in use; choose another --port"):
            _listening(EndpointSettings(FLEET, host=host, port=port)).__enter__()


def test_settings_are_checked_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="it needs a token"):
        serve(EndpointSettings(FLEET, host="0.0.0.0"))


def test_signals_ask_for_a_graceful_end_first_and_for_a_quick_one_then() -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise NotImplementedError

    async def run() -> None:
        told: list[str] = []
        server = _Server(uvicorn.Config(app), lambda: told.append("ending"))
        with server.capture_signals():
            for expected in ((True, False), (True, True)):
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                assert (server.should_exit, server.force_exit) == expected
                assert told, "the others are told at the first signal"
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    before = signal.getsignal(signal.SIGINT)
    asyncio.run(run())
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("asked_before", [False, True])
def test_the_end_of_the_daemon_asks_for_a_graceful_end_and_hurries_none(asked_before: bool) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        raise NotImplementedError

    async def run() -> None:
        told: list[str] = []
        lifeline, held = os.pipe()
        server = _Server(uvicorn.Config(app), lambda: told.append("ending"), lifeline)
        with server.capture_signals():
            if asked_before:
                server._stop()
            os.close(held)
            await asyncio.sleep(0.05)
            assert (server.should_exit, server.force_exit, told) == (True, False, ["ending"])
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
        os.close(lifeline)

    before = signal.getsignal(signal.SIGINT)
    asyncio.run(run())
    signal.signal(signal.SIGINT, before)


def test_all_parts_begin_to_end_at_once_and_a_second_signal_hurries_them() -> None:
    told: list[object] = []

    class Closing:
        async def close(self, grace_s: float) -> None:
            told.append(grace_s)

    async def stop() -> None:
        told.append("grpc")

    async def run() -> None:
        ending = _Ending(Closing(), 7.0)
        ending.add_grpc(stop)
        ending.begin()
        await asyncio.sleep(0)
        assert told == [7.0, "grpc"], "gRPC takes no calls while HTTP drains"
        ending.begin()
        await ending.wait()
        assert told == [7.0, "grpc", 0.0]

    asyncio.run(run())


def test_parts_end_without_a_signal_too() -> None:
    told: list[float] = []

    class Closing:
        async def close(self, grace_s: float) -> None:
            told.append(grace_s)

    async def run() -> None:
        await _Ending(Closing(), 7.0).wait()

    asyncio.run(run())
    assert told == [7.0]
