"""A plug-in's registry that is slow or fails: a clear error, and no thread of ours that waits."""

# fault (daemon): a plug-in's registry hangs or raises

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from own_parts import MemoryRegistry
from registries import manifest

from trims.core.errors import DeadlineError, InternalError, ModelNotFoundError
from trims.registry.base import RegistrySettings
from trims.registry.opening import time_limited
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.registry.base import Registry

WHERE = "the trims.registries plug-in 'odd' (odd:open)"
WAIT_S = 100


@pytest.fixture
def inner(tmp_path: Path) -> MemoryRegistry:
    made = MemoryRegistry(RegistrySettings(tmp_path))
    made.put(manifest(), "")
    return made


@pytest.fixture
def limited(inner: MemoryRegistry) -> Registry:
    return time_limited(inner, WHERE)


CALLS: dict[str, Callable[[Registry], object]] = {
    "put": lambda registry: registry.put(manifest(), ""),
    "get": lambda registry: registry.get("m"),
    "raw": lambda registry: registry.raw("m"),
    "names": lambda registry: registry.names(),
    "remove": lambda registry: registry.remove("m"),
}


@pytest.mark.parametrize("method", CALLS)
def test_a_foreign_exception_is_told_with_the_plugin_and_logged(
    inner: MemoryRegistry, limited: Registry, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("who knows")

    setattr(inner, method, fails)
    with pytest.raises(InternalError) as caught:
        CALLS[method](limited)
    assert str(caught.value) == f"{WHERE} failed in `{method}`: KeyError: 'who knows'; its author must correct that"
    assert "Traceback" in caplog.text


def test_an_error_of_the_tree_is_told_as_it_is(limited: Registry) -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'mm' is registered; did you mean m"):
        limited.get("mm")


class Hanging(MemoryRegistry):
    """Registry whose `get` waits until the test lets it go on."""

    def __init__(self, settings: RegistrySettings) -> None:
        super().__init__(settings)
        self.entered, self.go_on = threading.Semaphore(0), threading.Event()

    def get(self, name: str) -> Any:
        self.entered.release()
        assert self.go_on.wait(WAIT_S)
        return super().get(name)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Hanging]:
    made = Hanging(RegistrySettings(tmp_path))
    made.put(manifest(), "")
    yield made
    made.go_on.set()


def test_a_call_that_hangs_is_given_up_and_others_go_on(hanging: Hanging) -> None:
    limited = time_limited(hanging, WHERE, patience_s=0.05)
    with pytest.raises(DeadlineError, match=r"'odd' \(odd:open\) did not answer `get` within 0\.05 s") as caught:
        limited.get("m")
    assert caught.value.retryable
    assert limited.names() == ["m"]


def test_once_all_calls_hang_further_ones_are_refused_and_later_served(hanging: Hanging) -> None:
    limited = time_limited(hanging, WHERE, patience_s=0.05)
    for number in range(8):
        with pytest.raises(DeadlineError, match="did not answer"):
            limited.get(f"m{number}")
    with pytest.raises(DeadlineError, match=r"has 8 calls under way that do not end; `names` was not begun"):
        limited.names()
    hanging.go_on.set()
    patient = time_limited(hanging, WHERE)
    patient._slots = limited._slots  # type: ignore[attr-defined]
    patient._moved_s = limited._moved_s + WAIT_S  # type: ignore[attr-defined]
    assert patient.get("m").name == "m"


def test_a_call_that_hangs_is_not_begun_again_and_takes_no_second_slot(hanging: Hanging) -> None:
    limited = time_limited(hanging, WHERE, patience_s=0.05)
    with pytest.raises(DeadlineError, match="did not answer"):
        limited.get("m")
    for _ in range(20):
        with pytest.raises(DeadlineError, match=r"has not ended `get` of 'm' yet; it was not begun again"):
            limited.get("m")
    assert limited.names() == ["m"]
    hanging.go_on.set()
    until = time.monotonic() + WAIT_S
    while limited._hanging:  # type: ignore[attr-defined]
        assert time.monotonic() < until
    assert time_limited(hanging, WHERE).get("m") == limited.get("m")


def test_calls_beyond_eight_wait_for_those_that_end(hanging: Hanging) -> None:
    limited = time_limited(hanging, WHERE, patience_s=WAIT_S)
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(limited.get, "m") for _ in range(12)]
        for _ in range(8):
            assert hanging.entered.acquire(timeout=WAIT_S)
        assert not hanging.entered.acquire(blocking=False)
        hanging.go_on.set()
        assert [each.result(WAIT_S).name for each in asked] == ["m"] * 12


def test_an_end_that_fails_is_logged_and_the_daemon_ends_all_the_same(
    inner: MemoryRegistry, limited: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise OSError("the lock is lost")

    inner.close = fails  # type: ignore[method-assign]
    limited.close()
    assert "failed in `close`: OSError: the lock is lost" in caplog.text


def test_without_a_thread_the_call_is_refused_and_its_turn_given_back(
    limited: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        for _ in range(9):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                limited.names()
    assert limited.names() == ["m"]


@pytest.fixture
def keeps_versions(tmp_path: Path) -> Iterator[SqliteRegistry]:
    """A registry with two versions, in the place of one of a plug-in that keeps them."""
    made = SqliteRegistry(tmp_path / "registry.db")
    for version in ("1", "2"):
        made.put(manifest(version=version), "")
    yield made
    made.close()


def test_versions_of_a_plugin_are_passed_on(keeps_versions: SqliteRegistry) -> None:
    limited = time_limited(keeps_versions, WHERE)
    assert limited.find("m@2") == keeps_versions.find("m@2")
    assert limited.get("m@2").version == limited.raw("m@2")["version"] == "2"
    assert limited.switch("m", "stable", "2") == limited.versions("m") == keeps_versions.versions("m")
    assert limited.remove_label("m", "stable").aliases.keys() == {""}
    limited.remove_version("m@2")
    assert limited.rows() == ["m"]
