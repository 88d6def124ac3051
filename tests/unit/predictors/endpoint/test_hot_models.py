"""Which models the endpoint asks hot spares for by itself: those whose manifests state them, for as long as they do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trims_predictors.endpoint import hot_models
from trims_predictors.endpoint.hot_models import HotModels

from trims.core.errors import DaemonAwayError, ManifestError, NotSupportedError

if TYPE_CHECKING:
    import pytest


class Daemon:
    def __init__(self) -> None:
        self.hot: dict[str, Any] = {}
        self.away = False

    async def models(self) -> list[Any]:
        if self.away:
            raise DaemonAwayError("no daemon")
        return [
            SimpleNamespace(name=name, is_default=True, manifest={"predictor": given})
            for name, given in self.hot.items()
        ]


class Unreadable:
    name = "broken"
    is_default = True

    @property
    def manifest(self) -> Any:
        raise ManifestError("no manifest")


class Side:
    """Results of the looks."""

    def __init__(self) -> None:
        self.daemon = Daemon()
        self.wanted: list[str] = []
        self.forgotten: list[str] = []
        self.looks = HotModels(self.daemon, self.deployment, self.forgotten.append, self.wanted.append)  # type: ignore[arg-type]

    async def deployment(self, name: str) -> Any:
        if name == "odd":
            raise NotSupportedError("nothing runs it")
        return name

    def look(self) -> None:
        asyncio.run(self.looks.look())


def test_models_that_state_hot_spares_are_wanted_at_each_look() -> None:
    side = Side()
    side.daemon.hot = {"b": {"hot": 1}, "a": {"hot": 2}, "none": {"hot": 0}, "by-demand": {}, "plain": None}
    side.look()
    assert side.wanted == ["a", "b"]
    side.look()
    assert side.wanted == ["a", "b", "a", "b"]


def test_a_model_that_is_gone_is_forgotten_once() -> None:
    side = Side()
    side.daemon.hot = {"a": {"hot": 1}, "b": {"hot": 1}}
    side.look()
    del side.daemon.hot["a"]
    side.look()
    side.look()
    assert side.forgotten == ["a"]


def test_a_model_that_cannot_be_run_or_read_does_not_stop_the_others() -> None:
    side = Side()
    side.daemon.hot = {"odd": {"hot": 1}, "wrong": {"hot": "x"}, "z": {"hot": 1}}
    listed = side.daemon.models

    async def models() -> list[Any]:
        return [Unreadable(), *await listed()]

    side.daemon.models = models  # type: ignore[method-assign]
    side.look()
    assert side.wanted == ["z"]


def test_while_the_daemon_is_away_nothing_is_forgotten() -> None:
    side = Side()
    side.daemon.hot = {"a": {"hot": 1}}
    side.look()
    side.daemon.away = True
    side.look()
    assert (side.wanted, side.forgotten) == (["a"], [])


def test_a_look_that_fails_is_logged_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hot_models, "_EVERY_S", 0.0)
    looks: list[int] = []

    async def work() -> None:
        done = asyncio.Event()

        async def models() -> list[Any]:
            looks.append(1)
            if len(looks) == 1:
                raise ZeroDivisionError("surprise")
            done.set()
            return []

        watcher = HotModels(SimpleNamespace(models=models), None, None, None)  # type: ignore[arg-type]
        task = asyncio.ensure_future(watcher.run())
        await asyncio.wait_for(done.wait(), 20)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(work())
    assert [each.levelname for each in caplog.records if each.name == hot_models.__name__] == ["ERROR"]
