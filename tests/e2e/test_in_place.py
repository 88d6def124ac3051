"""Artifacts served from their own files: at once, before they are read, and with what a mapped file promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet_files
import numpy as np
import pytest
from looking import WAIT_S, leases, wait_until
from safetensors.numpy import save_file
from trims_client import connect

from trims.core.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    BrokenWeightsError,
    CallerError,
    CapacityError,
    DigestMismatchError,
    NotInPlaceError,
    NotSupportedError,
    PermissionDeniedError,
)
from trims.core.place import CPU, FILE
from trims.core.replica import State
from trims.daemon.budget import Budget
from trims.daemon.check import check_store
from trims.image.in_place import MAX_FILES
from trims.store.fill import plans
from trims.store.resolve import artifacts, file_digests, hashing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims_client import Session

    from trims.daemon.main import Daemon

WEIGHTS = {"weight": np.arange(100_000), "half": np.arange(7, dtype="f2")}


pytestmark = pytest.mark.usefixtures("own_files", "forked_starts")


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(trust="identity")


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("m", WEIGHTS)


def places(daemon: Daemon) -> set[str]:
    return {str(place) for (_, place), each in daemon.store.residency.replicas.items() if each.state is State.SEALED}


def register(daemon: Daemon, path: Path, residency: dict[str, Any] | None = None, **artifact: object) -> None:
    manifest = {"name": "m", "artifact": {"path": str(path), **artifact}, "residency": residency or {}}
    daemon.registry.put(manifest, "")


# -- what a reader gets ------------------------------------------------------------------------------------------------


def test_a_first_arrival_is_served_from_its_file_before_it_is_read(
    daemon: Daemon, session: Session, model: Path
) -> None:
    with session.open_file(model) as weights:
        assert (weights.place, weights.warm, weights.shared) == ("file", False, True)
        for name, array in WEIGHTS.items():
            np.testing.assert_array_equal(weights[name], array)
        with pytest.raises(ValueError, match="read-only"):
            weights["weight"][0] = 1
        assert str(model) in Path("/proc/self/maps").read_text(), "it is the file itself that is mapped"
    assert daemon.catalog.digests(str(model), _identity(model)) is None
    assert places(daemon) == {"file"}


def test_a_prefetch_of_what_was_never_converted_makes_it_ready_where_it_lies(
    daemon: Daemon, session: Session, model: Path
) -> None:
    register(daemon, model)
    for prefetches in (1, 2, 3):  # however often: it is no use of the model
        session.prefetch("m")
        wait_until(lambda: places(daemon) == {"file"}, "it is not ready")
        wait_until(lambda count=prefetches: daemon.store.counters["prefetches"] == count, "it was not asked for")  # type: ignore[misc]
    with session.open("m") as weights:
        assert (weights.place, weights.warm) == ("file", True)
    assert daemon.catalog.digests(str(model), _identity(model)) is None
    session.prefetch("m", place="cpu")
    wait_until(lambda: places(daemon) == {"file", "cpu"}, "it is not loaded at the place that was named")


def _identity(path: Path) -> str:
    from trims.store.catalog import identity_of

    return identity_of(path)


def test_private_data_is_copy_on_write(session: Session, model: Path) -> None:
    with session.open_file(model) as weights:
        before = model.read_bytes()
        weights.private_raw("weight")[:8] = b"\xff" * 8
        assert weights["weight"][0] == 0
    assert model.read_bytes() == before


def test_shards_are_mapped_together(session: Session, folder: Path) -> None:
    for number in range(3):
        save_file({f"t{number}": np.full(1000, number)}, folder / f"{number}.safetensors")
    main = folder / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {f"t{number}": f"{number}.safetensors" for number in range(3)}}))
    with session.open_file(main) as weights:
        assert weights.place == "file"
        assert [int(weights[f"t{number}"].sum()) for number in range(3)] == [0, 1000, 2000]


def test_isolated_processes_read_the_same_pages(daemon: Daemon, model: Path) -> None:
    program = "import sys, trims; w = trims.open_file(sys.argv[1]); print(w.place, w['weight'].sum()); w.close()"
    environment = {**os.environ, "TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(model)],
        capture_output=True, text=True, check=True, timeout=300, env=environment,
    )  # fmt: skip
    assert done.stdout.split() == ["file", str(WEIGHTS["weight"].sum())]
    wait_until(lambda: leases(daemon) == 0, "the lease outlives its process")


def test_a_torch_checkpoint_is_served_from_its_file(daemon: Daemon, session: Session, folder: Path) -> None:
    import torch

    import trims

    module = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.BatchNorm1d(400))
    torch.save({"model": module.state_dict(), "epoch": 3}, folder / "m.pt")
    with session.open_file(folder / "m.pt") as weights:
        assert (weights.place, weights.warm, weights.shared) == ("file", False, True)
        state = trims.torch.state_dict(weights)
        assert list(state) == list(module.state_dict())
        assert all(torch.equal(state[name], value) for name, value in module.state_dict().items())
        del state
    assert places(daemon) == {"file"}


def test_an_mxnet_model_is_served_from_its_files(session: Session, folder: Path) -> None:
    main = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (3, 1000), fill=7)})
    with session.open_file(main) as weights:
        assert weights.place == "file"
        assert weights["w"].tobytes() == b"\x07" * 12_000
        program = weights.program()
        assert program is not None
        assert (program.kind, json.loads(program.body)) == ("mxnet-symbol", mxnet_files.SYMBOL)


def test_arrays_of_numpy_are_served_from_their_files(daemon: Daemon, session: Session, folder: Path) -> None:
    arrays = {"w": np.arange(12, dtype="f4").reshape(3, 4), "scalar": np.float64(7), "flags": np.array([True, False])}
    np.savez(folder / "m.npz", **arrays)
    np.save(folder / "m.npy", arrays["w"])
    with session.open_file(folder / "m.npz") as weights:
        assert (weights.place, weights.warm, list(weights)) == ("file", False, list(arrays))
        for name, array in arrays.items():
            assert (weights[name].dtype, weights[name].flags.aligned) == (np.asarray(array).dtype, True)
            np.testing.assert_array_equal(weights[name], array)
    with session.open_file(folder / "m.npy") as weights:
        assert (weights.place, weights.copied_bytes) == ("file", 0)
        np.testing.assert_array_equal(weights["arr_0"], arrays["w"])
    assert daemon.store.counters["fills.cpu"] == 0


# fault (in place): tensors unaligned, or not in the file as in memory
@pytest.mark.parametrize("how", ["compressed", "columns", "big endian"])
def test_arrays_that_need_it_are_converted_and_the_log_says_why(
    how: str, session: Session, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trims.store.resolve.in_place")
    array = np.arange(6.0).reshape(2, 3)
    stored = {"columns": np.asfortranarray(array), "big endian": array.astype(">f8")}.get(how, array)
    (np.savez_compressed if how == "compressed" else np.savez)(folder / "m.npz", w=stored)
    with session.open_file(folder / "m.npz") as weights:
        assert weights.place == "cpu"
        np.testing.assert_array_equal(weights["w"], array)
    (told,) = [record.message for record in caplog.records if "is converted" in record.message]
    assert {"compressed": "packed", "columns": "column-major"}.get(how, how) in told


@pytest.mark.parametrize("how", ["legacy", "columns", "conjugated", "negated", "compressed"])
def test_a_torch_checkpoint_that_needs_it_is_converted(how: str, session: Session, folder: Path) -> None:
    import torch

    value = torch.arange(12.0).reshape(3, 4)
    complex_value = torch.complex(value, value + 1)
    made = {"columns": value.t(), "conjugated": complex_value.conj(), "negated": torch._neg_view(value)}
    saved = {"w": made.get(how, value)}
    torch.save(saved, folder / "m.pt", _use_new_zipfile_serialization=how != "legacy")
    if how == "compressed":
        compress(folder / "m.pt")
    with session.open_file(folder / "m.pt") as weights:
        assert weights.place == "cpu"
        np.testing.assert_array_equal(weights["w"], saved["w"].resolve_conj().resolve_neg().numpy())


def compress(path: Path) -> None:
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in members.items():
            new.writestr(name, data)


def test_torch_gets_its_tensors_over_the_file(session: Session, model: Path) -> None:
    import trims

    with session.open_file(model) as weights:
        state = trims.torch.state_dict(weights)
        assert int(state["weight"].sum()) == WEIGHTS["weight"].sum()
        del state


# -- modules that have no skeleton yet ---------------------------------------------------------------------------------

BUILDER = """
import torch

