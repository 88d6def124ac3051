"""The operator's client in Python: the same answers blocking and with asyncio, and errors of the tree."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from trims_client import connect

import trims
from trims.core.errors import ArtifactError, CallerError, DaemonAwayError, InUseError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.control import Admin
    from trims.control.answers import Loading
    from trims.daemon.main import Daemon


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[Admin]:
    with trims.admin(daemon.config.runtime_dir) as made:
        yield made


def test_a_model_is_added_loaded_shown_evicted_and_removed(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    told: list[Loading] = []
    added = admin.add(checkpoint("m"), on_progress=told.append)
    assert (added.name, [each.place for each in added.replicas]) == ("m", ["disk"])
    assert told[-1].phase == "done"
    assert added.manifest["artifact"]["path"].endswith("m.safetensors")
    assert admin.load("m").place == "cpu"
    assert [model.name for model in admin.models()] == ["m"]
    assert {replica.place for replica in admin.residents().replicas} == {"cpu", "disk"}
    assert admin.evict("m").freed == ("cpu",)
    assert admin.evict("m", None).freed == ("disk",)
    admin.remove("m")
    assert admin.models() == []


def test_a_mapping_is_a_manifest(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    manifest = {"name": "mine", "artifact": {"path": str(checkpoint("m"))}, "version": "2.0.0"}
    assert admin.add(manifest, lazy=True).version == "2.0.0"
    with pytest.raises(CallerError, match=r"^name is for artifacts"):
        admin.add("some.yaml", name="other")


def test_a_model_that_cannot_be_converted_is_not_left_behind(admin: Admin, folder: Path) -> None:
    broken = folder / "broken.safetensors"
    broken.write_bytes(b"\x00" * 64)
    with pytest.raises(ArtifactError):
        admin.add(broken)
    assert admin.models() == []


def test_orders_are_refused_by_errors_of_the_tree(
    admin: Admin, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    with pytest.raises(ModelNotFoundError):
        admin.show("nonsense")
    admin.add(checkpoint("m"))
    with connect(daemon.config.runtime_dir) as session, session.open("m", place="cpu"):
        with pytest.raises(InUseError, match="1 lease"):
            admin.evict("m")
        assert admin.evict("m", drain=True).draining == ("cpu",)


def test_a_pin_holds_until_it_is_taken_back(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    admin.add(checkpoint("m"))
    admin.pin("m")
    admin.load("m")
    with pytest.raises(InUseError, match="pinned"):
        admin.evict("m")
    admin.unpin("m")
    assert admin.evict("m").freed == ("cpu",)


def test_status_and_check_tell_of_the_daemon(admin: Admin, daemon: Daemon) -> None:
    status = admin.status()
    assert (status.health.status, status.health.boot) == ("serving", daemon.boot)
    assert {tier.place for tier in status.stats.tiers} == {"cpu", "disk", "file", "cloud"}
    assert admin.check(verify=True).findings == ()
    admin.drain()
    assert admin.status().health.status == "draining"


def test_changes_are_watched(admin: Admin, daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    changes = admin.watch()
    admin.add(checkpoint("m"))  # returns once all of it has happened
    first = next(changes)
    assert (first.place, first.new) == ("disk", "queued")
    changes.close()


def test_names_of_models_that_changed_are_watched(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    changes = admin.watch_models()
    assert next(changes).names == ()
    admin.add(checkpoint("m"), lazy=True)
    assert next(changes).names == ("m",)
    changes.close()


def test_a_request_out_of_range_is_refused_before_anything_is_loaded(
    admin: Admin, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    admin.add(checkpoint("m"), lazy=True)
    for deadline_s in (-1.0, float("nan"), float("inf"), 1e300):
        with pytest.raises(CallerError, match="deadline_s"):
            admin.load("m", deadline_s=deadline_s)
    assert daemon.store.counters["fills.cpu"] == 0
    with pytest.raises(ModelNotFoundError, match="no model 'é"):
        admin.show("é" * 4000)


def test_an_add_that_is_interrupted_leaves_nothing_registered(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    def fail(progress: Loading) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        admin.add(checkpoint("m"), on_progress=fail)
    assert admin.models() == []


def test_no_daemon_is_said_with_the_remedy(folder: Path) -> None:
    with trims.admin(folder / "nowhere") as admin, pytest.raises(DaemonAwayError, match="start one with `trims serve`"):
        admin.status()


def test_a_daemon_that_was_away_for_long_is_found_again_within_a_second(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, int]] = []
    real = grpc.insecure_channel

    def channel(target: str, options: Any = ()) -> Any:
        given.append(dict(options))
        return real(target, options)

    monkeypatch.setattr(grpc, "insecure_channel", channel)
    trims.admin(folder / "nowhere").close()
    assert given[0]["grpc.max_reconnect_backoff_ms"] <= 1000


def test_asyncio_gets_the_same_answers(daemon: Daemon, checkpoint: Callable[..., Path], folder: Path) -> None:
    async def work() -> None:
        async with trims.aadmin(daemon.config.runtime_dir) as admin:
            told: list[Loading] = []
            assert (await admin.add(checkpoint("m"), on_progress=told.append)).name == "m"
            assert told[-1].done
            assert (await admin.load("m")).place == "cpu"
            assert [model.name for model in await admin.models()] == ["m"]
            assert len((await admin.residents()).replicas) == 2
            await admin.pin("m")
            with pytest.raises(InUseError):
                await admin.evict("m")
            await admin.unpin("m")
            models = admin.watch_models()
            assert (await anext(models)).names == ()
            await models.aclose()
            changes = await admin.watch()
            await admin.evict("m")
            assert (await anext(changes)).names == ("m",)
            await changes.aclose()
            assert (await admin.check()).findings == ()
            with pytest.raises(ModelNotFoundError):
                await admin.show("nonsense")
            await admin.remove("m")
            await admin.drain()
            assert (await admin.status()).health.status == "draining"
        async with trims.aadmin(folder / "nowhere") as admin:
            with pytest.raises(DaemonAwayError):
                await admin.status()

    asyncio.run(work())


def test_a_manifest_is_given_back_as_it_was_kept(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    shown = admin.add({"name": "m", "artifact": {"path": str(checkpoint("m"))}, "license": "MIT"}, lazy=True)
    assert shown.license == "MIT"
    assert json.loads(shown.manifest_json)["license"] == "MIT"
