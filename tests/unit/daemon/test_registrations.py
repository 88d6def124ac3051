"""Versions and aliases of a daemon: what opens, leases, pins and evictions have of a switch, and what is refused."""

# fault (daemon): an alias to a missing version; a label called as a version; a version removed that an alias leads to
# -> `model_not_found`, `bad_request`, `in_use`

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from looking import WAIT_S, Asker, nothing_is_left, restart
from trims_client import connect

import trims
from trims.core.errors import CallerError, InUseError, ModelExistsError, ModelNotFoundError, TrimsError
from trims.testing.control import control
from trims.wire import trims_pb2 as pb
from trims.wire.status import error_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.control import Admin
    from trims.daemon.main import Daemon


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[Admin]:
    with trims.admin(daemon.config.runtime_dir) as made:
        yield made


@pytest.fixture
def manifest(checkpoint: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """Return the manifest of a version of `m`, whose weights have its number as their only value."""

    def made(version: str, value: int | None = None, name: str = "m", **more: object) -> dict[str, Any]:
        number = int(version) if value is None else value
        path = checkpoint(f"{name}{version}{value}", {"a": np.full(64, number, np.float32)})
        return {"name": name, "version": version, "artifact": {"path": str(path)}, **more}

    return made


@pytest.fixture
def two(admin: Admin, manifest: Callable[..., dict[str, Any]]) -> Admin:
    """Return the client of a daemon with two versions of `m`; the plain name leads to 1."""
    for version in ("1", "2"):
        admin.add(manifest(version))
    return admin


def value(session: Session, name: str) -> int:
    """Open a model and return the number in its weights."""
    with session.open(name) as weights:
        return int(weights["a"][0])


def shown(admin: Admin) -> dict[str, tuple[str, ...]]:
    """Return the versions in the list, by their names, each with what else leads to it."""
    return {model.opened_as: model.aliases for model in admin.models()}


# -- what is registered ------------------------------------------------------------------------------------------------


def test_a_second_version_lies_beside_the_first_and_the_name_leads_where_it_led(two: Admin, session: Session) -> None:
    assert shown(two) == {"m@1": ("m",), "m@2": ()}
    assert [value(session, name) for name in ("m", "m@1", "m@2")] == [1, 1, 2]
    assert two.show("m").version == "1"
    second = two.show("m@2")
    assert (second.version, second.versions, second.is_default) == ("2", ("1", "2"), False)
    assert {name for each in two.residents().replicas for name in each.names} == {"m@1", "m@2"}


def test_one_version_is_known_by_the_models_name_alone(
    admin: Admin, session: Session, manifest: Callable[..., dict[str, Any]]
) -> None:
    made = admin.add(manifest("1"))
    assert (made.reference, made.aliases, made.versions) == ("m@1", ("m",), ("1",))
    assert [value(session, name) for name in ("m", "m@1")] == [1, 1]
    assert {each.names for each in admin.residents().replicas} == {("m",)}


def test_the_same_version_with_another_manifest_needs_replace(
    two: Admin, session: Session, manifest: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(ModelExistsError, match="'m@2' is registered with another manifest"):
        two.add(manifest("2", 22))
    two.add(manifest("2", 22), replace=True)
    assert [value(session, name) for name in ("m", "m@2")] == [1, 22]
    two.add(manifest("3"), replace=True)
    assert shown(two) == {"m@3": ("m",), "m@2": ()}
    assert value(session, "m") == 3


def test_a_version_that_cannot_be_converted_leaves_the_others_as_they_were(
    two: Admin, session: Session, folder: Path
) -> None:
    broken = folder / "broken.safetensors"
    broken.write_bytes(b"\x00" * 64)
    before = shown(two)
    for version, replace in (("3", False), ("2", True), ("3", True)):
        bad = {"name": "m", "version": version, "artifact": {"path": str(broken)}}
        with pytest.raises(TrimsError):
            two.add(bad, replace=replace)
        assert shown(two) == before
        assert [value(session, name) for name in ("m", "m@2")] == [1, 2]


def test_versions_with_equal_bytes_share_one_image_and_others_do_not(
    admin: Admin, manifest: Callable[..., dict[str, Any]]
) -> None:
    keys = [admin.add(manifest(version, number)).key for version, number in (("1", 7), ("2", 7), ("3", 8))]
    assert keys[0] == keys[1] != keys[2]
    names = {each.key: each.names for each in admin.residents().replicas if each.place == "disk"}
    assert names == {keys[0]: ("m@1", "m@2"), keys[2]: ("m@3",)}
    admin.remove("m@2")
    assert admin.show("m").replicas, "another version has the image"


# -- switches ----------------------------------------------------------------------------------------------------------


def test_a_switch_counts_for_new_opens_and_leases_keep_what_they_have(two: Admin, session: Session) -> None:
    with session.open("m") as before:
        assert two.alias("m", "2").versions == ("1", "2")
        assert value(session, "m") == 2
        assert int(before["a"][0]) == 1
        two.alias("m", back=True)
        assert value(session, "m") == 1
    two.alias("m@stable", "2")
    assert value(session, "m@stable") == 2
    two.alias("m@stable", remove=True)
    with pytest.raises(ModelNotFoundError, match="no version or label 'stable'"):
        session.open("m@stable")


def test_what_cannot_be_switched_is_refused_by_its_culprit(two: Admin) -> None:
    for error, order in (
        (ModelNotFoundError, {"name": "m", "version": "9"}),
        (ModelNotFoundError, {"name": "other", "version": "1"}),
        (ModelNotFoundError, {"name": "m@stable", "remove": True}),
        (CallerError, {"name": "m@2", "version": "1"}),
        (CallerError, {"name": "m", "back": True}),
        (CallerError, {"name": "m", "remove": True}),
        (CallerError, {"name": "m@stable", "version": "1", "back": True}),
        (CallerError, {"name": "m@no label", "version": "1"}),
    ):
        with pytest.raises(error):
            two.alias(**order)  # type: ignore[arg-type]
    assert shown(two) == {"m@1": ("m",), "m@2": ()}


def test_a_version_may_not_be_called_as_a_label(two: Admin, manifest: Callable[..., dict[str, Any]]) -> None:
    two.alias("m@3", "1")
    with pytest.raises(CallerError, match="has a label '3'"):
        two.add(manifest("3"))
    assert shown(two) == {"m@1": ("m", "m@3"), "m@2": ()}


def test_the_image_of_the_version_before_stays_for_a_switch_back(two: Admin, session: Session) -> None:
    two.load("m@1", "cpu")
    key = two.show("m@1").key
    two.alias("m", "2")
    assert value(session, "m") == 2
    assert "cpu" in {each.place for each in two.residents().replicas if each.key == key}


# fault (daemon): a name is switched, twice at once or back, under opens and requests -> nothing; each has one whole
# version
def test_fifty_opens_during_switches_each_get_one_whole_version(two: Admin, daemon: Daemon) -> None:
    begin, errors, seen = threading.Barrier(52), list[BaseException](), set[int]()

    def opens() -> None:
        try:
            with connect(daemon.config.runtime_dir) as session:
                begin.wait(WAIT_S)
                for _ in range(4):
                    with session.open("m") as weights:
                        (number,) = set(np.asarray(weights["a"]).tolist())
                        seen.add(int(number))
        except BaseException as error:
            errors.append(error)

    def switches(version: str) -> None:
        begin.wait(WAIT_S)
        for _ in range(5):
            two.alias("m", version)

    work = [threading.Thread(target=opens) for _ in range(50)]
    work += [threading.Thread(target=switches, args=(version,)) for version in ("1", "2")]
    for each in work:
        each.start()
    for each in work:
        each.join(WAIT_S)
    assert errors == []
    assert seen <= {1, 2}
    for version in (1, 2):
        two.alias("m", str(version))
        with connect(daemon.config.runtime_dir) as session:
            assert value(session, "m") == version, "an open after the answer to a switch has the new version"
    nothing_is_left(daemon)


def test_an_open_that_is_looked_up_during_a_switch_has_the_new_version(
    two: Admin, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = Asker(daemon)
    real, at_work, go_on = daemon.store.resolver._resolve, threading.Event(), threading.Event()

    def held(*given: Any) -> Any:
        found = real(*given)
        at_work.set()
        assert go_on.wait(WAIT_S)
        return found

    daemon.store.alias_changed("m")
    monkeypatch.setattr(daemon.store.resolver, "_resolve", held)
    pending = asker.ask("m", None)
    assert at_work.wait(WAIT_S)
    two.alias("m", "2")
    go_on.set()
    key = two.show("m@2").key
    assert pending.result(WAIT_S).key == asker.open("m", None).key == key  # type: ignore[union-attr]
    asker.end()


# -- residency ---------------------------------------------------------------------------------------------------------


def test_orders_take_references(two: Admin) -> None:
    two.alias("m@stable", "1")
    assert two.load("m@stable", "cpu").names == ("m@1",)
    two.pin("m@stable")
    with pytest.raises(InUseError, match="pinned"):
        two.evict("m@1")
    two.unpin("m")
    assert two.evict("m").freed == ("cpu",)
    with connect(two._calls._address.parent) as session:
        session.prefetch("m@2")
    with pytest.raises(ModelNotFoundError):
        two.load("m@9")


def test_a_pin_is_the_versions_and_outlives_its_rows_and_the_daemon(
    admin: Admin, daemon: Daemon, serve: Callable[..., Daemon], manifest: Callable[..., dict[str, Any]]
) -> None:
    admin.add(manifest("1"))
    admin.pin("m")
    admin.load("m", "cpu")
    admin.add(manifest("2"))
    admin.alias("m", "2")

    def pinned(admin: Admin) -> list[tuple[str, ...]]:
        return [each.names for each in admin.residents().replicas if each.pinned]

    assert pinned(admin) == [("m@1",)]
    after = restart(daemon, serve)
    with trims.admin(after.config.runtime_dir) as again:
        assert pinned(again) == [("m@1",)]
        assert shown(again) == {"m@2": ("m",), "m@1": ()}
        again.alias("m", back=True)
        again.remove("m@2")
        assert shown(again) == {"m@1": ("m",)}
        assert pinned(again) == [("m",)]
        with pytest.raises(InUseError, match="pinned"):
            again.evict("m")


# -- removal -----------------------------------------------------------------------------------------------------------


def test_a_version_that_an_alias_leads_to_is_not_removed(two: Admin, session: Session) -> None:
    two.alias("m@stable", "2")
    for name in ("m@1", "m@2", "m"):
        with pytest.raises(InUseError):
            two.remove(name)
    with pytest.raises(CallerError, match="is a label"):
        two.remove("m@stable")
    two.alias("m", "2")
    two.remove("m@1")
    assert shown(two) == {"m@2": ("m", "m@stable")}
    assert value(session, "m") == 2
    with pytest.raises(ModelNotFoundError):
        session.open("m@1")


def test_all_versions_are_removed_if_that_is_said_and_readers_finish(two: Admin, session: Session) -> None:
    with session.open("m@1") as weights:
        two.remove("m", all_versions=True)
        assert two.models() == []
        assert int(weights["a"][0]) == 1
    with pytest.raises(ModelNotFoundError):
        session.open("m")


# -- the door ----------------------------------------------------------------------------------------------------------


def test_a_client_without_versions_removes_no_model_that_has_several(two: Admin, daemon: Daemon) -> None:
    with control(str(daemon.config.runtime_dir)) as stub:
        listed = [(model.name, model.version) for model in stub.List(pb.Empty()).models]
        assert listed == [("m", "1"), ("m", "2")], "the first of a name is what it leads to"
        two.alias("m", "2")
        assert [model.version for model in stub.List(pb.Empty()).models] == ["2", "1"]
        assert json.loads(stub.Describe(pb.NameRequest(name="m")).manifest_json)["version"] == "2"
        with pytest.raises(grpc.RpcError) as caught:
            stub.Unregister(pb.NameRequest(name="m"))
        assert isinstance(error_from(caught.value, ""), InUseError)


def test_every_change_is_told_to_those_who_watch_models(two: Admin) -> None:
    changes = two.watch_models()
    assert next(changes).names == ()
    for order in (
        lambda: two.alias("m", "2"),
        lambda: two.alias("m@stable", "1"),
        lambda: two.alias("m", back=True),
        lambda: two.alias("m@stable", remove=True),
        lambda: two.remove("m@2"),
    ):
        order()
        assert next(changes).names == ("m",)
    changes.close()
