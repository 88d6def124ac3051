"""The name of a socket: it is the one the socket was bound to, and only the daemon that bound it removes it."""

# fault (daemon): the runtime folder, its sockets or lock are removed -> no daemon for new clients for a minute at
# most; sockets are made again; no second daemon

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest

from trims.daemon.sockets import SocketName

if TYPE_CHECKING:
    from pathlib import Path


def bound(path: Path) -> SocketName:
    name = SocketName(path)
    name.clear()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    name.bound(0o600)
    return name


def test_a_socket_has_its_permissions_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    name = bound(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["attach.sock"]
    name.withdraw()
    name.withdraw()
    assert os.listdir(tmp_path) == []


def test_the_end_of_one_daemon_leaves_the_socket_of_another(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    first = bound(path)
    os.link(path, tmp_path / "kept")  # its number is not given to another file, as while the socket is open
    second = bound(path)
    first.withdraw()
    assert path.exists()
    second.withdraw()
    assert not path.exists()


def test_a_name_that_is_gone_or_another_daemons_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    name = SocketName(path)
    assert not name.is_there()
    name = bound(path)
    os.utime(path, (1, 1))
    assert name.is_there()
    assert path.stat().st_mtime > 1, "it counts as new"
    os.link(path, tmp_path / "kept")
    path.unlink()
    assert not name.is_there()
    bound(path)
    assert not name.is_there()


@pytest.mark.parametrize("whose", ["ours", "another", "none"])
def test_a_block_that_removes_the_name_spares_the_socket_of_another(whose: str, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    name = bound(path)
    os.link(path, tmp_path / "kept")
    if whose != "ours":
        path.unlink()
    if whose == "another":
        bound(path)
    with name.others_spared():
        path.unlink(missing_ok=True)
    assert path.exists() == (whose == "another")
    assert len(os.listdir(tmp_path)) == 1 + path.exists()
