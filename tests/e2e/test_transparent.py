"""Frameworks' own load functions read from shared memory, and return what they return without that, to the bit."""

from __future__ import annotations

import functools
import gc
import io
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import weakref
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transparently import counted, installed  # noqa: F401 - a fixture
from trims_client import shared, transparent
from trims_client.transparent import file_bytes, outcomes

from trims.core.errors import DeadlineError
from trims.process.python import run_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
pytestmark = pytest.mark.usefixtures("daemon", "put_back")
_LETTERS = 1 << 19
#: Not by value, which an adapter would find.
PLAIN_LOAD, PLAIN_NUMPY = functools.partial(torch.load), functools.partial(np.load)


@pytest.fixture
def put_back(installed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: F811 - the fixture
    """The loaders are in place, small files are the frameworks' own, and the originals are back afterwards."""
    monkeypatch.setattr(file_bytes, "LEAST_BYTES", 1 << 20)
    yield
    transparent.uninstall()
    assert (torch.load, np.load) == (PLAIN_LOAD.func, PLAIN_NUMPY.func)


def weight() -> torch.Tensor:
    return torch.arange(_LETTERS, dtype=torch.float32).reshape(512, -1)


def nested() -> object:
    base = weight()
    return {
        "model": OrderedDict(w=base, tied=base, turned=base.t(), part=base[3:5, 1:7:2], empty=base[:0]),
        "step": 7, "args": {"lr": 1e-3, "name": "ü", "betas": (0.9, 0.999)}, 3: [torch.tensor(5), None, True],
    }  # fmt: skip


def of_many_types() -> object:
    found: dict[str, Any] = {"w": weight()}
    for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64, torch.int64, torch.uint8):
        found[str(dtype)] = (torch.arange(100) % 2).to(dtype)
    return found


def with_gradients() -> object:
    return {"p": torch.nn.Parameter(weight()), "q": weight().requires_grad_(), "frozen": weight()}


def of_a_module() -> object:
    return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512)).state_dict()


