"""Sessions and weights that a program drops without a close: a warning, no lease left, no memory left mapped."""

# fault (clients): drops weights or a session without closing them -> a ResourceWarning; the lease stays until nothing
# can read the bytes

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from looking import leases, wait_until
from trims_client import connect

from trims.daemon.main import shm_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from trims_client import Session

    from trims.daemon.main import Daemon


def mapped(daemon: Daemon) -> bool:
    """Return whether this process maps an image of this daemon."""
    return f"/dev/shm/{shm_prefix(daemon.config.state_dir)}." in Path("/proc/self/maps").read_text()


def collected(drop: Callable[[], object]) -> list[str]:
    """Return the warnings when something is dropped. As text: a warning that is kept keeps what it is about."""
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: told.append(str(message))
        drop()
        gc.collect()
    return told


@pytest.fixture
def session(daemon: Daemon) -> Session:
    return connect(daemon.config.runtime_dir)


def test_dropped_weights_warn_and_give_their_lease_back_by_themselves(
    session: Session, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    weights = [session.open_file(checkpoint("m"))]
    assert leases(daemon) == 1
    told = collected(lambda: weights.clear())
    assert re.search(r"the weights of '.*m\.safetensors' were never closed; use `with`", told[0])
    wait_until(lambda: leases(daemon) == 0, "the lease stays although nothing can read")
    assert not mapped(daemon)
    session.close()


def test_weights_that_are_opened_again_right_after_they_were_dropped_are_whole(
    session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    assert collected(lambda: session.open_file(path))
    with session.open_file(path) as weights:
        assert weights["weight"].sum() != 0
    session.close()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # it goes with the array
def test_an_array_keeps_its_lease_although_weights_and_session_were_dropped(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    def read() -> np.ndarray:
        found: np.ndarray = connect(daemon.config.runtime_dir).open_file(checkpoint("m"))["weight"]
        return found

    arrays: list[np.ndarray] = []
    told = collected(lambda: arrays.append(read()))
    assert [text.split(" ")[1] for text in told] == ["weights", "session"]
    assert leases(daemon) == 1, "the array reads the image"
    assert arrays.pop().sum() != 0
    gc.collect()
    wait_until(lambda: leases(daemon) == 0, "the lease outlives the array")
    assert not mapped(daemon)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("first", ["session", "weights"])
def test_a_lease_ends_without_the_collector_whichever_is_dropped_first(
    first: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    gc.disable()
    try:
        held: dict[str, object] = {"session": connect(daemon.config.runtime_dir)}
        held["weights"] = held["session"].open_file(checkpoint("m"))  # type: ignore[attr-defined]
        del held[first]
        assert leases(daemon) == 1
        held.clear()
        wait_until(lambda: leases(daemon) == 0, "an idle process keeps a lease for nothing")
    finally:
        gc.enable()


def test_what_is_unclosed_at_the_end_of_the_interpreter_says_nothing_odd(
    daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    program = "import sys, trims; w = trims.open_file(sys.argv[1]); w.itself = w; s = trims.connect(); s.itself = s"
    environment = {**os.environ, "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program, str(checkpoint("m"))],
        capture_output=True, text=True, check=True, timeout=300, env=environment,
    )  # fmt: skip
    assert "Exception ignored" not in done.stderr


def test_a_session_that_was_closed_or_never_connected_does_not_warn(daemon: Daemon, folder: Path) -> None:
    session = connect(daemon.config.runtime_dir)
    session.close()
    away = connect(folder / "nowhere", fallback="load")
    del session, away
    gc.collect()
