"""Artifacts in place as a session maps them, put together in a file of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims_client.weights import Weights

from trims.image.in_place import plan_in_place

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.in_place import InPlacePlan
    from trims.image.plan import Contents


def put_together(plan: InPlacePlan) -> bytearray:
    """Head and pages, as they lie in memory."""
    memory = bytearray(plan.nbytes)
    memory[: len(plan.head)] = plan.head
    for part in plan.pages:
        memory[part.begin : part.begin + part.nbytes] = part.file.read(part.nbytes, part.offset)
    return memory


def weights_of(contents: Contents, folder: Path) -> Weights:
    """The weights of an artifact in place."""
    path = folder / "in_place.image"
    path.write_bytes(put_together(plan_in_place(contents)))
    return Weights.map_file(path)
