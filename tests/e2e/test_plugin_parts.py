"""A daemon whose registry and tiers come from plug-ins: it serves, restarts, purges, and outlives one that hangs."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import own_parts
import pytest
from looking import wait_until
from own_parts import MemoryRegistry, declare
from trims_client import connect

from trims.control import admin
from trims.core.errors import ConfigError, DeadlineError, InternalError, ModelNotFoundError
from trims.core.place import CPU, DISK
from trims.daemon.main import shm_prefix
from trims.memory.shm import PosixShm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon
    from trims.tiers.base import Draft

WAIT_S = 100


@pytest.fixture
def serve_files(serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Daemon]:
    """A daemon whose cpu tier and disk tier are a plug-in's, in folders of the test's."""
    declare(monkeypatch, "trims.tiers", files="memory_tier", disk="disk")

    def start(**settings: object) -> Daemon:
        return serve(cpu_tier=f"files:{folder}/memory", disk_tier=f"disk:{folder}/disks", **settings)

    return start


def files_in(folder: Path) -> list[str]:
    return [str(path) for path in folder.glob("*/*")]


def locations(daemon: Daemon, place: object) -> list[str]:
    with admin(daemon.config.runtime_dir) as control:
        return [each.location for each in control.residents().replicas if each.place == str(place)]


def load(daemon: Daemon, name: str) -> None:
    with connect(daemon.config.runtime_dir) as session, session.open(name, place="cpu") as weights:
        assert weights.place == "cpu"
        assert weights["step"].shape == ()


def test_models_are_served_from_a_tier_of_a_plugin_and_adopted_by_the_next_daemon(
    serve_files: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon = serve_files()
    name = f"file:{checkpoint('m')}"
    load(daemon, name)
    daemon.store.load(name, DISK).result(WAIT_S)
    assert locations(daemon, CPU) == files_in(folder / "memory") != []
    assert locations(daemon, DISK) == files_in(folder / "disks") != []
    daemon.ask_to_end()
    daemon.stop()
    again = serve_files()
    assert locations(again, CPU) == files_in(folder / "memory") != []
    load(again, name)
    with admin(again.config.runtime_dir) as control:
        counters = control.status().stats.counters
        assert control.check(verify=True).findings == ()
        assert counters["adopted"] == 2
        assert counters.get("cold", 0) == 0
        control.evict(name, "cpu")
    assert files_in(folder / "memory") == []


def test_a_purge_frees_the_cpu_tier_of_a_plugin_and_keeps_its_disk_tier(
    serve_files: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    daemon = serve_files()
    name = f"file:{checkpoint('m')}"
    load(daemon, name)
    daemon.store.load(name, DISK).result(WAIT_S)
    daemon.ask_to_end(purge=True)
    daemon.stop()
    assert files_in(folder / "memory") == []
    assert len(files_in(folder / "disks")) == 1


def test_what_our_own_tiers_left_is_freed_from_memory_and_told_of_on_disk(
    serve: Callable[..., Daemon],
    serve_files: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    ours = serve()
    name = f"file:{checkpoint('m')}"
    load(ours, name)
    ours.store.load(name, DISK).result(WAIT_S)
    ours.ask_to_end()
    ours.stop()
    segments = PosixShm(shm_prefix(folder / "state"))
    assert len(list(segments.names())) == 1
    serve_files()
    assert list(segments.names()) == []
    assert f"is removed: cpu_tier is files:{folder}/memory now, no client would ever use it" in caplog.text
    images = folder / "state" / "images"
    assert f"{images} stays and is not served, as disk_tier is disk:{folder}/disks now" in caplog.text
    assert len(os.listdir(images)) == 1


def test_a_tier_that_fails_fails_one_load_and_its_name_is_told(
    serve_files: Callable[..., Daemon], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = serve_files()

    def fails(tier: own_parts.FilesAsMemory, draft: Draft, *_: object) -> None:
        tier.abort(draft)
        raise KeyError("the environment store is lost")

    with monkeypatch.context() as patched:
        patched.setattr(own_parts.FilesAsMemory, "seal", fails)
        with pytest.raises(InternalError, match=r"'files' \(own_parts:memory_tier\) failed in `seal`: KeyError: "):
            load(daemon, f"file:{checkpoint('a')}")
    load(daemon, f"file:{checkpoint('b')}")


def test_a_start_that_fails_leaves_what_our_own_tier_holds(
    serve: Callable[..., Daemon],
    serve_files: Callable[..., Daemon],
    checkpoint: Callable[..., Path],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = serve()
    load(ours, f"file:{checkpoint('m')}")
    ours.ask_to_end()
    ours.stop()
    with monkeypatch.context() as patched:
        patched.setattr(own_parts.FilesAsMemory, "scan", lambda _: raise_one(OSError(5, "Input/output error")))
        with pytest.raises(ConfigError, match=r"cannot be scanned: .*Input/output error"):
            serve_files()
    assert len(list(PosixShm(shm_prefix(folder / "state")).names())) == 1
    serve()


def raise_one(error: Exception) -> None:
    raise error


def test_two_daemons_share_a_registry_and_see_each_others_changes(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    shared = f"sqlite:{folder}/shared.db"
    one = serve(registry=shared)
    two = serve(registry=shared, runtime_dir=folder / "run2", state_dir=folder / "state2")
    with admin(one.config.runtime_dir) as control, connect(two.config.runtime_dir) as session:
        control.add(checkpoint("a"), name="m", lazy=True)
        with session.open("m") as weights:
            before = int(weights["step"])
        control.add(checkpoint("b"), name="m", replace=True, lazy=True)
        wait_until(lambda: step_of(session, "m") not in (before, None), "the other daemon serves the new manifest")
        control.remove("m")
        wait_until(lambda: step_of(session, "m") is None, "the other daemon knows that it is gone")


def step_of(session: Session, name: str) -> int | None:
    """A value of the model; None if no model has the name."""
    try:
        with session.open(name) as weights:
            return int(weights["step"])
    except ModelNotFoundError:
        return None


@pytest.mark.parametrize("part", ["registry", "disk_tier"])
def test_a_daemon_that_cannot_open_a_plugin_leaves_nothing_open(
    serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    group = {"registry": "trims.registries", "disk_tier": "trims.tiers"}[part]
    declare(monkeypatch, group, odd="fails")
    with pytest.raises(Exception, match=rf"{group} plug-in 'odd' \(own_parts:fails\) cannot be opened"):
        serve(**{part: "odd"})
    serve()


class Hanging(MemoryRegistry):
    """Registry whose `get` waits until the test lets it go on."""

    go_on = threading.Event()

    def get(self, name: str) -> object:  # type: ignore[override]
        assert self.go_on.wait(WAIT_S)
        return super().get(name)


@pytest.fixture
def hanging(serve: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon whose registry hangs; its callers wait a moment only."""
    monkeypatch.setattr(own_parts, "Hanging", Hanging, raising=False)
    monkeypatch.setattr(Hanging, "go_on", threading.Event())
    declare(monkeypatch, "trims.registries", slow="Hanging")
    daemon = serve(registry="slow")
    monkeypatch.setattr(daemon.registry, "_patience_s", 0.2)
    yield daemon
    Hanging.go_on.set()


