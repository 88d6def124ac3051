"""The runner: measuring, filling, verifying and freeing, each of which ends in an event and leaves nothing behind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import blake3
import pytest
from damages import DAMAGES
from store_parts import Conversion, Workers, resolved

from trims.core.errors import ArtifactError, CapacityError, ImageError, InternalError, LostPeerError
from trims.core.place import CPU, DISK
from trims.core.replica import ReplicaId
from trims.core.residency.events import Event, Filled, FillFailed, Freed, Measured, MeasureFailed, ReplicaBroken
from trims.memory.shm import PosixShm
from trims.store.fill.freeing import FREE_PAUSE_S
from trims.store.fill.runner import Runner
from trims.store.work import PoolsByMount
from trims.testing.tiers import an_image, put
from trims.testing.wrapped_tiers import FaultyTier, WrappedTier
from trims.tiers.cpu import CpuTier
from trims.tiers.disk import DiskTier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.tiers.base import Extent

KEY = "a" * 64
AT_CPU, AT_DISK = ReplicaId(KEY, CPU, 1), ReplicaId(KEY, DISK, 2)
DATA = an_image(10_000)


class Unfreeable(WrappedTier):
    """A tier that cannot give memory back so many times."""

    failures = 0

    def free(self, extent: Extent) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(5, "Input/output error")
        super().free(extent)


class Bench:
    """A runner over two tiers of files, whose workers run when the test says so; it keeps what was reported."""

    def __init__(self, folder: Path, *, max_images: int = 99) -> None:
        self.folder = folder
        self.cpu = Unfreeable(CpuTier(PosixShm("trims-runner", folder), 1 << 20))
        self.disk = FaultyTier(DiskTier(folder / "images", 1 << 20))
        self.workers, self.now = Workers(), 100.0
        self.reported: list[Event] = []
        self.conversion = Conversion(len(DATA), DATA)
        self.runner = Runner(
            {CPU: self.cpu, DISK: self.disk},
            lambda _: self.conversion,  # type: ignore[arg-type,return-value]
            self.reported.append,
            pools=self.workers,
            clock=lambda: self.now,
            max_images=max_images,
        )

    def event(self) -> Any:
        """Do all work; what the one job ended in."""
        self.workers.run()
        (event,) = self.reported
        self.reported.clear()
        return event

    def converted(self, replica: ReplicaId = AT_CPU, *, behind: bool = False) -> Event:
        self.runner.measure(replica, 1, resolved())
        self.event()
        if behind:
            self.runner.take_time(replica)
        self.runner.fill(replica, len(DATA), None)
        return cast("Event", self.event())

    def extent(self, replica: ReplicaId = AT_CPU) -> Extent:
        found = self.runner.sealed.get(replica)
        assert found is not None
        return found

    def left(self, replica: ReplicaId = AT_DISK, how: Callable[[Extent], object] = lambda _: None) -> Extent:
        """Make the file that an earlier daemon left on disk, damaged or not."""
        extent = put(self.disk.inner, DATA, key=replica.key)
        extent.fresh = False
        how(extent)
        return extent

    def files(self) -> list[str]:
        images = self.folder / "images"
        return sorted(os.listdir(images) if images.exists() else []) + sorted(
            name for name in os.listdir(self.folder) if name.startswith("trims-runner")
        )

    def end(self) -> None:
        self.cpu.failures = 0
        for replica, extent in self.runner.extents().items():
            {CPU: self.cpu, DISK: self.disk}[replica.place].free(extent)
        self.runner.stop()


@pytest.fixture
def bench(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(Conversion, "open", 0)
    made = Bench(folder)
    yield made
    made.end()


def test_an_artifact_is_measured_then_converted_into_memory_that_is_sealed(bench: Bench) -> None:
    bench.runner.measure(AT_CPU, 7, resolved())
    event = bench.event()
    assert isinstance(event, Measured)
    assert (event.measurement, event.nbytes, event.generation) == (7, len(DATA), 1)
    bench.runner.fill(AT_CPU, len(DATA), None)
    assert isinstance(bench.event(), Filled)
    extent = bench.extent()
    assert os.pread(extent.fd, len(DATA) + 1, 0) == DATA
    assert extent.digest == blake3.blake3(DATA).hexdigest()
    assert extent.identity is not None
    assert bench.runner.progress(KEY, CPU) is None, "the fill is over"
    assert bench.conversion.closed


@pytest.mark.parametrize(("converted", "pool"), [(True, "convert"), (False, "plan")])
def test_only_an_artifact_that_needs_a_child_takes_a_converter(bench: Bench, converted: bool, pool: str) -> None:
    bench.runner.measure(AT_CPU, 1, resolved(converted=converted))
    assert bench.workers.names == [pool]


def test_readers_go_on_to_two_headers_at_once_and_leave_a_third_to_others(bench: Bench, tmp_path: Path) -> None:
    replicas = [ReplicaId(KEY, CPU, generation) for generation in range(1, 4)]

    class Nested(Conversion):
        """One whose header is read while those of others are."""

        def plan(self) -> int:
            if "read" in bench.workers.names:
                bench.workers.run_one()
            return super().plan()

    runner = Runner(
        {CPU: bench.cpu},
        lambda _: Nested(7),  # type: ignore[arg-type,return-value]
        bench.reported.append,
        pools=bench.workers,
        readers=PoolsByMount(bench.workers, "read", 16),
    )
    for replica in replicas:
        runner.measure(replica, 1, resolved())
    assert bench.workers.names == ["read"] * 3
    bench.workers.run_one()
    assert bench.workers.names == ["plan"], "the third"
    assert len(bench.reported) == 2
    bench.workers.run()
    assert [type(event) for event in bench.reported] == [Measured] * 3
    bench.reported.clear()
    runner.stop()


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (ArtifactError("m.npz is truncated"), ArtifactError, "m.npz is truncated"),
        (OSError(5, "Input/output error"), InternalError, f"{KEY[:16]} at cpu: "),
        (OSError(24, "Too many open files"), CapacityError, "`ulimit -n`"),
        (ZeroDivisionError("surprise"), InternalError, "ZeroDivisionError: surprise"),
    ],
)
def test_a_measurement_that_fails_tells_its_number_and_gives_its_plan_back(
    bench: Bench, failure: Exception, kind: type[Exception], said: str
) -> None:
    bench.conversion.error = failure
    bench.runner.measure(AT_CPU, 7, resolved())
    event = bench.event()
    assert isinstance(event, MeasureFailed)
    assert (event.measurement, type(event.error)) == (7, kind)
    assert said in str(event.error)
    assert bench.conversion.closed


def test_a_converter_that_writes_no_image_is_not_trusted(bench: Bench) -> None:
    bench.conversion.data = b"\7" * len(DATA)
    event = bench.converted()
    assert isinstance(event, FillFailed)
    assert isinstance(event.error, ImageError)
    assert (bench.files(), bench.runner.extents()) == ([], {})


def test_a_copy_of_a_changed_source_reports_the_source_and_fails(bench: Bench) -> None:
    extent = bench.left(how=DAMAGES["a bit flipped"])
    bench.runner.adopt(AT_DISK, extent)
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    bench.workers.run()
    broken, failed = bench.reported
    assert isinstance(broken, ReplicaBroken)
    assert (broken.place, broken.generation) == (DISK, 2)
    assert isinstance(failed, FillFailed)
    assert (failed.place, bench.runner.sealed.get(AT_CPU)) == (CPU, None)


def test_a_copy_has_the_bytes_of_its_source(bench: Bench) -> None:
    bench.runner.adopt(AT_DISK, bench.left())
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    assert isinstance(bench.event(), Filled)
    assert os.pread(bench.extent().fd, len(DATA), 0) == DATA


@pytest.mark.parametrize("method", ["create", "seal"])
def test_a_tier_that_fails_leaves_nothing_and_the_next_fill_works(bench: Bench, method: str) -> None:
    bench.disk.faults[method] = CapacityError("the disk is full")
    event = bench.converted(AT_DISK)
    assert isinstance(event, FillFailed)
    assert str(event.error) == "the disk is full"
    assert bench.files() == []
    bench.conversion = Conversion(len(DATA), DATA)
    assert isinstance(bench.converted(AT_DISK), Filled)


def test_a_fill_beyond_the_limit_of_images_is_refused_with_the_remedy(folder: Path) -> None:
    bench = Bench(folder, max_images=1)
    bench.converted()
    event = bench.converted(AT_DISK)
    assert isinstance(event, FillFailed)
    assert "1 files of images are open, and this daemon's limit of files allows 1; raise it" in str(event.error)
    bench.end()


def test_a_fill_waits_for_the_descriptor_of_an_image_that_is_being_freed(folder: Path) -> None:
    bench = Bench(folder, max_images=1)
    bench.converted()
    bench.runner.measure(AT_DISK, 1, resolved())
    bench.event()
    bench.runner.free(AT_CPU)
    freeing = bench.workers.waiting.popleft()
    bench.runner.fill(AT_DISK, len(DATA), None)
    bench.workers.run()
    assert bench.reported == []
    bench.workers.waiting.append(freeing)
    bench.workers.run()
    assert [type(event) for event in bench.reported] == [Freed, Filled]
    bench.end()


def test_memory_that_is_given_back_at_the_second_try_is_gone(bench: Bench) -> None:
    bench.converted()
    bench.cpu.failures = 1
    bench.runner.free(AT_CPU)
    bench.workers.run()
    bench.now += FREE_PAUSE_S
    bench.runner.try_again(bench.now)
    assert isinstance(bench.event(), Freed)
    assert bench.files() == []


def test_what_an_earlier_daemon_left_is_filled_once_it_is_verified(bench: Bench) -> None:
    extent = bench.left()
    bench.runner.verify(AT_DISK, extent)
    assert (bench.runner.unverified_bytes, bench.runner.sealed.get(AT_DISK)) == (len(DATA), None)
    assert isinstance(bench.event(), Filled)
    assert (bench.runner.unverified_bytes, bench.runner.sealed.get(AT_DISK)) == (0, extent)
    assert extent.fresh


def test_only_what_is_proven_wrong_is_removed_by_a_check(bench: Bench) -> None:
    bench.runner.verify(AT_DISK, bench.left(how=DAMAGES["a bit flipped"]))
    assert isinstance(bench.event().error, ImageError)
    assert bench.files() == []
    unread = bench.left()
    bench.disk.faults["verify"] = OSError(5, "Input/output error")
    bench.runner.verify(AT_DISK, unread)
    assert isinstance(bench.event().error, InternalError)
    assert len(bench.files()) == 1, "it stays for the next daemon"
    bench.disk.free(unread)


def test_a_replica_that_a_request_waits_for_is_verified_before_others_and_once(bench: Bench) -> None:
    other = ReplicaId("b" * 64, DISK, 3)
    for replica in (AT_DISK, other):
        bench.runner.verify(replica, bench.left(replica))
    bench.runner.raise_priority(other)
    assert bench.workers.names == ["verify", "verify", "copy"]
    bench.workers.waiting.rotate()
    bench.workers.run_one()
    assert [event.key for event in bench.reported if isinstance(event, Filled)] == [other.key]
    bench.workers.run()
    assert [event.key for event in bench.reported if isinstance(event, Filled)] == [other.key, KEY]


def test_what_is_lent_already_and_turns_out_wrong_is_reported(bench: Bench) -> None:
    extent = bench.left(how=DAMAGES["a bit flipped"])
    bench.runner.adopt(AT_DISK, extent)
    bench.runner.verify_behind(AT_DISK, extent)
    event = bench.event()
    assert isinstance(event, ReplicaBroken)
    assert "hash to" in event.reason
    assert bench.runner.unverified_bytes == 0


def test_a_file_on_disk_that_was_touched_is_noticed_and_memory_is_not_looked_at(bench: Bench) -> None:
    bench.converted(AT_DISK)
    bench.conversion = Conversion(len(DATA), DATA)
    bench.converted(AT_CPU)
    assert not bench.runner.was_touched(bench.extent(AT_DISK))
    os.utime(bench.extent(AT_DISK).label, ns=(1, 1))
    os.utime(bench.folder / bench.extent(AT_CPU).label, ns=(1, 1))
    assert bench.runner.was_touched(bench.extent(AT_DISK))
    assert not bench.runner.was_touched(bench.extent(AT_CPU))


def test_a_plan_that_is_abandoned_is_stopped_at_once_and_given_back_behind(bench: Bench) -> None:
    bench.runner.measure(AT_CPU, 1, resolved())
    bench.event()
    bench.runner.abandon(AT_CPU)
    assert (bench.conversion.stopped != "", bench.conversion.closed) == (True, False)
    bench.workers.run()
    assert bench.conversion.closed


def test_a_job_after_the_end_fails_with_the_reason_and_freeing_goes_on(bench: Bench) -> None:
    bench.converted()
    bench.runner.finish()
    bench.runner.fill(AT_DISK, len(DATA), AT_CPU)
    failed = bench.event()
    assert isinstance(failed, FillFailed)
    assert isinstance(failed.error, LostPeerError)
    assert "shutting down" in str(failed.error)
    bench.runner.free(AT_CPU)
    assert isinstance(bench.event(), Freed)


# -- behind readers --------------------------------------------------------------------------------------------------


def test_a_fill_that_no_request_waits_for_takes_no_worker_of_the_others(bench: Bench) -> None:
    bench.converted(AT_DISK)
    bench.runner.take_time(AT_CPU)
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    assert "behind" in bench.workers.names
    assert "copy" not in bench.workers.names
    assert isinstance(bench.event(), Filled)
    assert bench.runner._unawaited == set()


def test_a_fill_in_the_line_behind_readers_is_begun_by_others_once_a_request_waits(bench: Bench) -> None:
    bench.converted(AT_DISK)
    bench.runner.take_time(AT_CPU)
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    bench.runner.raise_priority(AT_CPU)
    bench.runner.raise_priority(AT_CPU)
    assert bench.workers.names.count("copy") == 1
    assert isinstance(bench.event(), Filled), "by one of the two workers, once"


def test_a_conversion_that_no_request_waits_for_takes_no_converter_and_gives_way(bench: Bench) -> None:
    bench.runner.take_time(AT_CPU)
    bench.runner.measure(AT_CPU, 1, resolved(converted=True))
    assert bench.workers.names == ["behind"]
    assert isinstance(bench.event(), Measured)
    assert bench.conversion.gives_way
    bench.runner.abandon(AT_CPU)
    bench.workers.run()


def test_a_conversion_in_the_line_behind_readers_is_begun_once_a_request_waits(bench: Bench) -> None:
    bench.runner.take_time(AT_CPU)
    bench.runner.measure(AT_CPU, 1, resolved(converted=True))
    bench.runner.raise_priority(AT_CPU)
    bench.runner.raise_priority(AT_CPU)
    assert bench.workers.names == ["behind", "convert"]
    assert isinstance(bench.event(), Measured), "by one of the two workers, once"
    assert not bench.conversion.gives_way
    bench.runner.abandon(AT_CPU)
    bench.workers.run()


def test_a_conversion_that_is_under_way_gives_way_no_more_once_a_request_waits(bench: Bench) -> None:
    bench.conversion.while_planning = lambda: bench.runner.raise_priority(AT_CPU)
    bench.runner.take_time(AT_CPU)
    bench.runner.measure(AT_CPU, 1, resolved(converted=True))
    assert isinstance(bench.event(), Measured)
    assert not bench.conversion.gives_way
    bench.runner.abandon(AT_CPU)
    bench.workers.run()


def test_of_two_measurements_in_the_line_only_the_second_is_made(bench: Bench) -> None:
    for measurement in (1, 2):
        bench.runner.take_time(AT_CPU)
        bench.runner.measure(AT_CPU, measurement, resolved(converted=True))
    bench.workers.run()
    assert [each.measurement for each in bench.reported if isinstance(each, Measured)] == [2]
    bench.reported.clear()
    bench.runner.abandon(AT_CPU)
    bench.workers.run()


def test_a_request_that_comes_before_the_work_does_hurries_it_too(bench: Bench) -> None:
    """The books decide on a fill, another thread has a request join it, and only then is the fill begun."""
    bench.converted(AT_DISK)
    bench.runner.take_time(AT_CPU)
    bench.runner.raise_priority(AT_CPU)
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    assert "behind" not in bench.workers.names
    assert isinstance(bench.event(), Filled)


def test_a_fill_behind_readers_that_waits_for_a_descriptor_is_not_forgotten(folder: Path) -> None:
    bench = Bench(folder, max_images=1)
    bench.converted(AT_DISK)
    bench.runner.free(AT_DISK)
    bench.runner.measure(AT_CPU, 1, resolved())
    bench.workers.waiting.rotate(-1)
    bench.workers.run_one()
    bench.reported.clear()
    bench.runner.take_time(AT_CPU)
    bench.runner.fill(AT_CPU, len(DATA), None)
    bench.workers.waiting.rotate(-1)
    bench.workers.run()
    assert any(isinstance(event, Filled) and event.place == CPU for event in bench.reported)
    bench.end()


def test_an_image_that_lies_in_files_is_put_together_and_hashed_in_one_pass(bench: Bench) -> None:
    bench.conversion.is_carriable = True
    assert isinstance(bench.converted(AT_CPU, behind=True), Filled)
    assert bench.conversion.written == []
    assert bench.extent(AT_CPU).digest == blake3.blake3(DATA).hexdigest()
    assert bench.conversion.closed


def test_an_image_that_a_request_waits_for_is_not_left_to_a_copier(bench: Bench) -> None:
    bench.conversion.is_carriable = True
    assert isinstance(bench.converted(AT_CPU), Filled)
    assert len(bench.conversion.written) == 1


def test_a_request_that_comes_in_the_midst_has_the_image_written_again_in_new_memory(bench: Bench) -> None:
    bench.conversion.is_carriable = True
    bench.conversion.interrupt = lambda: bench.runner.raise_priority(AT_CPU)
    assert isinstance(bench.converted(AT_CPU, behind=True), Filled)
    assert len(bench.conversion.written) == 1
    assert os.pread(bench.extent(AT_CPU).fd, len(DATA) + 1, 0) == DATA
    assert len(bench.files()) == 1, "the memory that was half full is given back"


def test_the_end_of_a_runner_answers_fills_in_the_line_behind_readers(bench: Bench) -> None:
    bench.converted(AT_DISK)
    bench.runner.take_time(AT_CPU)
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    bench.runner.finish()
    bench.workers.run()
    (event,) = bench.reported
    assert isinstance(event, FillFailed)


# -- a tier of a plug-in -----------------------------------------------------------------------------------------------


def test_a_tier_that_ends_its_worker_fails_the_fill_and_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(*_: object, **__: object) -> None:
        raise SystemExit(3)

    bench.converted(AT_DISK)
    monkeypatch.setattr(bench.cpu, "create", ends)
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    event = bench.event()
    assert isinstance(event, FillFailed)
    assert "SystemExit" in str(event.error)
    monkeypatch.undo()
    bench.runner.fill(AT_CPU, len(DATA), AT_DISK)
    assert isinstance(bench.event(), Filled)


def test_a_tier_apart_has_workers_that_no_other_place_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unfreeable, "apart", True, raising=False)
    bench = Bench(folder)
    for begin, worker in (
        (lambda: bench.runner.measure(AT_CPU, 1, resolved()), "plan"),
        (lambda: bench.runner.fill(AT_CPU, len(DATA), None), "copy-cpu"),
        (lambda: bench.runner.fill(AT_DISK, len(DATA), AT_CPU), "copy-cpu"),
        (lambda: bench.runner.free(AT_CPU), "free-cpu"),
        (lambda: bench.runner.free(AT_DISK), "free"),
    ):
        begin()
        assert bench.workers.names == [worker]
        assert not isinstance(bench.event(), FillFailed)
    bench.end()
