"""A plug-in's tier that fails or hands out what no session may have: an error that names it, and nothing is left."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import CapacityError, ConfigError, InternalError
from trims.core.place import CPU
from trims.testing.tiers import KEY, TierContract, an_image, put
from trims.tiers import guarded
from trims.tiers.disk import DiskTier
from trims.tiers.guarded import GuardedTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.tiers.base import Draft, Extent

WHERE = "the trims.tiers plug-in 'odd' (odd:open)"


class TestAGuardedTier(TierContract):
    """The guard changes nothing of a tier that is right."""

    def make(self, folder: Path, capacity_bytes: int = 1 << 20) -> GuardedTier:
        return GuardedTier(DiskTier(folder / "images", capacity_bytes), WHERE)

    def traces(self, folder: Path) -> set[str]:
        images = folder / "images"
        return set(os.listdir(images)) if images.exists() else set()


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[DiskTier]:
    made = DiskTier(tmp_path / "images", 1 << 20)
    yield made
    made.close()


@pytest.fixture
def tier(inner: DiskTier) -> GuardedTier:
    return GuardedTier(inner, WHERE)


def raising(error: Exception) -> Callable[..., Any]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def test_a_foreign_exception_is_told_with_the_plugin_and_logged(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extent = put(tier, an_image())
    draft = tier.create("b" * 64, 1, 4096, allocate=True)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: tier.create(KEY, 2, 4096, allocate=True),
        "seal": lambda: tier.seal(draft, KEY, ""),
        "abort": lambda: tier.abort(draft),
        "explain": lambda: tier.explain(OSError(), 1),
        "free": lambda: tier.free(extent),
        "scan": lambda: list(tier.scan()),
        "leave": lambda: tier.leave(extent),
        "verify": lambda: tier.verify(extent, threading.Event(), None),
    }
    for method, call in calls.items():
        with monkeypatch.context() as patched:
            patched.setattr(inner, method, raising(KeyError("lost")))
            with pytest.raises(InternalError) as caught:
                call()
        assert str(caught.value) == f"{WHERE} failed in `{method}`: KeyError: 'lost'; its author must correct that"
    assert caplog.text.count("Traceback") == len(calls)
    tier.abort(draft)


def test_errors_of_the_tree_and_of_the_kernel_are_told_as_they_are(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (CapacityError("full"), OSError(errno.EIO, "Input/output error")):
        monkeypatch.setattr(inner, "create", raising(error))
        with pytest.raises(type(error)) as caught:
            tier.create(KEY, 1, 4096, allocate=True)
        assert caught.value is error


def test_a_scan_that_the_kernel_refuses_names_the_plugin(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inner, "scan", raising(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(ConfigError, match=r"'odd' \(odd:open\) cannot be scanned: .*Input/output error"):
        list(tier.scan())


def test_an_end_that_fails_is_logged(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(inner, "close", raising(KeyError("lost")))
        tier.close()
    assert "could not be closed: " in caplog.text


def test_a_draft_of_another_length_is_given_back_and_refused(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = inner.create

    def short(key: str, generation: int, nbytes: int, *, allocate: bool) -> Draft:
        return real(key, generation, nbytes - 1, allocate=allocate)

    monkeypatch.setattr(inner, "create", short)
    with pytest.raises(InternalError, match="answered `create` with 4095 bytes where 4096 are meant; its author must"):
        tier.create(KEY, 1, 4096, allocate=True)
    assert list((tmp_path / "images").iterdir()) == []


@pytest.mark.parametrize("answer", [None, 3, "draft"])
def test_what_is_no_draft_is_refused(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    monkeypatch.setattr(inner, "create", lambda *_, **__: answer)
    with pytest.raises(InternalError, match=f"with {type(answer).__name__}, which is no Draft"):
        tier.create(KEY, 1, 4096, allocate=True)


def writable(extent: Extent) -> None:
    os.chmod(extent.label, 0o600)
    fd = os.open(extent.label, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(fd, extent.fd, inheritable=False)
    os.close(fd)


def short(extent: Extent) -> None:
    extent.nbytes += 1


def closed(extent: Extent) -> None:
    os.close(extent.fd)
    extent.fd = 1 << 20


DAMAGES: dict[str, tuple[Callable[[Extent], object], str]] = {
    "writable": (writable, "a writable descriptor"),
    "short": (short, "bytes where"),
    "closed": (closed, "no descriptor that is open"),
    "elsewhere": (lambda extent: setattr(extent, "place", CPU), "an extent at cpu"),
    "unlabelled": (lambda extent: setattr(extent, "digest", ""), "an extent without a label, key or digest"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_replica_that_no_session_may_have_is_refused(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch, damage: str, tmp_path: Path
) -> None:
    harm, said = DAMAGES[damage]
    real, real_scan = inner.seal, inner.scan

    def sealed(draft: Draft, key: str, digest: str) -> Extent:
        extent = real(draft, key, digest)
        harm(extent)
        return extent

    def scanned() -> Iterator[Extent]:
        for extent in real_scan():
            harm(extent)
            yield extent

    with monkeypatch.context() as patched:
        patched.setattr(inner, "seal", sealed)
        with pytest.raises(InternalError, match=f"answered `seal` with .*{said}.*; its author must correct that"):
            put(tier, an_image())
    assert list((tmp_path / "images").iterdir()) == []
    if damage == "closed":
        return
    put(tier, an_image())
    tier.close()
    monkeypatch.setattr(inner, "scan", scanned)
    with pytest.raises(InternalError, match=f"answered `scan` with .*{said}"):
        list(tier.scan())


def test_the_replica_of_another_image_is_refused(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = put(inner, an_image(), key="b" * 64)
    monkeypatch.setattr(inner, "seal", lambda draft, *_: inner.abort(draft) or other)
    with pytest.raises(InternalError, match="answered `seal` with an extent of another image"):
        put(tier, an_image())


def test_an_explanation_that_is_none_leaves_the_error_as_it_is(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EIO, "Input/output error")
    monkeypatch.setattr(inner, "explain", lambda *_: None)
    assert tier.explain(error, 1) is error


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()], ids=repr)
def test_what_is_no_exception_ends_no_worker_either(
    error: BaseException, inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    for method in ("create", "free"):
        monkeypatch.setattr(inner, method, fails)
    with pytest.raises(InternalError, match=f"failed in `create`: {type(error).__name__}"):
        tier.create(KEY, 1, 4096, allocate=True)


def test_a_tier_that_does_not_close_is_left_to_itself(
    inner: DiskTier, tier: GuardedTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends = threading.Event()
    monkeypatch.setattr(guarded, "CLOSE_S", 0.05)
    monkeypatch.setattr(inner, "close", ends.wait)
    tier.close()
    assert "has not closed within 0.05 s, and is left to itself" in caplog.text
    monkeypatch.undo()
    ends.set()
