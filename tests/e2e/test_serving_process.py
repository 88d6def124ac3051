"""`trims serve` as a process: settings from everywhere, a clean end however it is asked, clients where none runs."""

# fault (daemon): it is away when a client opens -> `daemon_away`, or with a fallback a private copy, a warning,
# `shared` False

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from in_namespaces import namespaces
from serving import COMMAND, Serving, serving_in

import trims
from trims.core.errors import CallerError, ConversionError, DaemonAwayError
from trims.registry.sqlite import SqliteRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def serving(folder: Path) -> Iterator[Serving]:
    with serving_in(folder) as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_it_cleanly_and_memory_stays_for_the_next(
    number: signal.Signals, serving: Serving, checkpoint: Callable[..., Path]
) -> None:
    process = serving.start()
    with trims.connect(serving.folder / "run") as session, session.open_file(checkpoint("m"), place="cpu") as weights:
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0
        assert "Traceback" not in said
        assert "ended" in said
        assert weights["weight"].size
    assert not list((serving.folder / "run").glob("*.sock"))
    assert len(serving.segments()) == 1


def test_shutdown_leaves_memory_and_purge_does_not(serving: Serving, checkpoint: Callable[..., Path]) -> None:
    for flags, left in (((), 1), (("--purge",), 0)):
        process = serving.start()
        assert serving.run("add", checkpoint("m")).returncode == 0
        assert serving.run("load", "m").returncode == 0
        assert "the daemon has ended" in serving.run("shutdown", *flags).stderr
        assert process.poll() == 0
        assert len(serving.segments()) == left


def test_a_closed_terminal_does_not_end_a_daemon_that_was_started_by_nohup(serving: Serving) -> None:
    process = serving.start(before=["nohup"])
    process.send_signal(signal.SIGHUP)
    assert serving.run("shutdown").returncode == 0
    assert "the daemon has ended" not in process.communicate(timeout=60)[1]


def test_a_daemon_waits_for_one_that_is_ending(serving: Serving) -> None:
    first = serving.start()
    serving.environment["TRIMS_LOG_LEVEL"] = "debug"
    for _ in range(3):
        assert serving.run("shutdown", "--no-wait").returncode == 0
        second = serving.start()
        assert first.wait(60) == 0
        first = second


def test_flags_beat_variables_and_variables_beat_the_file(serving: Serving) -> None:
    settings = serving.folder / "trims.yaml"
    settings.write_text("{cpu_capacity_bytes: 3MiB, disk_capacity_bytes: 5MiB, cpu_policy: gdsf, disk_policy: fifo}")
    serving.start("--config", settings, "--disk-capacity-bytes", "7MiB")
    out = serving.run("status").stdout
    assert "1.0 MiB" in out
    assert "7.0 MiB" in out
    assert "gdsf" in out
    assert "fifo" in out
    assert (serving.folder / "state").is_dir()


def test_settings_that_cannot_be_used_are_named_and_nothing_is_started(serving: Serving) -> None:
    for flags, words in (
        (("--cpu-capacity-bytes", "plenty"), "setting cpu_capacity_bytes: 'plenty'"),
        (("--cpu-policy", "random"), "there is no eviction policy 'random'"),
        (("--config", serving.folder / "absent.yaml"), "absent.yaml cannot be read"),
    ):
        done = serving.run("serve", *flags)
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_a_second_daemon_is_told_which_one_is_there(serving: Serving) -> None:
    process = serving.start()
    done = serving.run("serve")
    assert done.returncode == 1
    assert f"process id {process.pid}; end it with `trims shutdown`" in done.stderr


# -- where no daemon is --------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime folder without a daemon; state in the folder."""
    monkeypatch.setenv("TRIMS_STATE_DIR", str(folder / "state"))
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(folder / "nowhere"))
    monkeypatch.setattr("trims_client.shared._shared", None)
    return folder / "nowhere"


def test_a_session_that_may_loads_privately_and_says_so(
    nowhere: Path, checkpoint: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = checkpoint("m", {"a": np.arange(6, dtype=np.float32)})
    with trims.connect(fallback="load") as session, session.open_file(path) as weights:
        np.testing.assert_array_equal(weights["a"], np.arange(6))
        assert not weights.shared
        assert "is loaded privately, nothing is shared: no daemon answers" in caplog.text
    with trims.open_file(path, fallback="load") as weights:
        assert not weights.shared


def test_a_registered_name_is_found_in_the_state_folder(
    nowhere: Path, folder: Path, checkpoint: Callable[..., Path]
) -> None:
    registry = SqliteRegistry(folder / "state" / "registry.db")
    registry.put({"name": "m", "artifact": {"path": "m.safetensors"}}, str(checkpoint("m").parent))
    registry.close()
    with trims.connect(fallback="load") as session:
        with session.open("m") as weights:
            assert weights["weight"].size
        with pytest.raises(ConversionError, match=r"(?s)nobody could not be loaded.*no model 'nobody' is registered"):
            session.open("nobody")


def test_a_client_that_did_not_ask_for_a_copy_gets_an_error(nowhere: Path, checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(DaemonAwayError, match=r"nowhere.*trims serve"):
        trims.connect()
    trims.open_file(checkpoint("m"), fallback="load").close()
    with pytest.raises(DaemonAwayError, match=r"nowhere.*trims serve"):
        trims.open_file(checkpoint("m"))
    with pytest.raises(CallerError, match="fallback is 'maybe'; it must be None or 'load'"):
        trims.connect(fallback="maybe")


def test_a_daemon_that_comes_up_meanwhile_is_used(serving: Serving, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    with trims.connect(serving.folder / "run", fallback="load") as session:
        with session.open_file(path) as alone:
            assert not alone.shared
        serving.start()
        with session.open_file(path) as together:
            assert together.shared


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_commands_work_with_closed_standard_files(serving: Serving, closed: str) -> None:
    serving.start()
    command = " ".join([*COMMAND, "status", closed])
    done = subprocess.run(["sh", "-c", command], env=serving.environment, capture_output=True, timeout=120, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert (b"serving:" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_runtime_folder_of_too_many_bytes_is_refused_everywhere_in_one_sentence(serving: Serving) -> None:
    folder = serving.folder / ("\u00fc" * 60)
    serving.environment["TRIMS_RUNTIME_DIR"] = str(folder)
    for command in ("serve", "status", "list"):
        done = serving.run(command)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "88 are the most for the sockets in it" in done.stderr
    with pytest.raises(DaemonAwayError, match="88 are the most"):
        trims.connect(folder)


@namespaces
def test_a_machine_without_shared_memory_serves_from_sealed_memory(
    serving: Serving, checkpoint: Callable[..., Path]
) -> None:
    nodes = [
        word for name in ("null", "zero", "urandom", "full") for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    ]
    bare = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", "/dev", *nodes]
    command = [*bare, *COMMAND, "serve", "--gpus", "none"]
    refused = subprocess.run(command, env=serving.environment, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 1
    assert "/dev/shm is not there" in refused.stderr
    assert "--cpu-memory memfd" in refused.stderr
    process = serving.start("--cpu-memory", "memfd", "--gpus", "none", before=bare, wrapped=True)
    assert serving.run("add", checkpoint("m")).returncode == 0
    assert serving.run("load", "m", "--place", "cpu").returncode == 0
    with trims.connect(serving.folder / "run") as session, session.open("m", place="cpu") as weights:
        assert weights["weight"].size
    assert serving.run("shutdown").returncode == 0
    assert process.wait(60) == 0
