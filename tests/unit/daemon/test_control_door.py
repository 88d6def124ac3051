"""The control door: what each call of an operator does, and which status its errors become."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from looking import Asker, wait_until

import trims.daemon.control_door as module
from trims.core.errors import (
    CallerError,
    CapacityError,
    InternalError,
    InUseError,
    ManifestError,
    ModelExistsError,
    ModelNotFoundError,
    NotSupportedError,
    TrimsError,
)
from trims.testing.control import control
from trims.wire import trims_pb2 as pb
from trims.wire.status import error_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon
    from trims.registry.versions import Entry


@pytest.fixture
def stub(daemon: Daemon) -> Iterator[Any]:
    with control(str(daemon.config.runtime_dir)) as made:
        yield made


@pytest.fixture
def manifest(checkpoint: Callable[..., Path]) -> Callable[..., str]:
    """YAML of a manifest."""

    def write(name: str = "m", file: str = "a", **more: object) -> str:
        return json.dumps({"name": name, "artifact": {"path": str(checkpoint(file))}, **more})

    return write


@contextlib.contextmanager
def refused(cls: type[TrimsError], said: str) -> Iterator[None]:
    """The block's call must end in this error of the tree."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    error = error_from(caught.value, "control.sock")
    assert type(error) is cls
    assert said in str(error)


def register(stub: Any, text: str, *, replace: bool = False) -> pb.Model:
    model: pb.Model = stub.Register(pb.RegisterRequest(manifest_yaml=text, origin="", replace=replace))
    return model


def test_a_model_is_registered_described_listed_and_forgotten(stub: Any, manifest: Callable[..., str]) -> None:
    registered = register(stub, manifest(description="a model", version="1.0.0"))
    assert (registered.name, registered.version, registered.description) == ("m", "1.0.0", "a model")
    assert (registered.key, list(registered.replicas)) == ("", [])
    assert [model.name for model in stub.List(pb.Empty()).models] == ["m"]
    assert stub.Describe(pb.NameRequest(name="m")).version == "1.0.0"
    stub.Unregister(pb.NameRequest(name="m"))
    assert list(stub.List(pb.Empty()).models) == []
    with refused(ModelNotFoundError, "'m'"):
        stub.Describe(pb.NameRequest(name="m"))


def test_a_wrong_manifest_is_refused_by_name_and_registers_nothing(stub: Any, manifest: Callable[..., str]) -> None:
    with refused(ManifestError, "the manifest "):
        register(stub, "name: [")
    with refused(ManifestError, "surprise"):
        register(stub, manifest(surprise=1))
    assert list(stub.List(pb.Empty()).models) == []


