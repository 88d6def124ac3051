"""The lock of a folder: one daemon at a time, and nothing for programs that remove old files."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ConfigError
from trims.daemon.folder_lock import FolderLock

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_one_daemons_at_a_time_and_names_its_holder(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "state", "the state folder")
    with pytest.raises(
        ConfigError, match=rf"the state folder .*state is in use by .* process id {os.getpid()}; end it"
    ):
        FolderLock(tmp_path / "state", "the state folder")
    lock.release()
    FolderLock(tmp_path / "state", "the state folder").release()


_DIES_WHILE_IT_STARTS_A_CHILD = """
import os, sys
from pathlib import Path
from trims.daemon.folder_lock import FolderLock
FolderLock(Path(sys.argv[1]), "the state folder")
ends, begins = os.pipe()
if os.fork() == 0:
    os.close(begins)
    os.read(ends, 1)  # until the daemon is gone
    import time; time.sleep(0.2)
    os._exit(0)
os.kill(os.getpid(), 9)
"""


def test_a_folder_is_had_that_a_killed_daemon_s_child_holds_for_a_moment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DIES_WHILE_IT_STARTS_A_CHILD, str(tmp_path / "state")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    FolderLock(tmp_path / "state", "the state folder").release()


def test_a_folder_that_is_made_for_a_daemon_is_closed_to_others(tmp_path: Path) -> None:
    FolderLock(tmp_path / "run", "the runtime folder").release()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=rf"belongs to user {owner}, not to you; choose another"):
        FolderLock(tmp_path, "the state folder")


def test_a_folder_of_a_daemon_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    held = FolderLock(tmp_path, "the state folder")
    held.announce_end()
    ended = threading.Timer(0.5, held.release)
    ended.start()
    FolderLock(tmp_path, "the state folder").release()
    assert not ended.is_alive()


def test_the_folder_itself_is_locked_for_programs_that_clean_there(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "run", "the runtime folder")
    fd = os.open(tmp_path / "run", os.O_RDONLY)
    for renewed in (False, True):
        if renewed:
            assert lock.renew()
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    FolderLock(tmp_path / "run", "the runtime folder").release()
    os.close(fd)


def test_a_folder_that_is_renewed_counts_as_new_with_its_files(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, "the runtime folder")
    paths = [tmp_path, tmp_path / "lock", tmp_path / "endpoint.json"]
    paths[-1].write_text("{}")
    for path in paths:
        os.utime(path, (1, 1))
    assert lock.renew()
    assert all(path.stat().st_mtime > 1 for path in paths)
    lock.release()


@pytest.mark.parametrize("whole", [False, True])
def test_a_lock_that_was_removed_is_taken_again_unless_another_daemon_has_it(whole: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = FolderLock(folder, "the runtime folder")
    _remove(folder, whole=whole)
    assert first.renew()
    with pytest.raises(ConfigError, match=rf"is in use by the daemon with process id {os.getpid()}"):
        FolderLock(folder, "the runtime folder")
    _remove(folder, whole=whole)
    second = FolderLock(folder, "the runtime folder")
    assert not first.renew()
    assert second.renew()
    for lock in (first, second):
        lock.release()


def _remove(folder: Path, *, whole: bool) -> None:
    if whole:
        shutil.rmtree(folder)
    else:
        (folder / "lock").unlink()