def build(width):
    module = torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.BatchNorm1d(4))
    module.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
    return module
"""


@pytest.fixture
def built(daemon: Daemon, folder: Path) -> Iterator[dict[str, Any]]:
    """The model `m` with a builder in its manifest's folder; its state dict."""
    import torch

    name = f"builder_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(BUILDER)
    state = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict()
    torch.save({**state, "left.over": torch.ones(1)}, folder / "m.pt")
    options = {"module": f"{name}:build", "module_args": {"width": 3}, "ignore": ["left.*"]}
    daemon.registry.put({"name": "m", "artifact": {"path": "m.pt", "options": options}}, str(folder))
    yield dict(state)
    sys.modules.pop(name, None)


def same_module(made: Any, state: dict[str, Any]) -> bool:
    import torch

    assert not made.training
    assert torch.equal(made.get_buffer("scale"), torch.full((4,), 2.0))
    found = made.state_dict()
    return list(found) == list(state) and all(torch.equal(found[name], value) for name, value in state.items())


def test_the_first_callers_module_is_built_by_its_builder_and_a_later_one_unpickled(
    session: Session, built: dict[str, Any]
) -> None:
    import trims

    with session.open("m") as weights:
        program = weights.program()
        assert (weights.place, program and program.kind) == ("file", "torch-builder")
        made = trims.torch.module(weights)
        assert same_module(made, built)
        assert made.get_parameter("0.weight").requires_grad
        with pytest.raises(PermissionDeniedError, match="torch builder of 'm' runs code"):
            trims.torch.module(weights, trust_program=False)
        del made

    def has_a_skeleton() -> bool:
        with session.open("m") as weights:
            program = weights.program()
            assert same_module(trims.torch.module(weights), built)
            return bool(program and program.kind == "torch-skeleton" and weights.place == "cpu")

    wait_until(has_a_skeleton, "no converter has made a skeleton")