def storages_of(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for each in value.values():
            storages_of(each, found)
    elif isinstance(value, (list, tuple)):
        for each in value:
            storages_of(each, found)
    return found


def as_bytes(value: object) -> bytes:
    """All that pickle knows of a value: types, order, dtypes, strides, offsets, aliases, and the bytes."""
    into = io.BytesIO()
    torch.save(value, into)
    with zipfile.ZipFile(into) as members:
        return b"".join(members.read(name) for name in sorted(members.namelist()) if "serialization_id" not in name)


@pytest.mark.parametrize("make", [nested, of_many_types, with_gradients, of_a_module])
@pytest.mark.parametrize("arguments", [{}, {"map_location": "cpu"}, {"weights_only": True}, {"weights_only": False}])
def test_torch_load_returns_what_it_returns_alone(
    make: Callable[[], object], arguments: dict[str, Any], tmp_path: Path
) -> None:
    torch.save(make(), path := tmp_path / "m.bin")
    alone, ours = PLAIN_LOAD(path, **arguments), torch.load(path, **arguments)
    assert counted() == (1, [])
    assert as_bytes(ours) == as_bytes(alone)
    for one, other in zip(storages_of(ours, []), storages_of(alone, []), strict=True):
        assert (type(one), one.requires_grad, one.is_contiguous()) == (
            type(other), other.requires_grad, other.is_contiguous(),
        )  # fmt: skip


def test_what_a_program_writes_into_its_weights_no_other_load_sees(tmp_path: Path) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    before = path.read_bytes()
    one, other = torch.load(path)["w"], torch.load(path)["w"]
    one += 1
    assert torch.equal(other, weight())
    assert torch.equal(torch.load(path)["w"], weight())
    assert (path.read_bytes(), counted()) == (before, (3, []))


def rewrite(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


def rename_over(path: Path, other: Path) -> None:
    other.rename(path)


def cut(path: Path, other: Path) -> None:
    del other
    os.truncate(path, 100)


def delete(path: Path, other: Path) -> None:
    del other
    path.unlink()


@pytest.mark.parametrize("change", [rewrite, rename_over, cut, delete])
def test_a_file_that_changes_after_its_load_changes_nothing_in_memory(
    change: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    torch.save({"w": weight() + 1}, other := tmp_path / "n.bin")
    loaded = torch.load(path)["w"]
    assert counted() == (1, [])
    change(path, other)
    assert torch.equal(loaded, weight())
    if change in (rewrite, rename_over):
        assert torch.equal(torch.load(path)["w"], weight() + 1)
    else:
        with pytest.raises((RuntimeError, FileNotFoundError, EOFError, pickle.UnpicklingError)) as ours:
            torch.load(path)
        with pytest.raises(type(ours.value)) as alone:
            PLAIN_LOAD(path)
        assert str(ours.value) == str(alone.value)


def small(path: Path) -> Any:
    torch.save({"w": torch.ones(4)}, path)
    return path


def legacy(path: Path) -> Any:
    torch.save({"w": weight()}, path, _use_new_zipfile_serialization=False)
    return path


def open_file(path: Path) -> Any:
    torch.save({"w": weight()}, path)
    return io.BytesIO(path.read_bytes())


def packed(path: Path) -> Any:
    """Members that another program has compressed: torch reads those, and cannot map them."""
    torch.save({"w": weight()}, path)
    with zipfile.ZipFile(path) as members, zipfile.ZipFile(path.with_suffix(".z"), "w", zipfile.ZIP_DEFLATED) as into:
        for name in members.namelist():
            into.writestr(name, members.read(name))
        into.writestr("m/data/filler", os.urandom(2 << 20))
    return path.with_suffix(".z")


@pytest.mark.parametrize(
    ("make", "reason"),
    [(small, "too small to pay"), (legacy, "no zip file of stored members"), (open_file, "not a path"),
     (packed, "no zip file of stored members")],
)  # fmt: skip
def test_what_cannot_be_shared_is_loaded_as_ever(make: Callable[[Path], Any], reason: str, tmp_path: Path) -> None:
    made = make(tmp_path / "m.bin")
    ours = torch.load(made)
    if isinstance(made, io.BytesIO):
        made.seek(0)
    assert as_bytes(ours) == as_bytes(PLAIN_LOAD(made))
    assert counted() == (0, [reason])


@pytest.mark.parametrize("load", ["torch", "numpy"])
def test_a_load_that_steps_aside_keeps_nothing_it_was_given(load: str) -> None:
    file = io.BytesIO()
    torch.save({"w": weight()}, file) if load == "torch" else np.save(file, np.ones(9))
    file.seek(0)
    gone = weakref.ref(file)
    gc.disable()
    try:
        (torch.load if load == "torch" else np.load)(file)  # type: ignore[operator]
        del file
        assert gone() is None
    finally:
        gc.enable()
    assert counted() == (0, ["not a path"])


def test_a_mode_of_none_maps_nothing_and_shares(tmp_path: Path) -> None:
    np.save(path := tmp_path / "a.npy", np.arange(1 << 18))
    assert type(np.load(path, mmap_mode=None)) is np.ndarray
    assert counted() == (1, [])


def test_a_stated_mmap_is_the_callers(tmp_path: Path) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    for stated in (True, False):
        assert torch.equal(torch.load(path, mmap=stated)["w"], weight())
    assert counted() == (0, ["mmap is stated"])


def test_errors_are_the_originals(tmp_path: Path) -> None:
    torch.save({"w": weight(), "code": io.BytesIO}, path := tmp_path / "m.bin")
    for arguments in ({"weights_only": True}, {"weights_only": True, "pickle_module": pickle}):
        with pytest.raises((pickle.UnpicklingError, RuntimeError)) as alone:
            PLAIN_LOAD(path, **arguments)
        with pytest.raises(type(alone.value)) as ours:
            torch.load(path, **arguments)
        assert str(ours.value) == str(alone.value)
    with pytest.raises(FileNotFoundError) as missing:
        torch.load(tmp_path / "none.bin")
    assert missing.value.__context__ is None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_torchscript_archive_is_loaded_once_by_torch(tmp_path: Path) -> None:
    module = torch.jit.trace(torch.nn.Linear(1024, 1024), torch.ones(1, 1024))
    module.save(path := tmp_path / "m.pt")
    with pytest.warns(UserWarning, match="TorchScript") as warned:
        loaded = torch.load(path, weights_only=False)
    assert sum("TorchScript" in str(each.message) for each in warned) == 1
    assert torch.equal(loaded(torch.ones(1, 1024)), module(torch.ones(1, 1024)))
    assert counted()[0] == 0


def test_without_a_daemon_the_framework_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(tmp_path))
    assert torch.equal(torch.load(path)["w"], weight())
    assert counted() == (0, ["daemon_away"])


def test_a_file_that_is_not_in_memory_yet_is_brought_there_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    session, first = shared.shared_session(), [True]
    opened = session.open_soon

    def open_late(*args: Any, **kwargs: Any) -> Any:
        if first and first.pop():
            raise DeadlineError("not within 0.001 s")
        return opened(*args, **kwargs)

    monkeypatch.setattr(session, "open_soon", open_late)
    assert torch.equal(torch.load(path)["w"], weight())
    assert counted() == (0, ["not in shared memory yet"])
    assert torch.equal(torch.load(path)["w"], weight())
    assert counted()[0] == 1


def test_threads_that_load_one_file_at_once_get_memory_of_their_own(tmp_path: Path) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    together, found = threading.Barrier(4), dict[int, torch.Tensor]()

    def load(number: int) -> None:
        together.wait()
        found[number] = torch.load(path)["w"]
        found[number] += number

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(torch.equal(found[number], weight() + number) for number in range(4))
    assert counted() == (4, [])


def test_leases_end_with_the_last_tensor(daemon: Daemon, tmp_path: Path) -> None:
    torch.save({"w": weight(), "v": weight()}, path := tmp_path / "m.bin")
    loaded = torch.load(path)
    kept = loaded.pop("v")
    del loaded
    (replica,) = daemon.store.read.replicas()
    assert replica.leases == 1
    assert torch.equal(kept, weight())
    del kept
    shared.shared_session().open(f"file:bytes:{file_bytes.identity_of(str(path))}:{path}").close()
    (replica,) = daemon.store.read.replicas()
    assert replica.leases == 0


@pytest.mark.parametrize("dtype", ["f4", ">i8", "c16", "?", "M8[ns]", "S3", [("a", "f4"), ("b", "i2")]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_load_returns_what_it_returns_alone(dtype: Any, order: Any, tmp_path: Path) -> None:
    values = np.zeros((640, 2048), dtype, order)
    values[3] = np.ones(2048, dtype)
    np.save(path := tmp_path / "a.npy", values)
    alone, ours = PLAIN_NUMPY(path), np.load(path)
    assert counted() == (1, [])
    assert (ours.dtype, ours.shape, ours.strides, type(ours)) == (alone.dtype, alone.shape, alone.strides, type(alone))
    assert (ours.tobytes(), ours.flags.writeable) == (alone.tobytes(), True)
    ours[:] = values[3]
    assert np.load(path).tobytes() == alone.tobytes()


def test_an_encoding_that_numpy_refuses_is_refused(tmp_path: Path) -> None:
    np.save(path := tmp_path / "a.npy", np.ones(1 << 18))
    with pytest.raises(ValueError, match="encoding"):
        np.load(path, encoding="utf8")  # type: ignore[arg-type]


def test_numpy_files_of_other_kinds_are_loaded_as_ever(tmp_path: Path) -> None:
    values = np.arange(1 << 18)
    np.savez(tmp_path / "a.npz", a=values)
    np.save(tmp_path / "o.npy", np.array([list(range(1000))] * 500, dtype=object), allow_pickle=True)
    np.save(tmp_path / "s.npy", values)
    with np.load(tmp_path / "a.npz") as members:
        assert (members["a"] == values).all()
    assert np.load(tmp_path / "o.npy", allow_pickle=True).shape == (500, 1000)
    assert isinstance(np.load(tmp_path / "s.npy", mmap_mode="r"), np.memmap)
    assert isinstance(np.load(tmp_path / "s.npy", "r"), np.memmap)
    assert outcomes.report().shared == {}


def test_what_another_library_puts_over_an_adapter_stays(tmp_path: Path) -> None:
    adapter = torch.load

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return adapter(*args, **kwargs)

    torch.load = theirs
    try:
        transparent.uninstall()
        assert torch.load is theirs
        assert torch.serialization.load is PLAIN_LOAD.func
        torch.save({"w": weight()}, path := tmp_path / "m.bin")
        assert torch.equal(torch.load(path)["w"], weight())
    finally:
        torch.load = PLAIN_LOAD.func


_PROGRAM = """
import sys
import trims.transparent
assert "torch" not in sys.modules and "numpy" not in sys.modules
import importlib.util
assert importlib.util.find_spec("torch") and importlib.util.find_spec("numpy")  # as libraries look what is there
import torch, numpy
assert torch.__spec__.loader.__class__.__module__.startswith(("importlib", "_frozen_importlib")), torch.__spec__
w = torch.load(sys.argv[1])["w"]
print(float(w.sum()), trims.transparent.report().shared)
"""


@pytest.mark.parametrize("off", [False, True])
def test_a_program_imports_its_framework_after_the_loaders(off: bool, tmp_path: Path) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    torch.load(path)
    os.utime(path, (1, 1))
    wait = "import time; time.sleep(2.1)\n"  # the program's own clock decides when a write is long ago
    environment = {**os.environ, "TRIMS_TRANSPARENT_REPORT": "1", **({"TRIMS_TRANSPARENT": "0"} if off else {})}
    twice = _PROGRAM.replace("w = torch", "torch.load(sys.argv[1]); time.sleep(1)\nw = torch")
    done = subprocess.run(
        [sys.executable, "-c", wait + twice, str(path)], env=environment, capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.split()[0] == str(float(weight().sum()))
    assert ("1 from shared memory" in done.stderr) is not off
    shutil.rmtree(tmp_path)


_APP = """
import sys, time
import torch
for _ in range(2):
    w = torch.load(sys.argv[1])["w"]
    time.sleep(0.5)
print(float(w.sum()), w.storage_offset())
"""


def test_a_program_that_exec_starts_loads_through_the_store(tmp_path: Path) -> None:
    torch.save({"w": weight()}, path := tmp_path / "m.bin")
    (tmp_path / "app.py").write_text(_APP)
    time.sleep(2.1)  # the program's own clock decides when a write is long ago
    command = run_module("trims.cli.main", "exec", "--why", "--", sys.executable, "app.py", path)
    environment = {**os.environ, "TRIMS_TRANSPARENT_REPORT": "1"}
    said = ""
    for _ in range(4):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == f"{float(weight().sum())} 0\n"
        said = done.stderr
        if "from shared memory" in said:
            break
    assert "forked from a template" in said
    assert "torch.load: 2 from shared memory" in said or "torch.load: 1 from shared memory" in said
    subprocess.run(run_module("trims.cli.main", "exec", "--forget"), env=environment, check=True, timeout=60)
