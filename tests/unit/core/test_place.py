"""Places: how they are read and written, and that each is one object."""

from __future__ import annotations

import copy
import pickle

import pytest

from trims.core.errors import CallerError
from trims.core.place import CPU, DISK, Place, TierKind


@pytest.mark.parametrize(
    ("text", "place", "again"),
    [
        ("cpu", CPU, "cpu"),
        ("disk", DISK, "disk"),
        ("cloud", Place(TierKind.CLOUD), "cloud"),
        ("gpu", Place(TierKind.GPU), "gpu:0"),
        ("gpu:12", Place(TierKind.GPU, 12), "gpu:12"),
        ("cpu:0", CPU, "cpu"),
    ],
)
def test_places_are_read_and_written(text: str, place: Place, again: str) -> None:
    assert Place.parse(text) == place
    assert str(place) == again
    assert Place.parse(again) == place


@pytest.mark.parametrize(
    "text", ["", "moon", "CPU", "cpu ", "cpu:1", "disk:2", "gpu:", "gpu:-1", "gpu:1000", "gpu:x", "cpu\n"]
)
def test_what_is_no_place_is_named(text: str) -> None:
    with pytest.raises(CallerError, match="is not a place"):
        Place.parse(text)


def test_the_fastest_tier_ranks_first() -> None:
    assert sorted(TierKind, key=lambda tier: tier.rank) == [
        TierKind.GPU, TierKind.CPU, TierKind.DISK, TierKind.FILE, TierKind.CLOUD
    ]  # fmt: skip


def test_there_is_one_object_for_each_place_wherever_it_comes_from() -> None:
    other = Place(TierKind.GPU, 1)
    assert Place.parse("gpu:1") is other
    assert pickle.loads(pickle.dumps(other)) is other
    assert copy.deepcopy({other: 1}) == {other: 1}
    assert other != Place(TierKind.GPU, 0)
