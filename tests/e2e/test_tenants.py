"""Tenants of one daemon: real sockets, real users, real memory. Each test keeps count of what it was granted itself."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until

import trims
from trims.core.errors import PermissionDeniedError, QuotaError
from trims.daemon import attach_door
from trims.tenants import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("own_files")
TOKEN = "a token of the blue tenant"
TENANTS = f"""
blue:
  tokens: ["{hash_of(TOKEN)}"]
  users: [4001]
  models: ["blue-*", shared]
  leases: 3
  sessions: 2
  resident_bytes: 2MiB
red:
  users: [4002]
  models: ["red-*", shared]
careful:
  trust: verified
"""


@pytest.fixture
def shared(folder: Path, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]) -> Daemon:
    """A daemon with three tenants and four models of a MiB each."""
    file = folder / "tenants.yaml"
    file.write_text(TENANTS)
    daemon = serve(tenants=file, socket_mode="666", trust="identity")
    for name in ("blue-1", "blue-2", "blue-3", "red-1", "shared"):
        path = checkpoint(name, nbytes=1 << 20)
        daemon.registry.put({"name": name, "artifact": {"path": str(path)}}, str(folder))
    return daemon


def tenant(daemon: Daemon, name: str) -> Session:
    """A client that comes through the tenant's own socket."""
    return trims.connect(daemon.config.runtime_dir / "tenants" / name)


def _in_memory(daemon: Daemon) -> list[Any]:
    with trims.admin(daemon.config.runtime_dir) as admin:
        return [replica for replica in admin.residents().replicas if replica.place == "cpu"]


def held(daemon: Daemon, name: str) -> Any:
    (found,) = [each for each in daemon.store.read.accounts() if each.name == name]
    return found


def test_a_tenant_opens_its_models_and_no_others(shared: Daemon) -> None:
    with tenant(shared, "blue") as blue, tenant(shared, "red") as red:
        with blue.open("blue-1") as own, blue.open("shared") as mine, red.open("shared") as its:
            assert own["weight"].nbytes == 1 << 20
            np.testing.assert_array_equal(mine["weight"], its["weight"])
        with pytest.raises(PermissionDeniedError, match="tenant 'blue' may not open 'red-1'; it may open blue-"):
            blue.open("red-1")
        with pytest.raises(PermissionDeniedError, match="tenant 'red' may not open 'blue-1'"):
            red.open("blue-1")
        with pytest.raises(PermissionDeniedError, match="tenant 'red' may not open 'no-such-model'"):
            red.open("no-such-model")


def test_a_tenant_opens_no_file_by_path(shared: Daemon, folder: Path) -> None:
    path = folder / "red-1.safetensors"
    with tenant(shared, "red") as red:
        with pytest.raises(PermissionDeniedError, match="tenant 'red' may open registered models"):
            red.open_file(path)
        with pytest.raises(PermissionDeniedError, match="tenant 'red' may open registered models"):
            red.open(f"file:{path}")


def test_a_tenant_cannot_take_up_an_image_that_it_may_not_open(shared: Daemon) -> None:
    with (
        trims.connect(shared.config.runtime_dir) as operator,
        tenant(shared, "red") as red,
        operator.open("blue-1", place="cpu"),
        operator.open("shared", place="cpu"),
    ):
        keys = {replica.names[0]: replica.key for replica in _in_memory(shared)}
        channel = red._connection.live_channel()
        with pytest.raises(PermissionDeniedError, match="tenant 'red' may not open the image"):
            channel.request({"op": "resume", "key": keys["blue-1"], "place": "cpu"}, 10.0)
        answer, fd = channel.request({"op": "resume", "key": keys["shared"], "place": "cpu"}, 10.0)
        os.close(fd)
        assert answer["key"] == keys["shared"]


def test_the_leases_of_all_sessions_of_a_tenant_count_together(shared: Daemon) -> None:
    with tenant(shared, "blue") as one, tenant(shared, "blue") as other:
        kept = [one.open("shared"), other.open("shared"), one.open("blue-1")]
        with pytest.raises(QuotaError, match="tenant 'blue' has 3 leases, as many as it may"):
            other.open("blue-2")
        kept.pop().close()
        other.open("blue-2").close()
        assert held(shared, "blue").leases == 2
        for weights in kept:
            weights.close()
    wait_until(lambda: held(shared, "blue").leases == 0, "no leases")


def test_a_tenant_with_all_its_sessions_is_turned_away_and_another_is_not(shared: Daemon) -> None:
    with tenant(shared, "blue") as one, tenant(shared, "blue"):
        full = pytest.raises(QuotaError, match="tenant 'blue' has 2 sessions, as many as it may")
        with full, tenant(shared, "blue") as third:
            third.open("shared")
        with tenant(shared, "red") as red, red.open("shared"), one.open("shared"):
            pass
    with tenant(shared, "blue") as again, again.open("shared"):
        pass


def test_beyond_its_memory_a_tenant_is_served_from_files(shared: Daemon) -> None:
    with tenant(shared, "blue") as blue:
        first = blue.open("blue-1", place="cpu")
        with pytest.raises(QuotaError, match=r"tenant 'blue' has .* in memory that cannot leave now"):
            blue.open("blue-2", place="cpu")
        with blue.open("blue-2") as second:
            assert second.place == "file"
        first.close()
        with blue.open("blue-3", place="cpu") as third:
            assert third.place == "cpu"
        assert held(shared, "blue").resident_bytes <= 2 << 20


