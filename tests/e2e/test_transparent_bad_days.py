"""Bad days of transparent loaders: the framework's own load runs and returns what it always does; the reason counts."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from in_namespaces import namespaces
from looking import wait_until
from serving import Serving, serving_in
from transparently import counted, installed  # noqa: F401 - a fixture
from trims_client import shared
from trims_client.transparent import file_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

torch = pytest.importorskip("torch", reason="missing framework: torch")
pytestmark = pytest.mark.usefixtures("installed")


def saved(path: Path) -> Path:
    torch.save({"w": torch.arange(1000.0)}, path)
    return path


def is_right(path: Any) -> bool:
    return bool(torch.equal(torch.load(path)["w"], torch.arange(1000.0)))


# -- daemons that end, hang, or are of another release -------------------------------------------------------------


@pytest.fixture
def serving(folder: Path, tmp_path: Path) -> Iterator[Serving]:
    with serving_in(folder, TRIMS_CPU_CAPACITY_BYTES="64MiB") as made:
        yield made


def test_a_daemon_that_ends_and_comes_back_is_met_at_the_next_load(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, daemon = saved(tmp_path / "m.bin"), serving.start()
    kept = torch.load(path)["w"]
    monkeypatch.setattr(file_bytes, "_PATIENCE_S", 0.001)
    daemon.kill()
    daemon.wait()
    assert is_right(path)
    assert torch.equal(kept, torch.arange(1000.0))
    assert counted() == (1, ["daemon_away"])
    serving.start()
    wait_until(lambda: is_right(path) and counted()[0] > 1, "it is loaded from shared memory again")


def test_a_daemon_that_is_killed_while_it_is_asked_leaves_the_original(
    serving: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, daemon = saved(tmp_path / "m.bin"), serving.start()
    assert is_right(path)
    os.kill(daemon.pid, signal.SIGSTOP)
    ended = subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(0.3); os.kill({daemon.pid}, 9)"])
    monkeypatch.setattr(file_bytes, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(file_bytes, "_GRACE_S", 60.0)
    assert is_right(path)
    assert (ended.wait(60), daemon.wait()) == (0, -signal.SIGKILL)
    assert counted() in ((1, ["daemon_away"]), (1, ["lost_peer"]))


def test_a_daemon_that_hangs_is_asked_once(
    serving: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, daemon = saved(tmp_path / "m.bin"), serving.start()
    assert is_right(path)
    monkeypatch.setattr(file_bytes, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(file_bytes, "_silent", [0.0])
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        assert is_right(path)
        monkeypatch.setattr(shared, "shared_session", None)  # is not called
        assert is_right(path)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert counted() == (1, ["the daemon did not answer"])


#: A daemon that another release might be: it knows no such names, or another protocol.
RELEASES = {
    "knows fewer names": "import trims.store.file_names as it; it._WANTED = {}",
    "speaks another protocol": "import trims.wire.answers as it; it.PROTOCOL_VERSION = 99",
}


@pytest.mark.parametrize(
    ("change", "reason"), [*zip(RELEASES.values(), ["bad_request", "not_supported"], strict=True)], ids=RELEASES
)
def test_a_daemon_of_another_release_leaves_the_original(
    change: str,
    reason: str,
    serving: Serving,
    tmp_path: Path,
) -> None:
    code = f"{change}\nimport sys; sys.argv[:] = ['trims', 'serve']\nfrom trims.cli.main import main; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-c", code], env=serving.environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: serving._answering() == process.pid, "it serves")
        path = saved(tmp_path / "m.bin")
        assert is_right(path)
        assert is_right(path)
        assert counted() == (0, [reason])
    finally:
        process.terminate()
        process.communicate(timeout=60)


# -- no room, and refusals of the kernel ---------------------------------------------------------------------------


def test_a_file_that_finds_no_room_is_the_originals(
    serving: Serving,
    tmp_path: Path,
) -> None:
    serving.start()
    np.save(path := tmp_path / "large.npy", np.ones(9 << 20))
    assert np.load(path).sum() == 9 << 20
    assert counted() == (0, ["too_large"])


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "refused"), OSError(errno.ENOMEM, "no memory")])
def test_memory_that_the_kernel_does_not_give_leaves_the_original(
    error: OSError, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise error

    path = saved(tmp_path / "m.bin")
    monkeypatch.setattr("trims_client.weights.Weights.data", refuse)
    assert is_right(path)
    assert counted() == (0, [type(error).__name__])


# -- files ---------------------------------------------------------------------------------------------------------


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


class Reader:
    """A file object that is no file."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb")
        self.read, self.readline, self.seek, self.tell = (
            getattr(self.file, name) for name in ("read", "readline", "seek", "tell")
        )


