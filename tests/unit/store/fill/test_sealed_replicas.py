"""Memory of sealed replicas: its descriptors are counted, and a fill waits for one that is being given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trims.core.errors import CapacityError
from trims.core.place import CPU
from trims.core.replica import ReplicaId
from trims.store.fill.sealed_replicas import SealedReplicas

ONE, OTHER = ReplicaId("a", CPU, 1), ReplicaId("b", CPU, 1)


def extent(pages: int = 0) -> Any:
    return SimpleNamespace(fd=0, pages=[None] * pages)


def test_descriptors_count_with_pages_and_once_for_each_replica() -> None:
    memory = SealedReplicas(4)
    for found in (extent(9), extent(2)):  # the second one in place of the first
        memory.add(ONE, found)
    memory.check_room(1)
    with pytest.raises(CapacityError, match="allows 4; raise it"):
        memory.check_room(2)
    memory.end_free(ONE)
    memory.end_free(ONE)
    memory.check_room(4)
    assert (memory.extents(), memory.by_replica) == ({}, {})


def test_a_fill_waits_only_for_a_descriptor_that_is_being_given_back() -> None:
    memory, begun = SealedReplicas(1), []
    memory.add(ONE, extent())
    assert not memory.parks(1, lambda: begun.append("other")), "nothing would begin it"
    memory.begin_free(ONE)
    assert not memory.parks(0, lambda: begun.append("none"))
    assert memory.parks(1, lambda: begun.append("one"))
    assert begun == []
    memory.end_free(ONE)
    assert begun == ["one"]
    memory.begin_parked()
    assert begun == ["one"], "each once"


def test_fills_that_wait_begin_when_all_is_over() -> None:
    memory, begun = SealedReplicas(1), []
    memory.add(ONE, extent())
    memory.begin_free(ONE)
    assert memory.parks(1, lambda: begun.append("one"))
    memory.begin_parked()
    assert begun == ["one"]