def test_a_careful_tenant_has_the_artifact_read_first(shared: Daemon) -> None:
    with trims.connect(shared.config.runtime_dir) as operator, tenant(shared, "careful") as careful:
        with operator.open("red-1") as in_place, careful.open("red-1") as read:
            assert (in_place.place, read.place) == ("file", "cpu")
        with pytest.raises(trims.errors.NotSupportedError, match="must be read first"):
            careful.open("shared", place="file")


def test_the_next_daemon_knows_a_tenants_client_again(shared: Daemon, serve: Callable[..., Daemon]) -> None:
    with tenant(shared, "blue") as blue:
        weights = blue.open("blue-1", place="cpu")
        config = shared.config
        shared.ask_to_end()
        shared.stop()
        after = serve(tenants=config.tenants, socket_mode="666")
        wait_until(lambda: held(after, "blue").leases == 1, "a lease again")
        weights.close()
        with pytest.raises(PermissionDeniedError):
            blue.open("red-1")


_CLIENT = """
import ctypes, json, mmap, os, select, sys
import trims, trims_client.connection.watch
with trims.connect(sys.argv[1]) as session:  # all is imported: another user may not be able to read Python's files
    session.open("shared").close()
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
told = {}
with trims.connect(sys.argv[1]) as session:
    for name in sys.argv[3:]:
        try:
            told[name] = session.open(name).place
        except trims.errors.TrimsError as error:
            told[name] = f"{error.code}: {error}"
print(json.dumps(told))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_user_belongs_to_the_tenant_that_lists_it(shared: Daemon) -> None:
    def told(user: int, *names: str, where: Path = shared.config.runtime_dir) -> dict[str, str]:
        given = [sys.executable, "-c", _CLIENT, str(where), str(user), *names]
        found = subprocess.run(given, capture_output=True, text=True, check=False, cwd="/")
        assert found.returncode == 0, found.stderr
        answer: dict[str, str] = json.loads(found.stdout)
        return answer

    shared.config.runtime_dir.parent.chmod(0o755)
    assert told(4001, "blue-1", "red-1") == {
        "blue-1": "file",
        "red-1": "permission_denied: tenant 'blue' may not open 'red-1'; it may open blue-*, shared (`models` in the "
        "daemon's tenants file)",
    }
    assert told(4002, "red-1") == {"red-1": "file"}
    assert "user 4003 belongs to no tenant" in told(4003, "shared")["shared"]
    red = shared.config.runtime_dir / "tenants/red"
    for user in (4001, 4003):
        assert f"user {user} is none of tenant 'red'" in told(user, "red-1", where=red)["red-1"]
    assert told(4002, "red-1", where=red) == {"red-1": "file"}


def test_clients_that_say_nothing_keep_no_session(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_door, "FRAME_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(shared.config.runtime_dir / "tenants/blue/attach.sock"))
        silent.settimeout(60)
        assert b"hello was not said within" in silent.recv(4096)
        assert silent.recv(1) == b""
    wait_until(lambda: not shared.attach.clients["blue"], "its session ends")


def test_a_greedy_tenant_does_not_starve_another(shared: Daemon) -> None:
    """Two sessions of a tenant open and keep all they can, in eight threads; the other tenant is served throughout."""
    stop, granted, refused = threading.Event(), [0], [0]
    lock = threading.Lock()

    def be_greedy(session: Session, number: int) -> None:
        kept: list[Any] = []
        names = ["blue-1", "blue-2", "blue-3", "shared"]
        while not stop.is_set():
            try:
                kept.append(session.open(names[(number + len(kept)) % 4], place="cpu"))
                with lock:
                    granted[0] += 1
            except QuotaError:
                with lock:
                    refused[0] += 1
                if kept and refused[0] % 7 == 0:
                    kept.pop().close()
        for weights in kept:
            weights.close()

    with tenant(shared, "blue") as one, tenant(shared, "blue") as other, tenant(shared, "red") as red:
        threads = [threading.Thread(target=be_greedy, args=((one, other)[n % 2], n)) for n in range(8)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: refused[0] > 50, "refusals")
            for _ in range(50):
                with red.open("red-1", place="cpu") as mine, red.open("shared") as common:
                    assert mine.place == "cpu"
                    assert common["weight"].nbytes == 1 << 20
                now = held(shared, "blue")
                assert now.leases <= 3
                assert now.resident_bytes <= 2 << 20
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert granted[0] > 0
    wait_until(lambda: held(shared, "blue").leases == held(shared, "red").leases == 0, "no leases")
    assert not shared.store.read.broken_invariants()


def test_status_tells_what_each_tenant_holds(shared: Daemon) -> None:
    with (
        tenant(shared, "blue") as blue,
        trims.admin(shared.config.runtime_dir) as admin,
        blue.open("blue-1", place="cpu"),
    ):
        found = {each.name: each for each in admin.status().stats.tenants}
    assert sorted(found) == ["blue", "careful", "red"]
    mine = found["blue"]
    assert (mine.sessions, mine.most_sessions, mine.leases, mine.most_leases) == (1, 2, 1, 3)
    assert mine.resident_bytes == mine.leased_bytes > 1 << 20
    assert (mine.most_resident_bytes, mine.most_leased_bytes) == (2 << 20, None)


def test_a_tenants_file_that_changes_counts_for_open_sessions(shared: Daemon, folder: Path) -> None:
    with tenant(shared, "blue") as session:
        session.open("shared").close()
        (folder / "tenants.yaml").write_text(TENANTS.replace('models: ["blue-*", shared]', 'models: ["blue-*"]'))
        wait_until(lambda: not shared.attach.tenants.by_name["blue"].may_open("shared"), "the file is taken over")
        with pytest.raises(PermissionDeniedError, match="may not open 'shared'"):
            session.open("shared")
        session.open("blue-1").close()
