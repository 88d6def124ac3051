"""The tier of files: opens artifacts, keeps their descriptors, and lets go of them."""

# fault (in place): a file changes between plan and opening -> looked into once more

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from trims.core.errors import ArtifactChangedError, ArtifactNotFoundError, CapacityError, NotSupportedError
from trims.formats.base import Artifact
from trims.formats.in_place import InPlace
from trims.memory.attach import Attachment
from trims.tiers.base import Draft, Tier
from trims.tiers.file import FileTier

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.in_place import InPlacePlan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file({"w": np.arange(5000)}, tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def plan_of(path: Path) -> InPlacePlan:
    planning = InPlace(Artifact("safetensors", (path,), {}))
    planning.plan()
    return planning.planned()


def test_what_it_serves_is_mapped_from_head_and_file(path: Path) -> None:
    from trims.image.reader import ImageView

    tier = FileTier()
    assert isinstance(tier, Tier)
    extent = tier.serve("k", 1, plan_of(path))
    attachment = Attachment(extent.fd, extent.nbytes, pages=extent.pages)
    tier.free(extent)
    tier.free(extent)
    view = ImageView(attachment.data)
    assert np.frombuffer(view.tensor("w"), "i8").sum() == np.arange(5000).sum()
    private = attachment.private_data()
    private[view.data_start + view.spec("w").offset] = 9
    assert view.tensor("w")[0] == 0, "a private write stays private"
    del view, private
    attachment.close()


def test_an_artifact_that_is_all_program_takes_one_descriptor() -> None:
    from trims.image.in_place import plan_in_place
    from trims.image.plan import Contents
    from trims.image.program import Program
    from trims.image.reader import ImageView

    tier = FileTier()
    extent = tier.serve("k", 1, plan_in_place(Contents([], Program("onnx-original", {}, b"graph"))))
    attachment = Attachment(extent.fd, extent.nbytes, pages=extent.pages)
    tier.free(extent)
    assert extent.pages == ()
    assert ImageView(attachment.data).program() == Program("onnx-original", {}, b"graph")
    attachment.close()


def test_the_head_cannot_be_written_to(path: Path) -> None:
    tier = FileTier()
    extent = tier.serve("k", 1, plan_of(path))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(extent.fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/self/fd/{extent.fd}", 1)
    tier.close()
    tier.close()


def test_a_file_that_is_another_one_than_was_planned_with_is_refused(path: Path) -> None:
    plan = plan_of(path)
    save_file({"w": np.arange(5001)}, path)
    with pytest.raises(ArtifactChangedError):
        FileTier().serve("k", 1, plan)
    path.unlink()
    with pytest.raises(ArtifactNotFoundError):
        FileTier().serve("k", 1, plan)


# fault (in place): the daemon has no descriptor for a file -> `capacity` with the remedy
def test_without_a_descriptor_nothing_is_left_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(path)

    def none_left(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(CapacityError, match="no descriptor left"):
        FileTier().serve("k", 1, plan)


def test_nothing_is_copied_here_and_nothing_is_found_after_a_restart(path: Path) -> None:
    tier = FileTier()
    with pytest.raises(NotSupportedError, match="choose cpu or disk"):
        tier.create("k", 1, 10, allocate=False)
    with pytest.raises(NotSupportedError, match="choose cpu or disk"):
        tier.seal(Draft(-1, 10, "label"), "k", "d")
    tier.abort(Draft(-1, 10, "label"))
    assert list(tier.scan()) == []
    extent = tier.serve("k", 1, plan_of(path))
    tier.verify(extent)
    tier.leave(extent)
    error = OSError(5, "Input/output error")
    assert tier.explain(error, 10) is error