@pytest.mark.parametrize("place", ["file", "cpu", "disk"])
def test_a_module_that_cannot_be_pickled_is_served_at_every_place(
    daemon: Daemon, session: Session, folder: Path, place: str
) -> None:
    import torch

    import trims
    from trims.testing.torch_modules import weight_normed

    own = weight_normed().eval()
    torch.save(own.state_dict(), folder / "m.pt")
    options = {"module": "trims.testing.torch_modules:weight_normed"}
    daemon.registry.put({"name": "m", "artifact": {"path": "m.pt", "options": options}}, str(folder))
    values = torch.linspace(-1, 1, 6).view(2, 3)
    with session.open("m", place=place) as weights, torch.inference_mode():
        assert weights.place == place
        assert torch.equal(trims.torch.module(weights)(values), own(values))


def test_a_builder_that_cannot_be_imported_here_is_told_with_the_way_out(
    session: Session, built: dict[str, Any], folder: Path
) -> None:
    import trims

    (source,) = folder.glob("builder_*.py")
    with session.open("m") as weights:
        hidden = source.rename(folder / "hidden")
        with pytest.raises(NotSupportedError, match=r"No module named .*; open it with place='cpu'"):
            trims.torch.module(weights)
        hidden.rename(source)
    with session.open("m", place="cpu") as weights:
        assert same_module(trims.torch.module(weights), built)


NET = """
import torch

class Net(torch.nn.Linear):
    who = {who!r}

def build():
    return Net(4, 4)

def half():
    return build().half()

def fails():
    raise RuntimeError("boom")
"""


@pytest.fixture
def folders(daemon: Daemon, folder: Path) -> Iterator[Callable[..., str]]:
    """Registers a model whose builder lies in the manifest's own folder; returns the builder's module."""
    import torch

    module = f"net_{folder.name.replace('-', '_')}"
    torch.save(torch.nn.Linear(4, 4).state_dict(), folder / "m.pt")

    def put(name: str, call: str = "build") -> str:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"{module}.py").write_text(NET.format(who=name))
        artifact = {"path": str(folder / "m.pt"), "options": {"module": f"{module}:{call}"}}
        daemon.registry.put({"name": name, "artifact": artifact}, str(folder / name))
        return module

    yield put
    sys.modules.pop(module, None)


def test_two_manifests_over_one_file_have_each_its_own_builder(
    session: Session, folders: Callable[..., str], folder: Path
) -> None:
    import trims

    for place in (None, "cpu"):
        for name in ("a", "b"):
            sys.modules.pop(folders(name) if place is None else _net_of(folder), None)
            with session.open(name, place=place) as weights:
                assert trims.torch.module(weights).who == name


def _net_of(folder: Path) -> str:
    return f"net_{folder.name.replace('-', '_')}"


