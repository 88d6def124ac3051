"""A client and a daemon, whole: real sockets, real shared memory, real files."""

# fault (clients): forks and goes on in the child -> `ClosedError` in the child; views stay readable; the parent keeps
# its lease

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from looking import wait_until

import trims
from trims.core.errors import (
    ArtifactError,
    CapacityError,
    ClosedError,
    DaemonAwayError,
    DeadlineError,
    ModelNotFoundError,
    NotSupportedError,
    TensorNotFoundError,
)
from trims.core.place import CPU
from trims.core.replica import State
from trims.tiers.cpu import CpuTier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon


def leases(daemon: Daemon) -> int:
    return len(daemon.store.residency.leases.by_number)


def _any(daemon: Daemon, state: State) -> bool:
    return any(replica.state is state for replica in list(daemon.store.residency.replicas.values()))


def test_a_file_is_opened_by_path_and_read_without_a_copy(session: Session, checkpoint: Callable[..., Path]) -> None:
    wanted = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "empty": np.zeros((0, 2), np.int8)}
    with session.open_file(checkpoint("m", wanted)) as weights:
        assert sorted(weights) == ["a", "empty"]
        np.testing.assert_array_equal(weights["a"], wanted["a"])
        assert weights["empty"].shape == (0, 2)
        assert not weights["a"].flags.writeable
        assert weights.shared
        assert weights.trusted
        assert weights.place == "cpu"
        assert np.shares_memory(weights["a"], weights["a"])


