"""Answers of a daemon as frozen values: every field of a message arrives, whatever its kind."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from trims import control
from trims.control.answers import Loading, Replica, read
from trims.core.errors import ManifestError
from trims.wire import trims_pb2 as pb

#: Each answer, and the message with the fields of the same names.
ANSWERS: dict[type[Any], Any] = {
    control.Change: pb.Change, control.Device: pb.Device, control.Evicted: pb.EvictReply,
    control.Health: pb.HealthReply, control.Holder: pb.Holder, control.Loading: pb.LoadProgress,
    control.Model: pb.Model, control.Replica: pb.Replica, control.Report: pb.CheckReply,
    control.Residents: pb.ReplicaList, control.Stats: pb.StatsReply, control.Tier: pb.TierStats,
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda kind: kind.__name__)
def test_an_answer_has_every_field_of_its_message(answer: type[Any]) -> None:
    assert {each.name for each in fields(answer)} == {each.name for each in ANSWERS[answer].DESCRIPTOR.fields}


def test_what_a_message_leaves_out_is_none() -> None:
    assert read(Replica, pb.Replica()).keep_left_s is None
    assert read(Replica, pb.Replica(keep_left_s=0.0)).keep_left_s == 0.0
    assert read(Loading, pb.LoadProgress()).replica is None


def test_messages_inside_a_message_and_lists_and_maps_are_read_too() -> None:
    holder = pb.Holder(session=1, pid=2, uid=3, agent="a", leases=4)
    replica = read(Replica, pb.Replica(key="k", names=["a", "b"], holders=[holder], keep_left_s=1.5))
    assert replica.names == ("a", "b")
    assert replica.holders == (control.Holder(1, 2, 3, "a", 4),)
    assert replica.keep_left_s == 1.5
    stats = read(control.Stats, pb.StatsReply(counters={"fills.cpu": 3}, tiers=[pb.TierStats(place="cpu")]))
    assert stats.counters == {"fills.cpu": 3}
    assert [tier.place for tier in stats.tiers] == ["cpu"]
    loading = read(Loading, pb.LoadProgress(phase="done", replica=pb.Replica(place="disk")))
    assert loading.replica is not None
    assert loading.replica.place == "disk"


def test_an_answer_cannot_be_changed_and_outlives_its_message() -> None:
    message = pb.Replica(names=["a"])
    replica = read(Replica, message)
    message.names.append("b")
    assert replica.names == ("a",)
    with pytest.raises(FrozenInstanceError):
        replica.place = "cpu"  # type: ignore[misc]


def test_a_models_manifest_is_read_from_its_text() -> None:
    model = read(control.Model, pb.Model(name="m", manifest_json='{"name": "m", "pin": ["cpu"]}'))
    assert model.manifest == {"name": "m", "pin": ["cpu"]}


def test_a_manifest_that_could_not_be_read_is_an_error_with_the_reason() -> None:
    with pytest.raises(ManifestError, match=r"^/srv/odd\.yaml: is not YAML$"):
        read(control.Model, pb.Model(name="odd", problem="/srv/odd.yaml: is not YAML")).manifest  # noqa: B018
