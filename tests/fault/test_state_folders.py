"""A state folder is copied, backed up and restored while its daemon runs: no model and no pin is lost in silence."""

# fault (daemon): the state folder was copied without the databases' logs -> nothing if it rested a second; else
# `ConfigError` with what is missing

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from looking import wait_until

import trims
from trims.cli.main import main
from trims.core.errors import ConfigError
from trims.daemon import main as daemon_main

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.control import Admin
    from trims.daemon.main import Daemon

DATABASES = ("registry.db", "catalog.db")


def fill(admin: Admin, checkpoint: Callable[..., Path]) -> None:
    """Register two models, and pin one."""
    for name in ("a", "b"):
        admin.add(checkpoint(name))
    admin.pin("a")


def copied(folder: Path, *left_out: str) -> Path:
    """Copy a state folder as it is now, without files that end so.

    By another process: one that closes a database's file lets go of all locks that it has on the file.
    """
    made = Path(tempfile.mkdtemp(dir=folder)) / "state"
    subprocess.run(["cp", "-r", str(folder / "state"), str(made)], check=True)
    for each in made.iterdir():
        if each.name.endswith(left_out):
            each.unlink()
    return made


def kept(daemon: Daemon) -> tuple[list[str], bool]:
    """Return the models of a daemon, and whether `a` is pinned."""
    return daemon.registry.names(), ("a", "cpu") in daemon.catalog.pins()


def rests(folder: Path) -> bool:
    """Return whether the databases alone have all models and pins."""
    state, found = copied(folder, "-wal", "-shm"), []
    for name, table in zip(DATABASES, ("models", "pins"), strict=True):
        with closing(sqlite3.connect(state / name)) as db, contextlib.suppress(sqlite3.OperationalError):
            found.append(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    return found == [2, 1]


def test_a_copy_of_a_resting_daemons_folder_needs_no_log(
    daemon: Daemon, serve: Callable[..., Daemon], folder: Path, checkpoint: Callable[..., Path]
) -> None:
    with trims.admin(daemon.config.runtime_dir) as admin:
        fill(admin, checkpoint)
    wait_until(lambda: rests(folder), "the logs are not copied into the databases")
    state = copied(folder, "-wal", "-shm")
    assert kept(serve(state_dir=state, runtime_dir=folder / "run2")) == (["a", "b"], True)


@pytest.mark.parametrize("lacking", DATABASES)
def test_a_copy_that_lacks_what_was_in_a_log_starts_no_daemon_until_that_is_accepted(
    serve: Callable[..., Daemon],
    folder: Path,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    lacking: str,
) -> None:
    monkeypatch.setattr(daemon_main, "_CHECKPOINT_S", 3600.0)
    with trims.admin(serve().config.runtime_dir) as admin:
        fill(admin, checkpoint)
        wait_until(lambda: admin.show("a").replicas, "it is not pinned")
    state = copied(folder, f"{lacking}-wal", f"{lacking}-shm")
    with pytest.raises(ConfigError, match=rf"{lacking} lacks its last .* {lacking}-wal, which is not there") as refused:
        serve(state_dir=state, runtime_dir=folder / "run2")
    remedy = str(refused.value).rpartition("rm ")[2]
    assert remedy == str(state / f"{lacking}-generation")
    (state / f"{lacking}-generation").unlink()
    serve(state_dir=state, runtime_dir=folder / "run2")


def test_a_killed_daemons_folder_has_all_with_its_logs_and_is_refused_without(
    start_process: Callable[..., subprocess.Popen[bytes]],
    serve: Callable[..., Daemon],
    folder: Path,
    checkpoint: Callable[..., Path],
) -> None:
    process = start_process()
    wait_until((folder / "run" / "control.sock").exists, "it opens no control door")
    with trims.admin(folder / "run") as admin:
        fill(admin, checkpoint)
        wait_until(lambda: rests(folder), "the logs are not copied into the databases")
        admin.remove("b")
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    state = copied(folder, "-wal", "-shm")
    try:
        found = kept(serve(state_dir=state, runtime_dir=folder / "run2"))
    except ConfigError as error:
        found = (["a"], "registry.db lacks its last" in str(error))
    assert found == (["a"], True), "neither did it rest for a moment before it was killed, nor is the loss noticed"
    assert kept(serve()) == (["a"], True)


def test_a_backup_of_a_running_daemon_is_restored_as_documented(
    daemon: Daemon,
    serve: Callable[..., Daemon],
    folder: Path,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMS_STATE_DIR", str(folder / "state"))
    with trims.admin(daemon.config.runtime_dir) as admin:
        fill(admin, checkpoint)
        wait_until(lambda: rests(folder), "the pin is not kept")
        assert (
            main(["--runtime-dir", str(daemon.config.runtime_dir), "doctor", "--backup", str(folder / "backup")]) == 0
        )
        admin.remove("b")
    daemon.stop()
    # As docs/operations.md has it.
    for each in folder.glob("state/*.db*"):
        each.unlink()
    for each in (folder / "backup").iterdir():
        shutil.copy(each, folder / "state")
    assert kept(serve()) == (["a", "b"], True)