def test_a_tensor_of_another_class_is_one(daemon: Daemon, tmp_path: Path) -> None:
    torch.save({"t": torch.arange(1000.0).as_subclass(Tagged)}, path := tmp_path / "m.bin")
    loaded = torch.load(path, weights_only=False)["t"]
    assert type(loaded) is Tagged
    assert torch.equal(loaded.as_subclass(torch.Tensor), torch.arange(1000.0))
    assert counted() == (1, [])


def test_a_file_object_that_is_no_file_is_read_as_ever(
    daemon: Daemon,
    tmp_path: Path,
) -> None:
    reader = Reader(saved(tmp_path / "m.bin"))
    with reader.file:
        assert is_right(reader)
    assert counted() == (0, ["not a path"])


def test_a_checkpoint_that_is_loaded_lazily_is_the_callers(
    daemon: Daemon,
    tmp_path: Path,
) -> None:
    path = saved(tmp_path / "m.bin")
    assert torch.load(path, mmap=True)["w"][3] == 3
    with torch.serialization.skip_data():
        torch.load(path)
    np.save(tmp_path / "a.npy", np.arange(1000))
    assert isinstance(np.load(tmp_path / "a.npy", mmap_mode="r"), np.memmap)
    assert counted()[1] == ["an argument that the adapter does not know", "mmap is stated"]


def test_links_that_are_removed_under_a_reader_change_nothing(
    daemon: Daemon,
    tmp_path: Path,
) -> None:
    path, farm = saved(tmp_path / "blob"), tmp_path / "farm"
    farm.mkdir()
    (farm / "m.bin").symlink_to(path)
    loaded = torch.load(farm / "m.bin")["w"]
    (farm / "m.bin").unlink()
    assert torch.equal(loaded, torch.arange(1000.0))
    with pytest.raises(FileNotFoundError):
        torch.load(farm / "m.bin")
    assert is_right(path)


@pytest.mark.parametrize(
    "name", ["a\nb.bin", "ü\u202e.bin", b"\xff\xfe.bin", "a:b|c,d=e.bin", "-.bin", " .bin", "%41.bin", "a" * 200]
)
def test_any_name_of_a_file_is_loaded(
    name: Any,
    daemon: Daemon,
    tmp_path: Path,
) -> None:
    path = os.path.join(tmp_path, os.fsdecode(name))
    with open(path, "wb") as file:
        torch.save({"w": torch.arange(1000.0)}, file)
    assert is_right(path)
    assert counted() == ((0, ["bad_request"]) if isinstance(name, bytes) else (1, []))


def test_a_relative_path_is_of_the_programs_folder(
    daemon: Daemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved(tmp_path / "m.bin")
    monkeypatch.chdir(tmp_path)
    assert is_right("m.bin")
    assert is_right("../" + tmp_path.name + "/./m.bin")
    assert counted() == (2, [])


def test_a_way_over_a_link_s_parent_leads_where_the_kernel_goes(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "far" / "there").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "there")
    saved(tmp_path / "far" / "m.bin")
    torch.save({"w": torch.zeros(1000)}, tmp_path / "m.bin")
    assert is_right(os.path.join(tmp_path, "link", "..", "m.bin"))
    assert counted() == (1, [])


def test_a_file_that_only_the_program_sees_is_its_own(serving: Serving, tmp_path: Path) -> None:
    serving.start()
    path = saved(tmp_path / "m.bin")
    with path.open("rb") as file:
        path.unlink()
        assert is_right(f"/proc/self/fd/{file.fileno()}")
    assert counted()[1] in (["artifact_not_found"], ["artifact_changed"])  # the daemon may have a file by this number


@namespaces
def test_another_file_of_the_same_name_elsewhere_is_not_taken(serving: Serving, tmp_path: Path) -> None:
    serving.start()
    seen, hidden = saved(tmp_path / "m.bin"), tmp_path / "n.bin"
    torch.save({"w": torch.zeros(1000)}, hidden)
    code = """if True:
        import sys, torch, trims.transparent
        from trims_client.transparent import file_bytes
        file_bytes._REST_S, file_bytes._PATIENCE_S, file_bytes.LEAST_BYTES = 0.0, 60.0, 1
        print(float(torch.load(sys.argv[1])["w"].sum()), *trims.transparent.report().stepped_aside)
    """
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    words = [f'mount --bind "{hidden}" "{seen}" && exec "$0" "$@"', sys.executable, "-c", code, str(seen)]
    done = subprocess.run([*inside, *words], env=serving.environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0.0 ('torch.load', 'artifact_changed')\n", "")
