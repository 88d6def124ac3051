"""The listening sockets: the daemon's own and one for each tenant, each in a folder of its own."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ConfigError
from trims.daemon.listeners import listeners
from trims.tenants import Tenant

if TYPE_CHECKING:
    from pathlib import Path


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
    assert [each.tenant.name if each.tenant else None for each in found] == [None, "blue", "red"]
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
    (found,) = listeners(folder / "attach.sock", 0o600)
    assert found.tenant is None
    assert not (folder / "tenants/blue").exists()


def test_a_runtime_folder_too_long_for_a_tenants_socket_is_refused(folder: Path) -> None:
    long = folder / ("x" * 60)
    long.mkdir()
    with pytest.raises(ConfigError, match="is too long for the socket of tenant"):
        listeners(long / "attach.sock", 0o600, [Tenant("b" * 32)])