def test_a_registry_that_hangs_fails_its_own_models_and_serves_all_other_requests(
    hanging: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    hanging.registry.put({"name": "m", "artifact": {"path": str(path)}}, "")
    with connect(hanging.config.runtime_dir) as session, admin(hanging.config.runtime_dir) as control:
        for _ in range(12):
            with pytest.raises(
                DeadlineError, match=r"plug-in 'slow' \(own_parts:Hanging\) (did not answer|has not ended)"
            ):
                session.open("m")
            with session.open(f"file:{path}") as weights:
                assert isinstance(weights["step"], np.ndarray)
            assert control.status().health.status == "serving"
        with pytest.raises(DeadlineError):
            control.models()
        Hanging.go_on.set()
        wait_until(lambda: is_served(session, "m"), "the registry answers again")
        with pytest.raises(ModelNotFoundError):
            session.open("n")


def is_served(session: Session, name: str) -> bool:
    try:
        session.open(name).close()
    except DeadlineError:
        return False
    return True


def test_a_daemon_ends_although_its_registry_hangs(hanging: Daemon) -> None:
    hanging.registry.put({"name": "m", "artifact": {"path": "/m"}}, "")
    with connect(hanging.config.runtime_dir) as session, pytest.raises(DeadlineError):
        session.open("m")
    hanging.ask_to_end()
    hanging.stop()
    assert hanging.ended