@pytest.mark.parametrize("place", ["file", "cpu"])
def test_a_process_that_has_the_module_of_another_folder_is_told_of_both_files(
    place: str, session: Session, folders: Callable[..., str], folder: Path
) -> None:
    import trims

    folders("a")
    module = folders("b")
    with session.open("a", place=place) as weights:
        assert trims.torch.module(weights).who == "a"
    with session.open("b", place=place) as weights:
        both = rf"{folder}/b/{module}\.py, .*{folder}/a/{module}\.py"
        with pytest.raises(NotSupportedError, match=both):
            trims.torch.module(weights)


def test_a_skeleton_finds_its_classes_beside_the_manifest(
    session: Session, folders: Callable[..., str], folder: Path
) -> None:
    import trims

    module = folders("a")
    with session.open("a", place="cpu") as weights:
        program = weights.program()
        assert program is not None
        assert (program.kind, program.attributes["origin"]) == ("torch-skeleton", str(folder / "a"))
        before = list(sys.path)
        assert trims.torch.module(weights).who == "a"
        assert sys.path == before
        sys.modules.pop(module)
        (folder / "a" / f"{module}.py").unlink()
        with pytest.raises(NotSupportedError, match=rf"No module named '{module}'; it lay in .*, or use load_into"):
            trims.torch.module(weights)


@pytest.mark.parametrize(
    ("call", "words"), [("half", "'weight' is F32.*, the module has"), ("fails", "raised RuntimeError: boom")]
)
def test_a_builder_whose_module_does_not_fit_is_refused_alike_at_file_and_in_memory(
    call: str, words: str, session: Session, folders: Callable[..., str]
) -> None:
    import trims

    folders("a", call)
    with session.open("a") as weights, pytest.raises(ArtifactError, match=words):
        trims.torch.module(weights)
    with pytest.raises(ArtifactError, match=words):
        session.open("a", place="cpu")


