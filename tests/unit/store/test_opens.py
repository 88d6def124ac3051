"""Opens: from a name, or a key, to a lease, on the terms of the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from looking import WAIT_S, Asker, error_of, leases, states

from trims.core.errors import ArtifactNotFoundError, ModelNotFoundError, NotInPlaceError
from trims.core.place import CPU, DISK, FILE, Place
from trims.store.pending_requests import Granted, Pending

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon


def test_a_model_is_leased_by_name_and_its_lease_closed_once(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    granted = asker.open(model())
    assert (granted.place, granted.warm) == (CPU, False)
    assert asker.open("m").warm
    for _ in range(2):
        daemon.store.close(asker.session, granted.lease)
    assert leases(daemon) == 1
    assert daemon.store.counters["opens"] == 2


def test_two_names_of_the_same_bytes_are_one_image(daemon: Daemon, asker: Asker, model: Callable[..., str]) -> None:
    keys = {asker.open(model(name)).key for name in ("one", "two")}
    assert len(keys) == 1
    assert states(daemon) == {"cpu": "sealed"}
    assert daemon.store.read.names_of(keys.pop()) == ["one", "two"]


def test_an_image_is_resumed_by_its_key_only_where_it_is_resident(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    granted, pending = asker.open(model()), [Pending(), Pending()]
    for place, each in zip((CPU, DISK), pending, strict=True):
        daemon.store.resume(asker.session, granted.key, place, each.set)
    resumed = pending[0].result(WAIT_S)
    assert isinstance(resumed, Granted)
    assert (resumed.key, resumed.warm) == (granted.key, True)
    with pytest.raises(ModelNotFoundError, match="is not resident at disk any more; open it by name"):
        pending[1].result(WAIT_S)


@pytest.mark.parametrize("place", [CPU, DISK])
def test_keep_alive_is_about_memory_and_not_about_the_disk(
    daemon: Daemon, model: Callable[..., str], place: Place
) -> None:
    daemon.store.load(model(keep_alive_s=50.0), place).result(WAIT_S)
    (view,) = daemon.store.read.replicas()
    assert (view.keep_left_s is None) is (place == DISK)


def test_a_manifest_that_is_replaced_counts_for_the_next_open(
    daemon: Daemon, asker: Asker, model: Callable[..., str], checkpoint: Callable[..., Path]
) -> None:
    before = asker.open(model()).key
    manifest = {"name": "m", "artifact": {"path": str(checkpoint("b"))}}
    daemon.registry.put(manifest, "", replace=True)
    daemon.store.manifest_changed("m")
    assert asker.open("m").key != before


def test_a_keep_alive_that_is_changed_counts_for_the_next_open(
    daemon: Daemon, asker: Asker, model: Callable[..., str], checkpoint: Callable[..., Path]
) -> None:
    path = str(checkpoint("a"))
    for keep_alive_s in (100.0, 500.0):
        stated = {"name": "m", "artifact": {"path": path}, "residency": {"keep_alive_s": keep_alive_s}}
        daemon.registry.put(stated, "", replace=True)
        daemon.store.manifest_changed("m")
        daemon.store.close(asker.session, asker.open("m", place=CPU).lease)
        (view,) = daemon.store.read.replicas()
        assert view.keep_left_s is not None
        assert keep_alive_s / 2 < view.keep_left_s <= keep_alive_s


def test_a_name_that_cannot_be_resolved_is_the_answer_of_its_own_request(
    daemon: Daemon, asker: Asker, model: Callable[..., str], tmp_path: Path
) -> None:
    for name, expected in (
        ("absent", ModelNotFoundError),
        (f"file:{tmp_path}/absent.safetensors", ArtifactNotFoundError),
    ):
        error = error_of(asker.ask(name))
        assert isinstance(error, expected)
        assert daemon.store.counters[f"refused.{error.code}"] == 1
    assert not asker.open(model()).warm


def test_a_stated_place_is_where_the_image_is_brought_whatever_else_there_is(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    assert asker.open(model("here", "a", place="cpu"), None).place is CPU
    assert asker.open(model("there", "a", place="disk"), None).place is DISK
    assert asker.open("here", place=DISK).place is DISK
    assert states(daemon) == {"cpu": "sealed", "disk": "sealed"}


def test_own_files_that_cannot_be_served_are_refused_with_the_way_out(
    daemon: Daemon, asker: Asker, model: Callable[..., str]
) -> None:
    asker.open(model(persist="always"))  # a manifest that wants an image
    error = error_of(asker.ask("m", place=FILE))
    assert isinstance(error, NotInPlaceError)
    assert "open it without a place" in str(error)
    assert daemon.store.counters["opens"] == 2
