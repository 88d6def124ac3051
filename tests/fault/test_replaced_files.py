"""A rename over a file that is being hashed: the next open, and the next request, begin with the new file."""

# fault (in place): a file is replaced by a rename while hashed -> hashed again, eight times at most; written in
# place: `artifact_changed`

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from endpoints import Endpoint
from fleets import register
from looking import wait_until
from safetensors.numpy import save_file
from trims_client import connect

from trims.store.resolve import hashing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

BYTES = 24 << 20


def publish(path: Path, value: float) -> None:
    """Put a checkpoint where it belongs as a publisher does: written elsewhere, and renamed."""
    fresh = path.with_name("fresh.safetensors")
    save_file({"factor": np.full(1, value), "ballast": np.full(BYTES // 8, value)}, fresh)
    os.utime(fresh, (1_000_000_000, 1_000_000_000))
    fresh.replace(path)


def is_hashed_behind(daemon: Daemon) -> bool:
    """Return whether the copier reads a file now."""
    return any(look.running and look.behind for look in list(daemon.store._opens.lookups._looks.values()))


@pytest.fixture
def slow(serve: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A daemon that serves files in place, and takes seconds to hash one behind its readers."""
    monkeypatch.setattr("trims.store.resolve.resolver.rest_of", lambda _: 0.0)
    return serve(trust="identity", behind_bytes_per_s=6 << 20)


def has_hashed_behind(daemon: Daemon, path: Path, value: float) -> None:
    """Have the copier read what lies at a path: it does after the second open of a file that is not known yet."""
    with connect(daemon.config.runtime_dir) as session:

        def begun() -> bool:
            with session.open_file(path) as weights:
                assert weights["factor"] == value
            return is_hashed_behind(daemon)

        wait_until(begun, "the file is not hashed behind its readers")


@pytest.mark.parametrize("place", ["cpu", "disk", "file", "auto"])
def test_an_open_begins_with_the_new_file_while_the_old_one_is_hashed(place: str, slow: Daemon, folder: Path) -> None:
    path = folder / "a.safetensors"
    publish(path, 1.0)
    has_hashed_behind(slow, path, 1.0)
    publish(path, 2.0)
    with connect(slow.config.runtime_dir) as session:

        def is_new() -> bool:
            with session.open_file(path, place=place) as weights:
                return (weights["factor"][0], weights["ballast"][-1]) == (2.0, 2.0)

        if place in ("cpu", "disk"):
            assert is_new()
        else:  # what was looked at within the last half second is not looked at again
            wait_until(is_new, "the new file is not found")


@pytest.fixture
def restless(slow: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that is replaced three times while it is read, by 2, 3 and at last 4."""
    path, pieces = folder / "m.safetensors", []
    publish(path, 1.0)
    real = hashing._add

    def replaced_meanwhile(part: hashing.Part, piece: memoryview) -> None:
        pieces.append(len(piece))
        if len(pieces) <= 3:
            publish(path, 1.0 + len(pieces))
        real(part, piece)

    monkeypatch.setattr(hashing, "_add", replaced_meanwhile)
    return path


def test_an_open_gets_the_file_that_is_there_when_its_hash_ends(slow: Daemon, restless: Path) -> None:
    with connect(slow.config.runtime_dir) as session, session.open_file(restless, place="cpu") as weights:
        assert weights["factor"] == 4.0


def test_a_request_at_the_endpoint_is_answered_with_the_file_that_is_there_then(slow: Daemon, restless: Path) -> None:
    fields = {"predictor": {"call": "own_predictors:Scaler"}, "residency": {"place": "cpu"}}
    register(slow, lambda *_: restless, **fields)
    endpoint = Endpoint(slow.config.runtime_dir)
    try:
        status, answer = endpoint.infer("m", [1.0])
        assert (status, answer["outputs"][0]["data"]) == (200, [4.0])
    finally:
        endpoint.end()