# fault (capacity): a conversion behind readers fails each time -> nothing; readers go on over the file; retries at
# doubling pauses; `trims show` says why
def test_a_conversion_that_fails_behind_its_readers_is_told_once_and_shown(
    daemon: Daemon, session: Session, folders: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    folders("a", "half")

    def shown() -> str:
        session.open("a").close()
        return daemon.store.read.in_memory(daemon.store.read.image_of("a"))

    wait_until(lambda: "its conversion failed" in shown(), "no conversion has failed")
    assert "no: its conversion failed: " in shown()
    assert "the module has F16[4, 4]" in shown()

    def told() -> int:
        return sum("cannot be brought to cpu behind its readers" in record.message for record in caplog.records)

    wait_until(lambda: told() > 0, "the failure is not logged")
    daemon.store.residency.promotions.not_before_s = 0.0
    for _ in range(20):
        session.open("a").close()
    assert daemon.store.counters["earned_copies_failed"] == 1
    assert told() == 1
    daemon.store.manifest_changed("a")
    assert daemon.store.residency.failure_of(daemon.store.key_of("a")) is None


# -- behind the reader -------------------------------------------------------------------------------------------------


def test_use_has_it_hashed_and_brought_to_memory(daemon: Daemon, session: Session, model: Path) -> None:
    readers = [session.open_file(model) for _ in range(2)]
    wait_until(lambda: daemon.catalog.digests(str(model), _identity(model)) is not None, "it is not hashed")

    def in_memory() -> bool:
        with session.open_file(model) as weights:
            np.testing.assert_array_equal(weights["weight"], WEIGHTS["weight"])
            return weights.place == "cpu"

    wait_until(in_memory, "its use has not brought it to memory")
    assert {weights.place for weights in readers} == {"file"}
    np.testing.assert_array_equal(readers[0]["weight"], WEIGHTS["weight"])
    for weights in readers:
        weights.close()


def test_a_long_file_is_brought_to_memory_by_a_process_that_gives_way(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    weights = {f"weight.{number}": np.random.default_rng(number).random((333, 4001)) for number in range(2)}
    path = checkpoint("long", weights)
    for _ in range(2):
        session.open_file(path).close()

    def in_memory() -> bool:
        with session.open_file(path) as found:
            for name, value in weights.items():
                np.testing.assert_array_equal(found[name], value)
            return found.place == "cpu"

    wait_until(in_memory, "its use has not brought it to memory")
    (copier,) = daemon.store._parts.rate_limiter.copiers._idle
    assert os.sched_getscheduler(copier.pid) == os.SCHED_IDLE
    assert check_store(daemon.store, verify=True).findings == []


def test_the_second_open_of_a_file_has_its_image_brought_to_memory(
    daemon: Daemon, session: Session, model: Path
) -> None:
    for _ in range(2):
        with session.open_file(model) as weights:
            assert weights.place == "file"
    wait_until(lambda: "cpu" in places(daemon), "two opens have not earned it a place in memory")
    with session.open_file(model) as weights:
        assert (weights.place, weights["weight"].tolist()) == ("cpu", WEIGHTS["weight"].tolist())


# fault (orders): a file is written while it is read, or twice in one clock tick -> an open at `cpu` in that moment
# may get both; later ones the file's bytes
def test_a_file_that_is_opened_while_it_is_written_is_read_again_when_it_rests(
    daemon: Daemon, session: Session, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = [False]
    monkeypatch.setattr(daemon.store._opens._resolver._digests, "rest_s", lambda _: -1.0 if rests[0] else 0.05)
    written = file_digests.identity_of(model)  # a write in the same tick of the clock leaves it as it is
    for module in (file_digests, hashing):
        monkeypatch.setattr(module, "identity_of", lambda _: written)
    for module in (artifacts, plans):
        monkeypatch.setattr(module, "identities_of", lambda _: (written,))

    def last_value() -> float:
        with session.open_file(model, place="cpu") as weights:
            return float(weights["half"][-1])

    assert last_value() == 6.0
    times = model.stat().st_mtime_ns
    save_file({**WEIGHTS, "half": np.full(7, 9.0, "f2")}, model)
    os.utime(model, ns=(times, times))
    rests[0] = True
    wait_until(lambda: last_value() == 9.0, "what was read while the file was written is still served")


def pinned_images(daemon: Daemon) -> list[str]:
    """Return the keys that the books have as pinned; the images themselves may still be on their way to memory."""
    return sorted(key for key, _ in daemon.store.residency.capacity.pins)


def replace_file(model: Path, value: float) -> None:
    successor = model.with_suffix(".new")
    save_file({**WEIGHTS, "half": np.full(7, value, "f2")}, successor)
    os.replace(successor, model)


# fault (in place): the file of a pinned model is replaced -> the pin moves to the new image once it was read
def test_a_pin_moves_to_the_image_of_a_replaced_file_that_is_opened_in_place(
    daemon: Daemon, session: Session, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon.store._opens._resolver._digests, "rest_s", lambda _: -1.0)
    register(daemon, model)
    daemon.store.load("m", CPU).result(WAIT_S)
    daemon.store.pin("m", CPU, pinned=True)
    (first,) = pinned_images(daemon)
    for value in (1.0, 2.0):
        before = pinned_images(daemon)
        replace_file(model, value)
        daemon.store.resolver.looked_stale("m")
        with session.open("m") as weights:
            assert (weights.place, weights["half"].tolist()) == ("file", [value] * 7)
        wait_until(lambda before=before: pinned_images(daemon) not in ([], before), "the pin does not move")
        assert len(pinned_images(daemon)) == 1
    daemon.store.pin("m", CPU, pinned=False)
    assert pinned_images(daemon) == []
    daemon.store.evict_image(first, CPU)


def test_a_model_is_unpinned_while_its_replaced_file_is_not_read(
    daemon: Daemon, session: Session, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(daemon, model)
    daemon.store.load("m", CPU).result(WAIT_S)
    daemon.store.pin("m", CPU, pinned=True)
    monkeypatch.setattr(daemon.store._opens, "_learn", lambda _: None)
    replace_file(model, 1.0)
    daemon.store.resolver.looked_stale("m")
    session.open("m", place="file").close()
    assert len(pinned_images(daemon)) == 1
    daemon.store.pin("m", CPU, pinned=False)
    assert pinned_images(daemon) == []


def test_a_request_for_memory_does_not_wait_for_what_goes_at_a_pace(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(trust="identity", behind_bytes_per_s=200_000)
    path = checkpoint("long", {"weight": np.random.default_rng(1).random((666, 4001))})
    with connect(daemon.config.runtime_dir) as session:
        for _ in range(2):
            session.open_file(path).close()
        wait_until(lambda: bool(daemon.store._opens._learning), "it is not being hashed")
        with session.open_file(path, place="cpu", deadline_s=20.0) as weights:  # at the pace it would take 100 s
            assert weights.place == "cpu"


def test_one_use_reads_nothing_behind(daemon: Daemon, session: Session, model: Path) -> None:
    session.open_file(model).close()
    session.open_file(model, place="file").close()
    assert daemon.store.counters["fills.cpu"] == 0
    assert not daemon.store._opens._learning


def test_what_no_reader_has_open_is_closed_after_a_minute(daemon: Daemon, session: Session, model: Path) -> None:
    session.open_file(model).close()
    wait_until(lambda: leases(daemon) == 0, "the lease stays")
    daemon.store.tick(daemon.store._clock() + 61.0)
    wait_until(lambda: places(daemon) == set(), "it stays open")
    with session.open_file(model) as weights:
        assert not weights.warm


# -- when it is not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("residency", "artifact"),
    [
        ({"place": "cpu"}, {}),
        ({"pin": True}, {}),
        ({"persist": "always"}, {}),
        ({}, {"trust": "verified"}),
    ],
)
def test_a_manifest_may_ask_for_more_than_a_mapped_file(
    residency: dict[str, Any], artifact: dict[str, Any], daemon: Daemon, session: Session, model: Path
) -> None:
    register(daemon, model, residency, **artifact)
    with session.open("m") as weights:
        assert weights.place == "cpu"
        np.testing.assert_array_equal(weights["weight"], WEIGHTS["weight"])


def test_a_stated_digest_that_is_wrong_is_found_before_a_reader_has_the_file(
    daemon: Daemon, session: Session, model: Path
) -> None:
    register(daemon, model, sha256={model.name: "0" * 64})
    with pytest.raises(DigestMismatchError):
        session.open("m")


# fault (in place): another user owns the file or may write to it -> nothing; hashed and copied first
def test_a_file_that_others_may_write_to_is_read_first(session: Session, model: Path) -> None:
    model.chmod(0o664)
    with session.open_file(model) as weights:
        assert weights.place == "cpu"


def test_a_daemon_that_verifies_reads_it_first(serve: Callable[..., Daemon], model: Path) -> None:
    daemon = serve(trust="verified")
    with connect(daemon.config.runtime_dir) as session, session.open_file(model) as weights:
        assert weights.place == "cpu"
        with pytest.raises(NotInPlaceError, match="cannot be served at file: by its settings"):
            session.open_file(model, place="file")


def test_a_file_that_cannot_be_served_in_place_is_refused_with_its_own_reason(
    daemon: Daemon, session: Session, model: Path, folder: Path
) -> None:
    register(daemon, model, {"persist": "always"})
    with pytest.raises(NotInPlaceError, match=r"^m cannot be served at file: its manifest wants an image .* a place$"):
        session.open("m", place="file")
    model.chmod(0o664)
    with pytest.raises(NotInPlaceError, match=f"{model.name} may be written by users other than the daemon's"):
        session.open_file(model, place="file")
    np.save(folder / "big.npy", np.arange(5, dtype=">f4"))
    with session.open_file(folder / "big.npy") as weights:
        assert weights.place == "cpu"
    for _ in range(2):
        with pytest.raises(
            NotInPlaceError, match=r"big\.npy cannot be served at file: its numbers are big endian; open"
        ):
            session.open_file(folder / "big.npy", place="file")


def unaligned(folder: Path) -> Path:
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    path = folder / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.array([1, 2], "f4").tobytes())
    assert (8 + len(header)) % 4
    return path


def test_tensors_that_are_not_aligned_are_copied_one_by_one(daemon: Daemon, session: Session, folder: Path) -> None:
    with session.open_file(unaligned(folder)) as weights, session.open_file(folder / "odd.safetensors") as other:
        assert (weights.place, weights.copied_bytes) == ("file", 0)
        for _ in range(2):
            assert weights["a"].tolist() == [1, 2]
        assert weights["a"].flags.aligned
        assert (weights.copied_bytes, other.copied_bytes) == (8, 0)
        private = weights.private_raw("a")
        private[:4] = b"\xff" * 4
        assert weights["a"].tolist() == other["a"].tolist() == [1, 2]
    assert places(daemon) == {"file"}


def test_what_must_be_converted_is_remembered(daemon: Daemon, session: Session, folder: Path) -> None:
    np.savez_compressed(folder / "m.npz", a=np.arange(2))
    for _ in range(2):
        with session.open_file(folder / "m.npz") as weights:
            assert weights.place == "cpu"
            assert weights["a"].tolist() == [0, 1]
    with pytest.raises(NotInPlaceError):
        session.open_file(folder / "m.npz", place="file")
    assert daemon.store.counters["fills.file"] == 0


def test_memory_is_there_for_those_that_name_it(daemon: Daemon, session: Session, model: Path) -> None:
    with session.open_file(model) as in_file, session.open_file(model, place="cpu") as in_memory:
        assert (in_file.place, in_memory.place) == ("file", "cpu")
        np.testing.assert_array_equal(in_file["weight"], in_memory["weight"])
    with session.open_file(model) as weights:
        assert weights.place == "cpu", "it lies there now"
    with session.open_file(model, place="file") as weights:
        assert weights.place == "file"


# -- bad days ----------------------------------------------------------------------------------------------------------


# fault (in place): a file is replaced by a rename while read -> readers keep the old one; opens get the new one
# within half a second
def test_a_replaced_file_is_new_for_the_next_open_and_old_for_its_reader(
    session: Session, model: Path, folder: Path
) -> None:
    with session.open_file(model) as before:
        save_file({"weight": np.zeros(3)}, folder / "new")
        os.replace(folder / "new", model)

        def is_new() -> bool:
            with session.open_file(model) as weights:
                return weights["weight"].shape == (3,)

        wait_until(is_new, "the old file is served")
        np.testing.assert_array_equal(before["weight"], WEIGHTS["weight"])


# fault (in place): a file is cut short -> `bad_image`, later `bad_artifact`; a reader of the missing part ends by
# SIGBUS
# fault (in place): a file is removed and put back -> `artifact_not_found`, then served; readers keep it
def test_a_file_that_is_cut_short_or_gone_is_told_to_the_next_open(session: Session, model: Path) -> None:
    session.open_file(model).close()
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])

    def told() -> type[Exception] | None:
        try:
            session.open_file(model).close()
        except BrokenWeightsError as error:
            return type(error)
        return None

    assert told() is not None, "half a file is served"
    wait_until(lambda: told() is ArtifactError, "the daemon has not noticed")
    model.unlink()
    wait_until(lambda: told() is ArtifactNotFoundError, "a file that is gone is served")
    model.write_bytes(whole)
    wait_until(lambda: told() is None, "the file that is back is not served")


# fault (in place): the daemon is replaced while a session reads -> nothing
def test_a_reader_goes_on_while_the_daemon_is_replaced_and_needs_no_lease(
    serve: Callable[..., Daemon], model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = serve(trust="identity")
    with connect(first.config.runtime_dir) as session, session.open_file(model) as weights:
        first.ask_to_end()
        first.stop()
        second = serve(trust="identity")
        with session.open_file(model, deadline_s=60.0) as again:
            assert again.place == "file"
            np.testing.assert_array_equal(again["weight"], weights["weight"])
        assert not [record for record in caplog.records if "without a lease" in record.message]
        wait_until(lambda: leases(second) == 0, "a lease is left")
        np.testing.assert_array_equal(weights["weight"], WEIGHTS["weight"])


def test_an_eviction_waits_for_readers_and_a_removal_leaves_the_file(
    daemon: Daemon, session: Session, model: Path
) -> None:
    register(daemon, model)
    with session.open("m") as weights:
        assert daemon.store.evict("m", drain=True) == [FILE]
        assert weights["weight"].sum() == WEIGHTS["weight"].sum()
    wait_until(lambda: places(daemon) == set(), "it stays open")
    assert model.exists()


def test_books_and_views_name_it(daemon: Daemon, session: Session, model: Path) -> None:
    with session.open_file(model):
        (view,) = daemon.store.read.replicas()
        assert (str(view.id.place), view.names, view.leases) == ("file", (f"file:{model}",), 1)
        report = check_store(daemon.store, verify=True)
        assert (report.findings, report.replicas, report.verified_bytes) == ([], 1, 0)


def test_an_attach_of_what_is_no_file_is_refused(session: Session, model: Path) -> None:
    with session.open_file(model) as weights:
        channel = session._channel
        assert channel is not None
        (lease,) = weights._attachment.mapping.leases  # type: ignore[attr-defined]
        for number, file in ((lease.number, 1), (lease.number + 7, 0)):
            with pytest.raises(CallerError, match=r"none of them|open again"):
                channel.request({"op": "attach", "lease": number, "file": file})
        with pytest.raises(CallerError):
            channel.request({"op": "attach", "lease": lease.number})


def test_many_first_opens_of_what_must_be_converted_end(
    daemon: Daemon, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import logging
    import threading

    caplog.set_level(logging.INFO, "trims.store.resolve.in_place")
    found: list[str] = []
    for turn in range(4):
        (folder / str(turn)).mkdir()
        shards = {f"t{number}": f"{number}.safetensors" for number in range(MAX_FILES + 1)}
        for name, shard in shards.items():
            save_file({name: np.ones(2)}, folder / str(turn) / shard)
        path = folder / str(turn) / "m.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": shards}))

        def read(path: Path = path) -> None:
            with connect(daemon.config.runtime_dir) as session, session.open_file(path) as weights:
                found.append(weights.place)

        threads = [threading.Thread(target=read) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "an open goes round in a circle"
    assert found == ["cpu"] * 24
    told = [record for record in caplog.records if "is converted" in record.message]
    assert len(told) == 4, "each artifact is told of once"


# fault (in place): a replica at `file` is evicted, or found broken, while it is read -> nothing; freed after its last
# reader
def test_a_file_that_leaves_is_served_from_memory_meanwhile(daemon: Daemon, session: Session, model: Path) -> None:
    with session.open_file(model) as reader:
        assert daemon.store.evict(f"file:{model}", FILE, drain=True) == [FILE]
        with session.open_file(model) as weights:
            assert weights.place == "cpu"
            np.testing.assert_array_equal(weights["weight"], WEIGHTS["weight"])
        np.testing.assert_array_equal(reader["weight"], WEIGHTS["weight"])
    assert "refused.in_use" not in daemon.store.counters


# fault (in place): more files than descriptors -> converted instead; at `file` `too_large` with the remedy
def test_a_model_of_more_files_than_may_ever_be_open_is_converted(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.daemon.main.budget", lambda sessions: Budget(64, 16, 20))
    daemon = serve(trust="identity")
    shards = {f"t{number}": f"{number}.safetensors" for number in range(20)}
    for number, (name, shard) in enumerate(shards.items()):
        save_file({name: np.full(10, number)}, folder / shard)
    path = folder / "m.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": shards}))
    with connect(daemon.config.runtime_dir) as session:
        session.open_file(checkpoint("idle")).close()
        with session.open_file(path) as weights:
            assert (weights.place, int(weights["t7"].sum())) == ("cpu", 70)
        assert "file" in places(daemon), "an idle image was evicted, which could not help"
        with pytest.raises(CapacityError, match=f"{path.name} takes 21 open files .* allows 20 .* without a place"):
            session.open_file(path, place="file")


