"""A daemon whose registry comes from a plug-in: it serves, and outlives one that hangs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import own_parts
import pytest
from looking import wait_until
from own_parts import MemoryRegistry, declare
from trims_client import connect

from trims.control import admin
from trims.core.errors import DeadlineError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon

WAIT_S = 100


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


# fault (daemon): a plug-in's registry cannot be opened -> `ConfigError` with plug-in and cause
def test_a_daemon_that_cannot_open_a_plugin_leaves_nothing_open(
    serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, "trims.registries", odd="fails")
    with pytest.raises(Exception, match=r"trims.registries plug-in 'odd' \(own_parts:fails\) cannot be opened"):
        serve(registry="odd")
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


# fault (daemon): a plug-in's registry hangs or raises -> `deadline` or `internal`, for its models; all else is served
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