def test_a_manifest_that_cannot_be_read_is_listed_with_the_reason_and_hides_no_other(
    daemon: Daemon, stub: Any, manifest: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(stub, manifest("a"))
    register(stub, manifest("z"))
    real = daemon.registry.find

    def find(name: str) -> Entry:
        if name == "broken":
            raise ManifestError("/srv/broken.yaml: is not YAML")
        return real(name)

    monkeypatch.setattr(daemon.registry, "find", find)
    monkeypatch.setattr(daemon.registry, "rows", lambda: ["a", "broken", "just-gone", "z"])
    listed = list(stub.List(pb.Empty()).models)
    assert [model.name for model in listed] == ["a", "broken", "z"]
    assert [model.problem for model in listed] == ["", "/srv/broken.yaml: is not YAML", ""]
    with refused(ManifestError, "/srv/broken.yaml: is not YAML"):
        stub.Describe(pb.NameRequest(name="broken"))


def test_another_manifest_under_a_name_needs_to_say_that_it_replaces(stub: Any, manifest: Callable[..., str]) -> None:
    register(stub, manifest())
    with refused(ModelExistsError, "m"):
        register(stub, manifest(file="b"))
    assert "b.safetensors" in register(stub, manifest(file="b"), replace=True).manifest_json


def test_a_load_ends_with_the_replica_and_its_story_is_described(stub: Any, manifest: Callable[..., str]) -> None:
    register(stub, manifest())
    *_, last = stub.Load(pb.LoadRequest(name="m", place="cpu"))
    assert (last.phase, last.done, last.replica.state, last.replica.place) == ("done", True, "sealed", "cpu")
    assert last.done_bytes == last.total_bytes == last.replica.nbytes > 0
    (replica,) = stub.Describe(pb.NameRequest(name="m")).replicas
    assert len(replica.story) == 3
    assert [list(each.names) for each in stub.Resident(pb.Empty()).replicas] == [["m"]]


@pytest.mark.parametrize("deadline_s", [-1.0, float("nan"), 1e12])
def test_a_deadline_out_of_range_is_refused_before_anything_is_loaded(
    daemon: Daemon, stub: Any, manifest: Callable[..., str], deadline_s: float
) -> None:
    register(stub, manifest())
    with refused(CallerError, "deadline_s is "):
        list(stub.Load(pb.LoadRequest(name="m", deadline_s=deadline_s)))
    assert daemon.store.counters["prefetches"] == 0


def test_a_load_of_a_place_or_a_name_that_is_none_is_refused(stub: Any) -> None:
    with refused(CallerError, "'moon' is not a place"):
        list(stub.Load(pb.LoadRequest(name="m", place="moon")))
    with refused(ModelNotFoundError, "absent"):
        list(stub.Load(pb.LoadRequest(name="absent")))


def test_an_eviction_tells_what_was_freed_and_what_waits_for_readers(
    daemon: Daemon, stub: Any, manifest: Callable[..., str]
) -> None:
    register(stub, manifest())
    asker = Asker(daemon)
    asker.open("m")
    list(stub.Load(pb.LoadRequest(name="m", place="disk")))
    with refused(InUseError, "1 lease(s)"):
        stub.Evict(pb.EvictRequest(name="m", place="cpu"))
    reply = stub.Evict(pb.EvictRequest(name="m", drain=True))
    assert (list(reply.freed), list(reply.draining)) == (["disk"], ["cpu"])
    asker.end()


def test_a_pin_is_at_cpu_unless_the_call_names_a_place(daemon: Daemon, stub: Any, manifest: Callable[..., str]) -> None:
    register(stub, manifest())
    stub.Pin(pb.PinRequest(name="m"))
    stub.Pin(pb.PinRequest(name="m", place="disk"))
    assert daemon.catalog.pins() == [("m", "cpu"), ("m", "disk")]
    stub.Unpin(pb.PinRequest(name="m", place="disk"))
    assert daemon.catalog.pins() == [("m", "cpu")]
    with refused(NotSupportedError, "no tier gpu:0"):
        stub.Pin(pb.PinRequest(name="m", place="gpu"))


def test_a_drained_daemon_says_so(daemon: Daemon, stub: Any) -> None:
    health = stub.Health(pb.Empty())
    assert (health.status, health.pid, health.boot) == ("serving", os.getpid(), daemon.boot)
    assert health.state_dir == str(daemon.config.state_dir)
    stub.Drain(pb.Empty())
    assert stub.Health(pb.Empty()).status == "draining"


def test_a_watcher_is_told_every_change_from_the_moment_it_subscribed(
    daemon: Daemon, stub: Any, manifest: Callable[..., str]
) -> None:
    register(stub, manifest())
    changes = stub.Watch(pb.Empty())
    changes.initial_metadata()
    list(stub.Load(pb.LoadRequest(name="m")))
    seen = [next(changes) for _ in range(3)]
    assert [change.new for change in seen] == ["queued", "filling", "sealed"]
    assert list(seen[-1].names) == ["m"]
    changes.cancel()
    wait_until(lambda: len(daemon.store.watchers) == 0, "it is still subscribed")


def test_a_watcher_of_models_gets_the_names_of_those_that_changed(
    daemon: Daemon, stub: Any, manifest: Callable[..., str]
) -> None:
    changes = stub.WatchModels(pb.Empty(), timeout=20)
    first = next(changes)
    assert (list(first.names), first.all, first.outside) == ([], False, False)

    def next_names() -> list[str]:
        change = next(changes)
        assert not change.all
        return list(change.names)

    register(stub, manifest())
    assert next_names() == ["m"]
    list(stub.Load(pb.LoadRequest(name="m")))
    assert next_names() == ["m"], "its image is known"
    key = stub.Describe(pb.NameRequest(name="m")).key
    tensor = pb.TensorInfo(name="x", dtype="FP32", shape=[-1])
    stub.Learn(pb.LearnRequest(name="m", key=key, inputs=[tensor], outputs=[tensor]))
    assert next_names() == ["m"], "its tensors are known"
    stub.Unregister(pb.NameRequest(name="m"))
    assert next_names() == ["m"]
    changes.cancel()
    wait_until(lambda: len(daemon.store.model_changes) == 0, "it is still subscribed")


def test_one_stream_too_many_is_refused_and_short_calls_go_on(
    serve: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 1)
    daemon = serve()
    with control(str(daemon.config.runtime_dir)) as stub:
        first = stub.Watch(pb.Empty())
        first.initial_metadata()
        with refused(CapacityError, "1 loads and watches are running, which is the limit"):
            list(stub.Load(pb.LoadRequest(name="m")))
        assert stub.Health(pb.Empty()).status == "serving"
        first.cancel()


def test_a_bug_in_a_call_ends_that_call_only_and_is_logged(
    daemon: Daemon, stub: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(daemon.store, "drain", fails)
    with refused(InternalError, "ZeroDivisionError: surprise; the daemon's log has the details"):
        stub.Drain(pb.Empty())
    assert "Drain failed" in caplog.text
    assert stub.Health(pb.Empty()).status == "serving"


def test_a_check_and_the_figures_tell_what_is_there(stub: Any, manifest: Callable[..., str]) -> None:
    register(stub, manifest())
    *_, last = stub.Load(pb.LoadRequest(name="m"))
    report = stub.Check(pb.CheckRequest(verify=True))
    assert (list(report.findings), report.replicas, report.verified_bytes) == ([], 1, last.replica.nbytes)
    stats = stub.Stats(pb.Empty())
    assert {tier.place: tier.replicas for tier in stats.tiers} == {"cpu": 1, "disk": 0, "file": 0, "cloud": 0}
    assert (stats.counters["prefetches"], stats.gpu_off, stats.sessions) == (1, "gpus is none", 0)


@pytest.mark.parametrize("purge", [True, False])
def test_a_shutdown_asks_the_daemon_to_end_after_the_answer(
    daemon: Daemon, stub: Any, monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(daemon.control, "_on_shutdown", asked.append)
    stub.Shutdown(pb.ShutdownRequest(purge=purge))
    assert asked == [purge]
