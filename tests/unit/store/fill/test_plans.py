"""Plans: measured conversions that wait for room, dropped for others, made again, and always closed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_parts import Conversion

from trims.core.errors import ArtifactChangedError, LostPeerError
from trims.core.place import CPU
from trims.core.replica import ReplicaId
from trims.store.catalog import identities_of
from trims.store.fill.plans import Plans


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Conversion]:
    monkeypatch.setattr(Conversion, "open", 0)
    return []


def plans_of(made: list[Conversion], waiting: int = 2) -> Plans:
    def convert(resolved: Any) -> Any:
        made.append(Conversion(resolved.nbytes))
        return made[-1]

    return Plans(convert, waiting)


def an_artifact(nbytes: int = 100, path: Path | None = None) -> Any:
    files = (path,) if path else (Path("/nowhere"),)
    identities = identities_of(files) if path else ()
    return SimpleNamespace(
        name="m", nbytes=nbytes, artifact=SimpleNamespace(files=files), identities=identities, builder={}
    )


def replica(key: str = "a", generation: int = 1) -> ReplicaId:
    return ReplicaId(key, CPU, generation)


def test_a_plan_is_written_with_the_conversion_that_was_measured_and_closed(made: list[Conversion]) -> None:
    plans = plans_of(made)
    plan, before = plans.begin(replica(), an_artifact())
    assert before is None
    assert plans.measure(replica(), plan) == 100
    plans.write(replica(), 7, 100, lambda _: None)
    assert made[0].written == [7]
    assert (Conversion.open, len(plans)) == (0, 0)


def test_a_conversion_gives_way_until_a_request_waits_for_its_replica(made: list[Conversion]) -> None:
    plans = plans_of(made)
    plan, _ = plans.begin(replica(), an_artifact(), gives_way=True)
    plans.measure(replica(), plan)
    assert made[0].gives_way
    plans.raise_priority(replica())
    assert not made[0].gives_way
    plans.drop(replica())
    plans.raise_priority(replica())  # it comes too late


def test_a_request_that_waits_before_a_conversion_begins_is_not_forgotten(made: list[Conversion]) -> None:
    plans = plans_of(made)
    plan, _ = plans.begin(replica(), an_artifact(), gives_way=True)
    plans.raise_priority(replica())
    plans.measure(replica(), plan)
    assert not made[0].gives_way
    plans.drop(replica())


def test_the_plan_that_waited_longest_is_closed_for_others_and_made_again(made: list[Conversion]) -> None:
    plans = plans_of(made, waiting=2)
    for key in "abc":
        plan, _ = plans.begin(replica(key), an_artifact())
        plans.measure(replica(key), plan)
    assert [each.closed for each in made] == [True, False, False]
    plans.write(replica("a"), 7, 100, lambda _: None)
    assert made[3].written == [7]
    plans.close()
    assert (Conversion.open, len(plans)) == (0, 0)


def test_a_second_measurement_of_a_replica_gives_back_the_first(made: list[Conversion]) -> None:
    """The image came to lie elsewhere while it was measured, and left again before it was copied."""
    plans = plans_of(made)
    first, _ = plans.begin(replica(), an_artifact())
    plans.measure(replica(), first)
    second, before = plans.begin(replica(), an_artifact())
    assert before is first
    assert made[0].stopped
    plans.drop(replica(), before)
    assert plans.measure(replica(), second) == 100
    plans.drop(replica(), first)
    assert replica() in plans, "the end of the first is not the end of the second"
    plans.close()
    assert Conversion.open == 0


def test_a_plan_that_was_stopped_before_it_began_starts_nothing_that_stays(made: list[Conversion]) -> None:
    plans = plans_of(made)
    plan, _ = plans.begin(replica(), an_artifact())
    plans.stop(replica())
    with pytest.raises(LostPeerError, match="no request waits"):
        plans.measure(replica(), plan)
    plans.drop(replica())
    assert Conversion.open == 0


def test_the_shard_that_changed_is_named(made: list[Conversion], tmp_path: Path) -> None:
    files = (tmp_path / "m.index.json", tmp_path / "1.safetensors", tmp_path / "2.safetensors")
    for path in files:
        path.write_bytes(b"one")
    plans, artifact = plans_of(made), an_artifact()
    artifact.artifact.files, artifact.identities = files, identities_of(files)
    files[1].write_bytes(b"another")
    plan, _ = plans.begin(replica(), artifact)
    with pytest.raises(ArtifactChangedError, match=r"1\.safetensors changed while it was converted"):
        plans.measure(replica(), plan)
    plans.close()


def test_an_artifact_that_changed_since_it_was_hashed_is_refused(made: list[Conversion], tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"one")
    plans, artifact = plans_of(made), an_artifact(path=path)
    path.write_bytes(b"another")
    plan, _ = plans.begin(replica(), artifact)
    with pytest.raises(ArtifactChangedError, match="changed while it was converted"):
        plans.measure(replica(), plan)
    plans.drop(replica(), plan)
    assert Conversion.open == 0


def test_the_end_of_a_daemon_stops_all_plans_and_those_to_come(made: list[Conversion]) -> None:
    plans = plans_of(made)
    plan, _ = plans.begin(replica("a"), an_artifact())
    plans.measure(replica("a"), plan)
    plans.end()
    assert made[0].stopped == "the daemon is shutting down"
    late, _ = plans.begin(replica("b"), an_artifact())
    with pytest.raises(LostPeerError, match="shutting down"):
        plans.measure(replica("b"), late)
    plans.close()
    assert Conversion.open == 0