def test_idle_artifacts_of_many_files_give_their_descriptors_back(
    serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.daemon.main.budget", lambda sessions: Budget(64, 16, 40))
    daemon = serve(trust="identity")

    def sharded(name: str) -> Path:
        (folder / name).mkdir()
        shards = [f"{number}.safetensors" for number in range(20)]
        for number, shard in enumerate(shards):
            save_file({f"t{number}": np.full(10, number)}, folder / name / shard)
        main = folder / name / "m.safetensors.index.json"
        main.write_text(json.dumps({"weight_map": {f"t{number}": shard for number, shard in enumerate(shards)}}))
        return main

    with connect(daemon.config.runtime_dir) as session:
        for name in ("a", "b", "c"):
            with session.open_file(sharded(name)) as weights:
                assert (weights.place, int(weights["t7"].sum())) == ("file", 70)
            wait_until(lambda: leases(daemon) == 0, "the lease stays")
        assert len(daemon.store.residency.replicas) == 1, "what was idle longest was closed for it"
        fourth = sharded("d")
        with (
            session.open_file(folder / "c" / "m.safetensors.index.json"),
            pytest.raises(CapacityError, match="allows 40"),
        ):
            session.open_file(fourth)


def test_what_fits_nowhere_is_served_from_its_files_and_never_hashed(
    daemon: Daemon, session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = 1 << 40
    header = json.dumps({"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
    with (folder / "huge.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + nbytes)
    read = list[Path]()
    monkeypatch.setattr(hashing, "read_digests", lambda file, *how: read.append(file))
    monkeypatch.setattr(daemon.store.resolver._digests, "rest_s", lambda file: -1.0)
    for _ in range(5):
        with session.open_file(folder / "huge.safetensors") as weights:
            assert weights.place == "file"
        wait_until(lambda: not daemon.store._opens.lookups._looks, "nothing is looked into")
    assert read == []
    assert daemon.store.counters["refused.too_large"] == 1, "that is found out once"
