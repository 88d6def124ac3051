"""A plug-in's registry that is slow, fails, or answers nonsense: a clear error, and no thread of ours that waits."""

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
from trims.registry.guarded import Guarded
from trims.registry.sqlite import SqliteRegistry
from trims.registry.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WHERE = "the trims.registries plug-in 'odd' (odd:open)"
WAIT_S = 100


@pytest.fixture
def inner(tmp_path: Path) -> MemoryRegistry:
    made = MemoryRegistry(RegistrySettings(tmp_path))
    made.put(manifest(), "")
    return made


@pytest.fixture
def guarded(inner: MemoryRegistry) -> Guarded:
    return Guarded(inner, WHERE)


def answers(inner: MemoryRegistry, method: str, answer: object) -> None:
    setattr(inner, method, lambda *_, **__: answer)


CALLS: dict[str, Callable[[Guarded], object]] = {
    "put": lambda registry: registry.put(manifest(), ""),
    "get": lambda registry: registry.get("m"),
    "raw": lambda registry: registry.raw("m"),
    "names": lambda registry: registry.names(),
    "remove": lambda registry: registry.remove("m"),
}


@pytest.mark.parametrize("method", CALLS)
def test_a_foreign_exception_is_told_with_the_plugin_and_logged(
    inner: MemoryRegistry, guarded: Guarded, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("who knows")

    setattr(inner, method, fails)
    with pytest.raises(InternalError) as caught:
        CALLS[method](guarded)
    assert str(caught.value) == f"{WHERE} failed in `{method}`: KeyError: 'who knows'; its author must correct that"
    assert "Traceback" in caplog.text


def test_an_error_of_the_tree_is_told_as_it_is(guarded: Guarded) -> None:
    with pytest.raises(ModelNotFoundError, match="no model 'mm' is registered; did you mean m"):
        guarded.get("mm")


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        ("put", None, "the Manifest of 'm'"),
        ("get", {"name": "m"}, "the Manifest of 'm'"),
        ("raw", [], "a mapping that JSON can carry"),
        ("raw", {"x": object()}, "a mapping that JSON can carry"),
        ("raw", {"x": float("nan")}, "a mapping that JSON can carry"),
        ("names", None, "a sorted list of different names"),
        ("names", ["b", "a"], "a sorted list of different names"),
        ("names", ["a", "a"], "a sorted list of different names"),
        ("names", [1], "a sorted list of different names"),
        ("names", ["x" * 1000, ""], "a sorted list of different names"),
    ],
)
def test_an_answer_of_the_wrong_type_is_told_with_the_plugin(
    inner: MemoryRegistry, guarded: Guarded, method: str, answer: object, expected: str
) -> None:
    answers(inner, method, answer)
    with pytest.raises(InternalError) as caught:
        CALLS[method](guarded)
    assert str(caught.value).startswith(f"{WHERE} answered `{method}` with ")
    assert str(caught.value).endswith(f", which is not {expected}; its author must correct that")
    assert len(str(caught.value)) < 300


def test_the_manifest_of_another_name_is_the_wrong_answer(inner: MemoryRegistry, guarded: Guarded) -> None:
    answers(inner, "get", inner.put(manifest("other"), ""))
    with pytest.raises(InternalError, match="is not the Manifest of 'm'"):
        guarded.get("m")


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
    guarded = Guarded(hanging, WHERE, patience_s=0.05)
    with pytest.raises(DeadlineError, match=r"'odd' \(odd:open\) did not answer `get` within 0\.05 s") as caught:
        guarded.get("m")
    assert caught.value.retryable
    assert guarded.names() == ["m"]


