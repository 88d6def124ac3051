"""A machine with two devices, end to end: which of them serves a model, and what is left when one is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from looking import states
from on_device import OTHER_UUID, TOTAL_BYTES, UUID, read
from trims_client import connect

from trims.cli.main import main
from trims.core.errors import CapacityError
from trims.core.place import CPU, Place
from trims.daemon.check import check_store
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import lose_device, make_devices
from trims.trace import spans
from trims.trace.reader import read_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
FIRST, SECOND = Place.parse("gpu:0"), Place.parse("gpu:1")
#: A device has room for one model of this size, and not for two.
LARGE = 120 << 20


@pytest.fixture(params=["peers", "strangers"])
def two(request: pytest.FixtureRequest, serve_gpu: Callable[..., Daemon], folder: Path) -> Daemon:
    """A daemon with two devices, which can read each other's memory or not."""
    peers = (OTHER_UUID, UUID) if request.param == "peers" else ()
    devices = [Device(uuid, "Fake", TOTAL_BYTES, peers=peers) for uuid in (UUID, OTHER_UUID)]
    make_devices(folder / "cuda", devices)
    return serve_gpu()


@pytest.fixture
def lost(folder: Path) -> Iterator[Callable[[str], None]]:
    """Returns a function that loses a device; it is back at the end, so that all processes can let go of it."""
    yield lambda uuid: lose_device(folder / "cuda", uuid)
    for each in (folder / "cuda").glob("lost.*"):
        each.unlink()


def test_a_model_goes_to_the_device_with_room_and_is_served_there_from_then_on(
    two: Daemon, checkpoint: Callable[..., Path]
) -> None:
    paths = [checkpoint(name, nbytes=LARGE) for name in ("a", "b")]
    with connect(two.config.runtime_dir) as session:
        with session.open_file(paths[0], place="gpu") as one, session.open_file(paths[1], place="gpu") as other:
            assert (one.place, one.device) == ("gpu:0", UUID)
            assert (other.place, other.device) == ("gpu:1", OTHER_UUID)
        with session.open_file(paths[1], place="gpu") as again:
            assert (again.place, again.warm) == ("gpu:1", True)
    assert not check_store(two.store, verify=True).findings


def test_a_device_that_is_named_serves_though_the_other_has_more_room(
    two: Daemon, checkpoint: Callable[..., Path]
) -> None:
    held, path = checkpoint("a", nbytes=64 << 20), checkpoint("b")
    with connect(two.config.runtime_dir) as session, session.open_file(held, place="gpu:1"):
        with session.open_file(path, place="gpu:1") as weights:
            assert weights.place == "gpu:1"
        with session.open_file(path, place="gpu") as weights:
            assert (weights.place, weights.warm) == ("gpu:1", True), "it lies there"
        with session.open_file(checkpoint("c"), place="gpu") as weights:
            assert weights.place == "gpu:0", "it lies nowhere, and there is more room"


def test_with_no_room_on_any_device_the_error_has_the_numbers_of_all(
    two: Daemon, checkpoint: Callable[..., Path]
) -> None:
    paths = [checkpoint(name, nbytes=LARGE) for name in ("a", "b", "c")]
    with connect(two.config.runtime_dir) as session:
        with session.open_file(paths[0], place="gpu"), session.open_file(paths[1], place="gpu"):
            with pytest.raises(
                CapacityError,
                match=r"no room at gpu:1: 122\.0 MiB needed.* No other device .* gpu:0 has 86\.0 MiB free",
            ):
                session.open_file(paths[2], place="gpu")
            with session.open_file(paths[2], place=("gpu:1", "gpu", "cpu")) as weights:
                assert weights.place == "cpu"
        with session.open_file(paths[2], place="gpu", deadline_s=60) as weights:
            assert weights.place in ("gpu:0", "gpu:1"), "an idle model makes room"


def test_a_small_device_is_passed_over_for_one_that_can_take_the_model(
    serve_gpu: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path
) -> None:
    make_devices(folder / "cuda", [Device(UUID, "Small", 80 << 20), Device(OTHER_UUID, "Fake", TOTAL_BYTES)])
    daemon = serve_gpu()
    with connect(daemon.config.runtime_dir) as session:
        held = [session.open_file(checkpoint(f"held{number}", nbytes=90 << 20), place="gpu") for number in range(2)]
        assert [weights.place for weights in held] == ["gpu:1", "gpu:1"]
        with session.open_file(checkpoint("m"), place="gpu") as weights:
            assert weights.place == "gpu:0"
        for weights in held:
            weights.close()


def test_a_model_on_both_devices_is_copied_between_peers_and_given_up_by_name(
    two: Daemon, checkpoint: Callable[..., Path], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint("m", nbytes=20 << 20)
    name = f"file:{path}"
    are_peers = bool(json.loads((folder / "cuda" / "devices.json").read_text())[0]["peers"])
    spans.configure(folder / "trace", "tester", everything=True)
    with connect(two.config.runtime_dir) as session:
        session.open_file(path, place="gpu").close()
        two.store.evict(name, CPU)
        with session.open_file(path, place="gpu:1") as weights, session.open_file(path) as on_host:
            assert weights.device == OTHER_UUID
            assert read(weights.on_device("weight")) == bytes(on_host.raw("weight"))
    spans.stop()
    copies = {span.name for span in read_spans(folder / "trace") if span.name.startswith("copy.")}
    assert ("copy.gpu:0-gpu:1" in copies) is are_peers
    command = ["--runtime-dir", str(two.config.runtime_dir)]
    assert main([*command, "ps"]) == 0
    shown = capsys.readouterr().out
    assert "gpu:0" in shown
    assert "gpu:1" in shown
    assert main([*command, "evict", str(path), "--place", "gpu"]) == 0
    assert not {"gpu:0", "gpu:1"} & set(states(two))


# fault (gpus): one of two devices is lost
def test_what_a_lost_device_held_is_served_by_the_other_one(
    two: Daemon, checkpoint: Callable[..., Path], lost: Callable[[str], None]
) -> None:
    path = checkpoint("m", nbytes=4 << 20)
    with connect(two.config.runtime_dir) as session:
        with session.open_file(path, place="gpu") as weights:
            assert weights.place == "gpu:0"
        lost(UUID)
        with session.open_file(checkpoint("other"), place="gpu") as weights:
            assert weights.place == "gpu:1", "it was never on the lost device"
        with session.open_file(path, place="gpu") as weights, session.open_file(path) as on_host:
            assert weights.place == "gpu:1"
            assert read(weights.on_device("weight")) == bytes(on_host.raw("weight"))


def test_a_manifest_leads_to_any_device_and_pins_the_model_where_it_lies(
    two: Daemon, checkpoint: Callable[..., Path]
) -> None:
    held, path = checkpoint("held", nbytes=64 << 20), checkpoint("m")
    residency = {"place": "gpu", "pin": True}
    two.registry.put({"name": "m", "artifact": {"path": str(path)}, "residency": residency}, "")
    with connect(two.config.runtime_dir) as session, session.open_file(held, place="gpu:0"):
        with session.open("m") as weights:
            assert weights.place == "gpu:1"
        key = two.store.key_of("m")
        assert (key, SECOND) in two.store.residency.capacity.pins
