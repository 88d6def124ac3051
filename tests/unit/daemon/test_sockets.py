"""The name of a socket: only the daemon that published it removes it."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

from trims.daemon.sockets import SocketName

if TYPE_CHECKING:
    from pathlib import Path


def published(path: Path) -> SocketName:
    name = SocketName(path)
    name.clear()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(name.unpublished))
        assert not path.exists() or path.stat().st_ino != name.unpublished.stat().st_ino
    name.publish(0o600)
    return name


def test_a_socket_appears_with_its_permissions_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    name = published(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["attach.sock"]
    name.withdraw()
    name.withdraw()
    assert os.listdir(tmp_path) == []


def test_the_end_of_one_daemon_leaves_the_socket_of_another(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    first = published(path)
    second = published(path)
    first.withdraw()
    assert path.exists()
    second.withdraw()
    assert not path.exists()


def test_what_a_killed_process_of_the_same_number_left_is_in_no_way(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(SocketName(path).unpublished))
    published(path).withdraw()


def test_the_unpublished_name_is_no_longer_than_the_published_one(tmp_path: Path) -> None:
    for name in ("attach.sock", "control.sock"):
        assert len(SocketName(tmp_path / name).unpublished.name) <= len("control.sock")


def test_a_socket_has_its_name_in_a_folder_of_its_own_too(tmp_path: Path) -> None:
    """A folder that is mounted elsewhere shows the next daemon's socket; a mounted socket would stay the old one."""
    path, folder = tmp_path / "attach.sock", tmp_path / "attach"
    (tmp_path).chmod(0o711)
    for _ in range(2):
        name = SocketName(path, folder)
        name.clear()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(name.unpublished))
            name.publish(0o660)
        there = folder / "attach.sock"
        assert there.stat().st_ino == path.stat().st_ino
        assert stat.S_IMODE(there.stat().st_mode) == 0o660
        assert stat.S_IMODE(folder.stat().st_mode) == 0o711
        assert os.listdir(folder) == ["attach.sock"]
    name.withdraw()
    assert os.listdir(tmp_path) == ["attach"]
    assert os.listdir(folder) == []