def test_two_opens_in_one_process_share_one_mapping(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    with session.open_file(path) as first, session.open_file(path) as second:
        assert np.shares_memory(first["weight"], second["weight"])
        assert leases(daemon) == 2
    assert leases(daemon) == 0


def test_two_sessions_share_one_segment(daemon: Daemon, session: Session, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    with trims.connect(daemon.config.runtime_dir) as other, session.open_file(path), other.open_file(path):
        assert daemon.store.counters["fills.cpu"] == 1
        assert leases(daemon) == 2


def test_the_lease_ends_with_the_last_view_and_not_before(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    weights = session.open_file(checkpoint("m"))
    view = weights["weight"]
    expected = float(view.sum())
    weights.close()
    assert leases(daemon) == 1
    assert float(view.sum()) == expected
    del view
    gc.collect()
    with pytest.raises(ModelNotFoundError):
        session.open("nobody")  # any request first sends the closes of given-up leases
    wait_until(lambda: leases(daemon) == 0, "a lease lives on")


def test_use_after_close_names_the_model(session: Session, checkpoint: Callable[..., Path]) -> None:
    weights = session.open_file(checkpoint("m"))
    weights.close()
    weights.close()
    for use in (lambda: weights["weight"], lambda: weights.layout, lambda: weights.nbytes, lambda: list(weights)):
        with pytest.raises(ClosedError, match=r"m\.safetensors"):
            use()


def test_a_missing_tensor_is_named_with_the_nearest_one(session: Session, checkpoint: Callable[..., Path]) -> None:
    with (
        session.open_file(checkpoint("m")) as weights,
        pytest.raises(TensorNotFoundError, match="did you mean 'weight'"),
    ):
        weights["weigth"]


def test_an_unknown_model_is_named_with_the_remedy(session: Session) -> None:
    with pytest.raises(ModelNotFoundError, match="trims add"):
        session.open("nobody")


def test_a_missing_file_is_named(session: Session, folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"absent\.safetensors"):
        session.open_file(folder / "absent.safetensors")


def test_a_file_of_no_known_format_is_refused_with_the_known_ones(session: Session, folder: Path) -> None:
    (folder / "notes.txt").write_text("not a checkpoint")
    with pytest.raises(ArtifactError, match="safetensors"):
        session.open_file(folder / "notes.txt")


def test_an_unknown_place_says_which_there_are(session: Session, checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(NotSupportedError, match="cpu, disk"):
        session.open_file(checkpoint("m"), place="gpu:0")


def test_without_a_daemon_the_error_names_address_and_remedy(folder: Path) -> None:
    with pytest.raises(DaemonAwayError, match=rf"{folder}.*trims serve"):
        trims.connect(folder / "nowhere")


# fault (damage): the artifact changes under its path -> new opens get the new bytes, open weights keep the old
def test_a_changed_file_is_noticed_and_never_served_stale(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trims.store.resolve.resolver._TRUST_S", 0.0)
    path = checkpoint("m", {"a": np.zeros(4, np.float32)})
    with session.open_file(path) as old:
        checkpoint("m", {"a": np.ones(4, np.float32)})
        with session.open_file(path) as new:
            assert new["a"].sum() == 4
            assert old["a"].sum() == 0
    assert daemon.store.counters["fills.cpu"] == 2


def test_two_paths_with_the_same_bytes_share_one_replica(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path], folder: Path
) -> None:
    path = checkpoint("m")
    (folder / "copy.safetensors").write_bytes(path.read_bytes())
    with session.open_file(path) as one, session.open_file(folder / "copy.safetensors") as two:
        assert np.shares_memory(one["weight"], two["weight"])
    assert daemon.store.counters["fills.cpu"] == 1


# fault (capacity): 100 cold opens at once -> one load
def test_a_hundred_cold_opens_at_once_are_one_load(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m", nbytes=1 << 20)
    sums, errors = [], []
    start = threading.Barrier(100)

    def open_and_sum() -> None:
        try:
            with trims.connect(daemon.config.runtime_dir) as mine:
                start.wait(30)
                with mine.open_file(path) as weights:
                    sums.append(float(weights["weight"].sum()))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_sum) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(sums)) == 1
    assert len(sums) == 100
    assert daemon.store.counters["fills.cpu"] == 1


# fault (capacity): every replica is leased -> `capacity` with the numbers, at once or at the deadline; nothing is
# evicted
def test_pressure_evicts_the_idle_and_refuses_when_all_are_leased(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=250_000)
    a, b, c = (checkpoint(name, nbytes=100_000) for name in "abc")
    with trims.connect(daemon.config.runtime_dir) as session:
        with (
            session.open_file(a),
            session.open_file(b),
            pytest.raises(CapacityError, match=r"leased.*Nothing was evicted"),
        ):
            session.open_file(c)
        assert daemon.store.counters["evictions.cpu"] == 0
        with session.open_file(c):
            assert daemon.store.counters["evictions.cpu"] == 1


def test_an_open_with_a_deadline_waits_for_room(serve: Callable[..., Daemon], checkpoint: Callable[..., Path]) -> None:
    daemon = serve(cpu_capacity_bytes=150_000)
    a, b = (checkpoint(name, nbytes=100_000) for name in "ab")
    with trims.connect(daemon.config.runtime_dir) as holder, trims.connect(daemon.config.runtime_dir) as asker:
        held = holder.open_file(a)
        got = []
        thread = threading.Thread(target=lambda: got.append(asker.open_file(b, deadline_s=60.0)))
        thread.start()
        wait_until(lambda: _any(daemon, State.QUEUED), "no request waits for room")
        held.close()
        thread.join()
        assert got[0]["weight"].size == 12_500
        got.pop().close()


def test_a_deadline_that_passes_is_a_capacity_error_with_numbers(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(cpu_capacity_bytes=150_000)
    a, b = (checkpoint(name, nbytes=100_000) for name in "ab")
    with trims.connect(daemon.config.runtime_dir) as session, session.open_file(a):
        with pytest.raises((CapacityError, DeadlineError), match=r"leased|deadline"):
            session.open_file(b, deadline_s=0.05)
        assert session.open_file(a).close() is None


def test_a_dead_client_leaves_no_lease(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    session = trims.connect(daemon.config.runtime_dir)
    weights = session.open_file(checkpoint("m"))
    assert leases(daemon) == 1
    session.close()
    wait_until(lambda: leases(daemon) == 0, "a lease lives on")
    assert weights["weight"].size
    weights.close()


def test_a_forked_child_is_told_to_connect_itself(session: Session, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    with session.open_file(path) as weights:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                total = float(weights["weight"].sum())
                try:
                    session.open_file(path)
                    verdict = "opened"
                except ClosedError as error:
                    verdict = str(error)
                os.write(writer, f"{total}|{verdict}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        said = os.read(reader, 1000).decode()
        os.close(reader)
        os.waitpid(child, 0)
        total, verdict = said.split("|")
        assert float(total) == float(weights["weight"].sum())
        assert "connect again" in verdict


def test_a_restarted_daemon_adopts_the_segment_and_renews_the_clients_lease(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    first = serve()
    with trims.connect(first.config.runtime_dir) as session:
        weights = session.open_file(checkpoint("m"))
        view = weights["weight"]
        expected = float(view.sum())
        first.ask_to_end()
        first.stop()
        assert float(view.sum()) == expected
        second = serve()
        assert second.store.counters["adopted"] == 1
        wait_until(lambda: leases(second) == 1, "the lease was not taken up")
        with session.open_file(checkpoint("m")) as again:
            assert np.shares_memory(again["weight"], view)
        assert second.store.counters["fills.cpu"] == 0
        del view, again
        weights.close()
        wait_until(lambda: leases(second) == 0, "a lease lives on")


def test_leases_are_taken_up_once_images_are_verified_and_no_request_waits(
    daemon: Daemon,
    session: Session,
    checkpoint: Callable[..., Path],
    serve: Callable[..., Daemon],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without its catalog a daemon must read each image before it lends it, which may take minutes for all of them."""
    held = [session.open_file(checkpoint(name)) for name in "abc"]
    tiny = checkpoint("tiny")
    daemon.ask_to_end()
    daemon.stop()
    for name in daemon.config.state_dir.glob("catalog.db*"):
        name.unlink()
    go_on, real = threading.Event(), CpuTier.verify

    def verify(*given: object, **named: object) -> None:
        assert go_on.wait(120)
        real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(CpuTier, "verify", verify)
    second = serve()
    try:
        wait_until(lambda: len(session._mappings.postponed) == 3, "the leases were not asked for")
        with session.open_file(tiny) as weights:
            assert weights.place == "cpu"
        assert leases(second) == 0
    finally:
        go_on.set()
    wait_until(lambda: leases(second) == 3, "the leases were not taken up")
    for weights in held:
        weights.close()
    wait_until(lambda: leases(second) == 0, "a lease was taken up twice")


def test_a_restarted_daemon_removes_a_flipped_segment(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    first = serve()
    with trims.connect(first.config.runtime_dir) as session:
        session.open_file(checkpoint("m")).close()
        (extent,) = first.store.runner.extents().values()
    first.ask_to_end()
    first.stop()
    path = f"/dev/shm/{extent.label}"
    os.chmod(path, 0o600)
    with open(path, "r+b") as segment:
        segment.seek(-3, os.SEEK_END)
        segment.write(b"\xff")
    os.chmod(path, 0o400)
    second = serve()
    wait_until(lambda: not os.path.exists(path), "the segment is still there")  # it is hashed behind the open doors
    assert second.store.counters["adopted"] == 0


# fault (damage): a segment is truncated or flipped
def test_check_verify_finds_a_flipped_bit_and_takes_the_replica_out_of_service(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    from trims.daemon.check import check_store

    path = checkpoint("m")
    session.open_file(path).close()
    assert check_store(daemon.store, verify=True).findings == []
    (extent,) = daemon.store.runner.extents().values()
    segment = f"/dev/shm/{extent.label}"
    os.chmod(segment, 0o600)
    with open(segment, "r+b") as raw:
        raw.seek(-3, os.SEEK_END)
        raw.write(b"\xff")
    (finding,) = check_store(daemon.store, verify=True).findings
    assert "hash" in finding
    with session.open_file(path) as weights:
        assert weights["weight"].size
    assert daemon.store.counters["fills.cpu"] == 2


def test_prefetch_loads_without_a_lease(daemon: Daemon, session: Session, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("m")
    daemon.registry.put({"name": "m", "artifact": {"path": str(path)}}, "")
    session.prefetch("m")
    wait_until(lambda: _any(daemon, State.SEALED), "it was not loaded")
    assert leases(daemon) == 0
    with session.open("m") as weights:
        assert weights["weight"].size
    assert daemon.store.counters["warm"] == 1


def test_eager_reclaim_frees_memory_with_the_last_lease(
    serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    daemon = serve(keep_alive_s="0")
    with trims.connect(daemon.config.runtime_dir) as session:
        session.open_file(checkpoint("m")).close()
        wait_until(lambda: not daemon.store.residency.replicas, "the memory was not freed")
    assert daemon.store.residency.capacity.charged[CPU] == 0


def test_open_and_close_ten_thousand_times_leaves_nothing(
    daemon: Daemon, session: Session, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2_000):
        with session.open_file(path) as weights:
            weights.raw("weight")
    assert leases(daemon) == 0
    # The watcher polls; the daemon, in this process, holds the segment and copies two databases' logs.
    assert len(os.listdir("/proc/self/fd")) <= before + 4
