"""Opens that name no place: served from where the image lies, mapped from its file if that is on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from damages import DAMAGES
from looking import wait_until
from trims_client import connect

from trims.core.errors import CallerError, CapacityError
from trims.core.place import CPU, DISK
from trims.core.replica import State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


def register(daemon: Daemon, name: str, path: Path, **residency: object) -> None:
    manifest = {"name": name, "artifact": {"path": str(path)}, "residency": {"persist": "always", **residency}}
    daemon.registry.put(manifest, "")


def on_disk(daemon: Daemon, name: str) -> str:
    """Have a registered model on disk, and not in memory; returns its key."""
    daemon.store.load(name, DISK).result(60)
    key = daemon.store.key_of(name)
    wait_until(lambda: sealed(daemon, key) == {"disk"}, "it does not lie on disk alone")
    return key


def sealed(daemon: Daemon, key: str) -> set[str]:
    return {str(each.place) for each in daemon.store.residency.places_of(key) if each.state is State.SEALED}


@pytest.mark.parametrize("place", ["auto", None, ("auto",), ("gpu", "auto")])
def test_an_image_on_disk_is_mapped_and_not_copied_first(
    place: object, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    register(daemon, "m", checkpoint("m", {"weight": np.arange(1000)}))
    on_disk(daemon, "m")
    with connect(daemon.config.runtime_dir) as session, session.open("m", place=place) as weights:  # type: ignore[arg-type]
        assert (weights.place, weights.warm) == ("disk", True)
        assert weights["weight"].sum() == 499_500
        with pytest.raises(ValueError, match="read-only"):
            weights["weight"][0] = 1


def test_a_second_open_brings_it_to_memory_while_both_read(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("m", {"weight": np.arange(1000)}))
    key = on_disk(daemon, "m")
    with connect(daemon.config.runtime_dir) as session, session.open("m") as first, session.open("m") as second:
        assert (first.place, second.place) == ("disk", "disk")
        wait_until(lambda: sealed(daemon, key) == {"cpu", "disk"}, "its use has not brought it to memory")
        with session.open("m") as third:
            assert third.place == "cpu"
            assert first["weight"].sum() == third["weight"].sum() == 499_500


def test_a_named_place_is_that_place_alone(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("m"))
    register(daemon, "stated", checkpoint("stated"), place="cpu")
    for name in ("m", "stated"):
        on_disk(daemon, name)
    with connect(daemon.config.runtime_dir) as session:
        with session.open("m", place="cpu") as weights:
            assert weights.place == "cpu"
        with session.open("stated") as weights:
            assert weights.place == "cpu"
        with session.open("stated", place="disk") as weights:
            assert weights.place == "disk"
        with pytest.raises(CallerError, match="'moon' is not a place"):
            session.open("m", place="moon")


def test_a_prefetch_and_a_load_bring_it_to_memory(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("m"))
    key = on_disk(daemon, "m")
    with connect(daemon.config.runtime_dir) as session:
        session.prefetch("m")
        wait_until(lambda: sealed(daemon, key) == {"cpu", "disk"}, "the prefetch did not bring it")
    daemon.store.evict("m", CPU)
    daemon.store.load("m").result(60)
    assert sealed(daemon, key) == {"cpu", "disk"}


@pytest.mark.parametrize("how", list(DAMAGES))
def test_a_damaged_file_on_disk_is_not_mapped(how: str, daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, "m", checkpoint("m", {"weight": np.arange(1000)}))
    key = on_disk(daemon, "m")
    (extent,) = daemon.store.runner.extents().values()
    DAMAGES[how](extent)
    with connect(daemon.config.runtime_dir) as session, session.open("m") as weights:
        assert weights["weight"].sum() == 499_500
        assert weights.place == "cpu"
    assert daemon.store.counters["broken"] == 1
    wait_until(lambda: sealed(daemon, key) == {"cpu", "disk"}, "it is not kept on disk again")


def test_memory_full_of_readers_refuses_no_open_that_the_disk_can_serve(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes="1MiB")
    register(daemon, "hot", checkpoint("hot", nbytes=900_000))
    register(daemon, "m", checkpoint("m", nbytes=900_000))
    with connect(daemon.config.runtime_dir) as session, session.open("hot") as hot:
        assert hot.place == "cpu"
        with session.open("m") as weights:
            assert weights.place == "disk"
        with pytest.raises(CapacityError, match="no room at cpu"):
            session.open("m", place="cpu")
