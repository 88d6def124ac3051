"""A keeper's door: who may give orders, what a connection leaves behind, and when the keeper ends."""

from __future__ import annotations

import os
import socket
import stat
from typing import TYPE_CHECKING

import pytest
from keepers import DIGEST, KEY, UUID, Served
from looking import wait_until

from trims.core.errors import BadMessageError, CallerError, DaemonAwayError, DeviceLostError, PermissionDeniedError
from trims.keeper import server
from trims.keeper.client import KeeperConnection
from trims.keeper.keeper import Keeper
from trims.keeper.server import KeeperServer
from trims.testing.fake_cuda import FakeCuda, lose_device
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_socket_is_this_users_alone_and_gone_after_the_end(served: Served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    with KeeperConnection(served.path) as connection:
        connection.end()
        assert connection.wait_for_end(60)
    served.end()
    assert served.freed is True
    assert not served.path.exists()


def test_a_second_keeper_is_refused_at_the_same_path_until_the_first_has_ended(
    served: Served, cuda: FakeCuda, serve: Callable[[], Served]
) -> None:
    second = Keeper(cuda, UUID, "vmm")
    with pytest.raises(CallerError, match=f"another keeper serves at {served.path}"):
        KeeperServer(second, served.path)
    second.close()
    served.end()
    assert serve().keeper.device.uuid == UUID


def test_drafts_go_with_their_connection_and_sealed_images_stay(
    served: Served, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image(1 << 16)
    with KeeperConnection(served.path) as connection:
        sealed, filled, empty = (connection.create(len(data)) for _ in range(3))
        for number in (sealed, filled):
            connection.fill(number, fd)
        connection.seal(sealed, KEY, DIGEST)
        assert {held.number for held in served.keeper.held()} == {sealed, filled, empty}
        assert [kept.image for kept in connection.hello().images] == [sealed]
    wait_until(lambda: [held.number for held in served.keeper.held()] == [sealed], "drafts were not freed")


@pytest.mark.parametrize("uid", [os.geteuid() + 1, 0])
def test_only_the_keepers_user_and_root_may_give_orders(
    served: Served, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    monkeypatch.setattr(server, "Peer", type("Other", (), {"of": staticmethod(lambda sock: Peer(1, uid, uid))}))
    with KeeperConnection(served.path) as connection:
        if uid == 0:
            assert connection.hello().device == UUID
        else:
            with pytest.raises(PermissionDeniedError, match=f"user {uid} may not give this keeper orders"):
                connection._next()
            assert connection.wait_for_end(60)


@pytest.mark.parametrize("count", [0, 2])
def test_an_order_that_needs_one_descriptor_closes_all_that_came(served: Served, count: int) -> None:
    with KeeperConnection(served.path) as connection:
        number = connection.create(4096)
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(BadMessageError, match=f"the order needs one descriptor, {count} came"):
            connection._begin({"op": "fill", "image": number}, [0] * count, 60)
        assert connection.hello().device == UUID  # the order is over
        assert set(os.listdir("/proc/self/fd")) <= before


def test_a_lost_device_ends_the_keeper_and_all_its_connections(served: Served, folder: Path) -> None:
    with KeeperConnection(served.path) as lifeline, KeeperConnection(served.path) as other:
        assert other.room()[1] > 0
        lose_device(folder, UUID)
        with pytest.raises(DeviceLostError, match=f"{UUID} is lost"):
            other.create(4096)
        assert lifeline.wait_for_end(60)
    served.end()
    assert served.freed is False
    with pytest.raises(DaemonAwayError):
        KeeperConnection(served.path)
    (folder / f"lost.{UUID}").unlink()
    served.keeper.close()


def test_a_keeper_does_not_remove_the_socket_of_a_later_one(served: Served) -> None:
    served.path.unlink()
    with socket.socket(socket.AF_UNIX) as later:
        later.bind(str(served.path))
        served.end()
        assert served.path.exists()
