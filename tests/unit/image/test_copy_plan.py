"""Images that lie in files entirely: as a copier's task they come out as they are written otherwise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from images import put

from trims.background.task import Running, SourceFailedError
from trims.core.errors import ArtifactChangedError, ArtifactError
from trims.image.checksum import stated
from trims.image.copy_plan import CopyPlan, as_order, is_carriable, stamp
from trims.image.plan import ImagePlan, SourceTensor, plan_image
from trims.image.program import Program
from trims.image.reader import ImageView
from trims.image.source import FileSpan, SourceFile

if TYPE_CHECKING:
    from pathlib import Path


def plan_of(folder: Path) -> ImagePlan:
    """Two files, tensors in another order than in the files, one tied, one of zeros, one empty; and a program."""
    files = []
    for number in range(2):
        path = folder / f"{number}.bin"
        path.write_bytes(os.urandom(300_000))
        files.append(SourceFile.look(path))
    sources = [
        SourceTensor("last", "U8", (100_001,), span=FileSpan(files[1], 150_000)),
        SourceTensor("first", "F32", (25_000,), span=FileSpan(files[0], 3)),
        SourceTensor("tied", "F32", (5,), tied_to="first"),
        SourceTensor("zeros", "F32", (1000,)),
        SourceTensor("empty", "F32", (0, 3), span=FileSpan(files[0], 0)),
        SourceTensor("other", "U8", (7,), span=FileSpan(files[0], 299_993)),
    ]
    return plan_image(sources, program=Program("onnx", {"opset": 1}, b"program" * 999), metadata={"a": "b"})


def carry(carried: CopyPlan) -> dict[str, str]:
    running = Running(carried.order)
    while running.done_bytes < carried.order.task.nbytes:
        running.advance()
    running.close()
    return running.digests()


def test_a_carried_image_is_byte_for_byte_the_written_one(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    written, target = (os.memfd_create(name) for name in ("written", "target"))
    for fd in (written, target):
        os.ftruncate(fd, plan.nbytes)
    plan.write(written)
    before = len(os.listdir("/proc/self/fd"))
    with as_order(plan, target, large_pages=False) as carried:
        digests = carry(carried)
        carried.check()
    assert len(os.listdir("/proc/self/fd")) == before
    stamp(plan, target, digests["checksum"])
    assert os.pread(target, plan.nbytes + 1, 0) == os.pread(written, plan.nbytes, 0)
    assert f"{stated(ImageView(memoryview(os.pread(target, plan.nbytes, 0)))):016x}" == digests["checksum"]
    for fd in (written, target):
        os.close(fd)


def test_only_what_lies_in_files_entirely_can_be_carried(tmp_path: Path) -> None:
    assert is_carriable(plan_of(tmp_path))
    assert not is_carriable(plan_image([SourceTensor("made", "U8", (1,), fill=put(b"1"))]))


def test_a_file_that_fails_or_changes_is_named_by_its_path(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    target = os.memfd_create("target")
    os.ftruncate(target, plan.nbytes)
    with as_order(plan, target, large_pages=False) as carried:
        os.utime(tmp_path / "1.bin", ns=(1, 1))
        with pytest.raises(ArtifactChangedError, match=r"1\.bin was changed while it was read"):
            carried.check()
        os.truncate(tmp_path / "1.bin", 160_000)
        with pytest.raises(SourceFailedError) as failed:
            carry(carried)
        assert "1.bin ended at 160000 while it was read" in str(carried.explain(failed.value))
        assert "0.bin cannot be read at 5 bytes: Input/output" in str(carried.explain(SourceFailedError(1, 5, 5)))
    (tmp_path / "0.bin").unlink()
    with pytest.raises(ArtifactError, match=r"0\.bin"), as_order(plan, target, large_pages=False):
        pass
    os.close(target)
