"""The listening sockets: the daemon's own and one for each tenant, each in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from trims.core.errors import ConfigError
from trims.daemon.listeners import listeners
from trims.tenants import Tenant


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def test_each_tenant_has_a_socket_in_a_folder_with_nothing_else(folder: Path) -> None:
    folder.chmod(0o711)
    found = listeners(folder / "attach.sock", 0o666, [Tenant("blue"), Tenant("red")])
    for each in found:
        each.open()
    paths = [folder / "attach.sock", folder / "attach/attach.sock"]
    own = [folder / f"tenants/{name}/attach.sock" for name in ("blue", "red")]
    assert [each.tenant.name if each.tenant else None for each in found] == [None, None, "blue", "red"]
    assert all(map(connects, paths + own))
    assert [[entry.name for entry in path.parent.iterdir()] for path in own] == [["attach.sock"]] * 2
    assert own[0].parent.stat().st_mode & 0o777 == 0o711
    for each in found:
        each.close()
    assert not any(path.exists() for path in paths + own)


def test_the_folder_of_a_tenant_that_is_no_more_is_removed(folder: Path) -> None:
    for each in listeners(folder / "attach.sock", 0o600, [Tenant("blue")]):
        each.open()
        each.sock.close()
    found = listeners(folder / "attach.sock", 0o600)
    assert {each.tenant for each in found} == {None}
    assert not (folder / "tenants/blue").exists()


def test_a_runtime_folder_too_long_for_a_tenants_socket_is_refused(folder: Path) -> None:
    long = folder / ("x" * 60)
    long.mkdir()
    with pytest.raises(ConfigError, match="is too long for the socket of tenant"):
        listeners(long / "attach.sock", 0o600, [Tenant("b" * 32)])


def test_a_socket_is_bound_to_its_own_name_with_its_permissions(folder: Path) -> None:
    """Programs that remove old files from /tmp look for it in `/proc/net/unix`."""
    folder.chmod(0o711)
    before = os.umask(0o077)
    found = listeners(folder / "attach.sock", 0o666)
    for each in found:
        each.open()
    os.umask(before)
    known = {line.split(maxsplit=7)[-1].strip() for line in Path("/proc/net/unix").read_text().splitlines()}
    for path in (folder / "attach.sock", folder / "attach/attach.sock"):
        assert str(path) in known
        assert path.stat().st_mode & 0o777 == 0o666
    for each in found:
        each.close()


def test_clients_find_a_new_socket_in_place_of_one_that_was_removed(folder: Path) -> None:
    found = listeners(folder / "attach.sock", 0o600)[1]
    found.open()
    shutil.rmtree(folder / "attach")
    assert not found.name.is_there()
    assert not connects(folder / "attach/attach.sock")
    found.bind_again()
    found.bind_again()
    assert connects(folder / "attach/attach.sock")
    found.take_new()
    found.sock.accept()[0].close()
    assert found.name.is_there()
    found.close()
    assert not connects(folder / "attach/attach.sock")
