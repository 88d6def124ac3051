"""Models that the endpoint looks at by itself: those that state hot spares, and those that were added."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trims_predictors.endpoint import registered_models
from trims_predictors.endpoint.registered_models import RegisteredModels

from trims.core.errors import DaemonAwayError, ManifestError, ModelNotFoundError, NotSupportedError

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
        self.added: list[str] = []
        self.looks = RegisteredModels(
            self.daemon,  # type: ignore[arg-type]
            self.deployment,
            self.forgotten.append,
            lambda deployment: self.wanted.append(deployment.name),  # type: ignore[attr-defined]
            lambda deployment: self.added.append(deployment.name),  # type: ignore[attr-defined]
        )

    async def deployment(self, name: str) -> Any:
        if name == "odd":
            raise NotSupportedError("nothing runs it")
        if name not in self.daemon.hot:
            raise ModelNotFoundError("it is gone")
        return SimpleNamespace(name=name, hot=(self.daemon.hot[name] or {}).get("hot"))

    def look(self, *, at_all: bool = True) -> None:
        if at_all:
            self.looks.note(None)
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


def test_only_models_that_changed_are_looked_at() -> None:
    side = Side()
    side.daemon.hot = {"a": {"hot": 1}, "b": {"hot": 1}, "plain": None}
    side.look()
    assert side.added == []
    side.looks.note(["b@1.0", "plain", "gone"])
    side.daemon.away = True  # it is not asked for all
    side.look(at_all=False)
    assert (side.wanted, side.added, side.forgotten) == (["a", "b", "b"], ["b", "plain"], [])


def test_a_model_that_states_hot_spares_no_more_is_forgotten() -> None:
    side = Side()
    side.daemon.hot = {"a": {"hot": 1}, "b": {"hot": 1}}
    side.look()
    side.daemon.hot["a"] = None
    del side.daemon.hot["b"]
    side.looks.note(["a", "b"])
    side.look(at_all=False)
    side.look()
    assert side.forgotten == ["a", "b"]


def test_models_that_were_added_while_nothing_was_reported_are_found() -> None:
    side = Side()
    side.daemon.hot = {"a": None}
    side.look()
    side.daemon.hot["b"] = None
    side.look()
    side.look()
    assert side.added == ["b"]


def test_very_many_changes_are_a_look_at_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered_models, "_MOST_CHANGES", 3)
    side = Side()
    side.look()
    side.daemon.hot = {str(number): None for number in range(5)}
    side.looks.note(side.daemon.hot)
    assert side.looks._changed is None
    side.look(at_all=False)
    assert side.added == ["0", "1", "2", "3", "4"]


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
    monkeypatch.setattr(registered_models, "_EVERY_S", 0.0)
    looks: list[int] = []

    async def work() -> None:
        done = asyncio.Event()

        async def models() -> list[Any]:
            looks.append(1)
            if len(looks) == 1:
                raise ZeroDivisionError("surprise")
            done.set()
            return []

        watcher = RegisteredModels(SimpleNamespace(models=models), None, None, None, None)  # type: ignore[arg-type]
        task = asyncio.ensure_future(watcher.run())
        await asyncio.wait_for(done.wait(), 20)
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(work())
    assert [each.levelname for each in caplog.records if each.name == registered_models.__name__] == ["ERROR"]
