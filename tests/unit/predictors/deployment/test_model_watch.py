"""The watch of a daemon's models: what it reports, and while which daemon it may be trusted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from nursing import until
from trims_predictors.deployment import model_watch
from trims_predictors.deployment.model_watch import ModelWatch

from trims.control.answers import ModelChange
from trims.core.errors import CapacityError, DaemonAwayError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest


class Daemon:
    """Sends the changes, and raises the errors, that are put into its queue."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[ModelChange | Exception] = asyncio.Queue()
        self.confirmed: list[int] = []

    async def confirm_models(self, change: ModelChange) -> None:
        await asyncio.sleep(0)
        self.confirmed.append(change.sequence)

    async def watch_models(self, watcher: str = "") -> AsyncGenerator[ModelChange, None]:
        while True:
            found = await self.queue.get()
            if isinstance(found, Exception):
                raise found
            yield found


def change(*names: str, everything: bool = False, outside: bool = False) -> ModelChange:
    return ModelChange(names, everything, outside)


def watched(monkeypatch: pytest.MonkeyPatch, work: Any) -> list[Any]:
    """Run `work(daemon, watch, seen)` beside a watch that does not wait between streams; return what it reported."""
    monkeypatch.setattr(model_watch, "_AGAIN_S", 0.0)
    seen: list[Any] = []

    async def run() -> None:
        daemon = Daemon()
        watch = ModelWatch(daemon, lambda names: seen.append(names if names is None else list(names)))  # type: ignore[arg-type]
        task = asyncio.ensure_future(watch.run())
        await work(daemon, watch, seen)
        task.cancel()
        await asyncio.wait((task,))
        assert not watch.is_complete

    asyncio.run(run())
    return seen


def test_all_models_count_as_changed_when_a_stream_begins_and_names_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        assert not watch.is_complete
        for each in (change(), change("a", "b"), change(everything=True)):
            await daemon.queue.put(each)
        await until(lambda: len(seen) == 5)
        assert (watch.is_complete, watch.streams) == (True, 1)

    assert watched(monkeypatch, work) == [None, [], ["a", "b"], None, []]


def test_a_stream_that_breaks_is_taken_up_again_and_trusted_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        for _ in range(3):
            await daemon.queue.put(DaemonAwayError("no daemon answers"))
        await daemon.queue.put(change())
        await until(lambda: watch.is_complete)
        await daemon.queue.put(DaemonAwayError("it has ended"))
        await until(lambda: not watch.is_complete)
        assert (watch.streams, len(seen)) == (2, 2), "it began once, and ended"
        await daemon.queue.put(change())
        await until(lambda: watch.is_complete)
        assert (watch.streams, seen[2]) == (3, None)

    watched(monkeypatch, work)


def test_a_registry_that_others_write_to_is_never_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        await daemon.queue.put(change(outside=True))
        await daemon.queue.put(change("a", outside=True))
        await until(lambda: ["a"] in seen)
        assert not watch.is_complete

    watched(monkeypatch, work)


def test_an_older_daemon_is_reported_once_and_never_trusted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        for _ in range(3):
            await daemon.queue.put(NotSupportedError("Method not found!"))
        await until(daemon.queue.empty)
        assert (watch.is_complete, seen) == (False, [])

    watched(monkeypatch, work)
    assert len([each for each in caplog.records if each.name.endswith("model_watch")]) == 1


def test_a_watch_goes_on_after_an_error_of_another_kind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        await daemon.queue.put(ZeroDivisionError("surprise"))
        for _ in range(3):
            await daemon.queue.put(CapacityError("48 loads and watches are running"))
        await daemon.queue.put(change())
        await until(lambda: watch.is_complete)
        assert seen == [None, []]

    watched(monkeypatch, work)
    assert [each.levelname for each in caplog.records if each.name.endswith("model_watch")] == ["ERROR", "WARNING"]


def test_changes_are_confirmed_once_they_were_reported_and_the_last_one_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        del watch
        for sequence in range(4):
            await daemon.queue.put(ModelChange(("a",), all=False, outside=False, watch=1, sequence=sequence))
        await until(lambda: daemon.confirmed[-1:] == [3])
        assert len(seen) == 5
        assert daemon.confirmed == sorted(daemon.confirmed)

    watched(monkeypatch, work)


def test_a_daemon_that_numbers_no_watch_gets_no_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(daemon: Daemon, watch: ModelWatch, seen: list[Any]) -> None:
        for each in (change(), change("a")):
            await daemon.queue.put(each)
        await until(lambda: len(seen) == 3)
        assert (daemon.confirmed, watch._confirming) == ([], None)

    watched(monkeypatch, work)