def test_once_all_calls_hang_further_ones_are_refused_and_later_served(hanging: Hanging) -> None:
    guarded = Guarded(hanging, WHERE, patience_s=0.05)
    for number in range(8):
        with pytest.raises(DeadlineError, match="did not answer"):
            guarded.get(f"m{number}")
    with pytest.raises(DeadlineError, match=r"has 8 calls under way that do not end; `names` was not begun"):
        guarded.names()
    hanging.go_on.set()
    patient = Guarded(hanging, WHERE)
    patient._slots = guarded._slots
    patient._moved_s = guarded._moved_s + WAIT_S
    assert patient.get("m").name == "m"


def test_a_call_that_hangs_is_not_begun_again_and_takes_no_second_slot(hanging: Hanging) -> None:
    guarded = Guarded(hanging, WHERE, patience_s=0.05)
    with pytest.raises(DeadlineError, match="did not answer"):
        guarded.get("m")
    for _ in range(20):
        with pytest.raises(DeadlineError, match=r"has not ended `get` of 'm' yet; it was not begun again"):
            guarded.get("m")
    assert guarded.names() == ["m"]
    hanging.go_on.set()
    until = time.monotonic() + WAIT_S
    while guarded._hanging:
        assert time.monotonic() < until
    assert Guarded(hanging, WHERE).get("m") == guarded.get("m")


def test_calls_beyond_eight_wait_for_those_that_end(hanging: Hanging) -> None:
    guarded = Guarded(hanging, WHERE, patience_s=WAIT_S)
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(guarded.get, "m") for _ in range(12)]
        for _ in range(8):
            assert hanging.entered.acquire(timeout=WAIT_S)
        assert not hanging.entered.acquire(blocking=False)
        hanging.go_on.set()
        assert [each.result(WAIT_S).name for each in asked] == ["m"] * 12


def test_an_end_that_fails_is_logged_and_the_daemon_ends_all_the_same(
    inner: MemoryRegistry, guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise OSError("the lock is lost")

    inner.close = fails  # type: ignore[method-assign]
    guarded.close()
    assert "failed in `close`: OSError: the lock is lost" in caplog.text


def test_without_a_thread_the_call_is_refused_and_its_turn_given_back(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        for _ in range(9):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                guarded.names()
    assert guarded.names() == ["m"]


# -- versions ----------------------------------------------------------------------------------------------------------

VERSION_CALLS: dict[str, Callable[[Guarded], object]] = {
    "find": lambda registry: registry.find("m@1"),
    "versions": lambda registry: registry.versions("m"),
    "rows": lambda registry: registry.rows(),
    "switch": lambda registry: registry.switch("m", "stable", "1"),
    "remove_label": lambda registry: registry.remove_label("m", "stable"),
}


@pytest.fixture
def keeps_versions(tmp_path: Path) -> Iterator[SqliteRegistry]:
    """A registry with two versions, in the place of one of a plug-in that keeps them."""
    made = SqliteRegistry(tmp_path / "registry.db")
    for version in ("1", "2"):
        made.put(manifest(version=version), "")
    yield made
    made.close()


def test_versions_of_a_plugin_are_passed_on(keeps_versions: SqliteRegistry) -> None:
    guarded = Guarded(keeps_versions, WHERE)
    assert guarded.find("m@2") == keeps_versions.find("m@2")
    assert guarded.get("m@2").version == guarded.raw("m@2")["version"] == "2"
    assert guarded.switch("m", "stable", "2") == guarded.versions("m") == keeps_versions.versions("m")
    assert guarded.remove_label("m", "stable").aliases.keys() == {""}
    guarded.remove_version("m@2")
    assert guarded.rows() == ["m"]


@pytest.mark.parametrize("method", VERSION_CALLS)
@pytest.mark.parametrize("answer", [None, "m", [1], Versions("other", ("1",))], ids=repr)
def test_a_wrong_answer_about_versions_is_reported_with_the_plugin(
    keeps_versions: SqliteRegistry, method: str, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeps_versions, method, lambda *_, **__: answer)
    with pytest.raises(InternalError, match=f"answered `{method}` with"):
        VERSION_CALLS[method](Guarded(keeps_versions, WHERE))
