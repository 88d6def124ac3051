"""Programs that remove old files from /tmp: a daemon's sockets and locks stay, or are found again within a minute."""

# fault (daemon): the runtime folder, its sockets or lock are removed

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import wait_until
from trims_client import connect

import trims.daemon.main as module
from trims.control import admin
from trims.core.errors import ConfigError, TrimsError
from trims.daemon.main import Daemon

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_OLD_S = 1_000_000_000


def runs(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def grow_old(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (_OLD_S, _OLD_S))


@pytest.fixture
def tmpfiles(folder: Path) -> Callable[[], None]:
    """Return a function that removes what is older than a moment below the folder, as systemd does each day in /tmp."""
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("systemd-tmpfiles is not installed")
    config = folder / "old.conf"
    config.write_text(f"d {folder} 0700 - - 0\n")
    return lambda: subprocess.run(["systemd-tmpfiles", "--clean", str(config)], check=True)


def test_systemd_leaves_the_folder_of_a_daemon_alone_however_old_it_is(
    serve: Callable[..., Daemon], folder: Path, tmpfiles: Callable[[], None]
) -> None:
    daemon = serve()
    shutil.copytree(folder / "run", folder / "other", ignore=lambda *_: ["attach.sock", "control.sock"])
    before = runs(folder / "run")
    grow_old(folder)
    tmpfiles()
    assert runs(folder / "run") == before
    assert not (folder / "other").exists(), "it does remove what is old"
    with admin(daemon.config.runtime_dir) as asked:
        assert asked.status().health.pid == os.getpid()


def test_systemd_leaves_sockets_in_use_alone_in_a_folder_without_a_lock(
    serve: Callable[..., Daemon], folder: Path, tmpfiles: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "LOCK_SH", fcntl.LOCK_UN)
    daemon = serve()
    grow_old(folder)
    tmpfiles()
    assert {"attach.sock", "attach/attach.sock", "control.sock"} <= set(runs(folder / "run"))
    connect(daemon.config.runtime_dir).close()


# fault (daemon): the runtime folder, its sockets or lock are removed
@pytest.mark.parametrize("removed", ["attach.sock", "control.sock", "attach", "lock", "."])
def test_what_is_removed_below_a_running_daemon_is_made_again(
    removed: str,
    serve: Callable[..., Daemon],
    folder: Path,
    checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "DOORS_S", 0.05)
    daemon, path = serve(), checkpoint("a")
    run = daemon.config.runtime_dir
    with connect(run) as before, admin(run) as asked, before.open_file(path) as weights:
        there = runs(run)
        gone = run / removed
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        wait_until(lambda: run.exists() and runs(run) == there, f"{removed} is not made again")
        with connect(run) as after, after.open_file(path) as again:
            np.testing.assert_array_equal(next(iter(again.values())), next(iter(weights.values())))
        with admin(run) as new:
            assert new.status().health.pid == asked.status().health.pid == os.getpid()
        with pytest.raises(ConfigError, match="is in use by the daemon with process id"):
            Daemon(daemon.config).start()
        before.open_file(path).close()
    daemon.ask_to_end(purge=True)
    daemon.stop()
    assert runs(run) == ["attach", "lock"]


def test_a_daemon_leaves_the_doors_of_another_alone_that_has_its_folder_by_now(
    serve: Callable[..., Daemon], folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = serve()
    shutil.rmtree(folder / "run")
    second = serve(state_dir=folder / "state2")
    first._look_at_doors()
    first._look_at_doors()
    assert caplog.text.count("was removed, and another daemon has it now: new clients find only that one") == 1
    first.stop()
    with admin(second.config.runtime_dir) as asked:
        assert asked.status().health.state_dir == str(folder / "state2")
    second.stop()
    with pytest.raises(TrimsError):
        connect(second.config.runtime_dir)
