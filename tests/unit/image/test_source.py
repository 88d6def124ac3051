"""Bytes that come from files: read in parallel into their place, and only if the file stayed as it was."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from images import tensor

from trims.core.errors import ArtifactChangedError, ArtifactError
from trims.image.plan import SourceTensor, plan_image
from trims.image.reader import ImageView
from trims.image.source import PIECE_BYTES, FileSpan, SourceFile


def span_of(path: Path, n_bytes: int, offset: int = 0) -> SourceTensor:
    return SourceTensor("w", "U8", (n_bytes,), span=FileSpan(SourceFile.look(path), offset))


def test_spans_of_files_are_read_into_place_and_progress_is_told_in_total_bytes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 12345)
    path.write_bytes(b"skip" + data)
    plan = plan_image([span_of(path, len(data), 4), tensor("last")])
    told: list[int] = []
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory), told.append)
    assert bytes(ImageView(memoryview(memory)).tensor("w")) == data
    assert told == sorted(told)
    assert len(told) == 4
    assert told[-1] == len(data) + 4


@pytest.mark.parametrize("length", [1000, 2 * PIECE_BYTES])
def test_a_file_that_shrinks_after_planning_is_an_artifact_error(tmp_path: Path, length: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(length))
    plan = plan_image([span_of(path, length)])
    os.truncate(path, length - 1)
    with pytest.raises(ArtifactError, match="truncated meanwhile"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))


def test_a_file_that_is_replaced_or_written_after_planning_is_an_artifact_error(tmp_path: Path) -> None:
    path, other = tmp_path / "data", tmp_path / "other"
    path.write_bytes(bytes(100))
    plan = plan_image([span_of(path, 100)])
    os.utime(path, ns=(1, 1))
    with pytest.raises(ArtifactChangedError, match="was changed while it was read"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))
    plan = plan_image([span_of(path, 100)])
    other.write_bytes(bytes(100))
    other.replace(path)
    with pytest.raises(ArtifactChangedError, match="was changed while it was read"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))


def test_a_file_that_vanishes_or_is_none_is_an_artifact_error(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(100))
    plan = plan_image([span_of(path, 100)])
    path.unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))
    with pytest.raises(ArtifactError, match="is not a file"):
        SourceFile.look(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactError, match="is not a file"):
        SourceFile.look(tmp_path / "pipe")


def test_progress_that_raises_ends_the_writing(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * PIECE_BYTES))
    plan = plan_image([span_of(path, 4 * PIECE_BYTES)])

    def stop(_: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        plan.write_into(memoryview(bytearray(plan.nbytes)), stop)


def test_a_file_is_read_as_far_as_it_goes_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    file = SourceFile.look(path)
    assert file.nbytes == 10
    assert file.read(4) == b"0123"
    assert file.read(100, 8) == b"89"
    assert file.read(100, 10) == b""
    file.check_again()


def test_a_file_that_changed_since_it_was_described_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    file = SourceFile.look(path)
    os.truncate(path, 9)
    with pytest.raises(ArtifactChangedError, match=r"data was changed while it was read; load it again") as caught:
        file.check_again()
    assert str(path) in str(caught.value)


def test_a_path_that_no_file_can_have_is_an_artifact_error() -> None:
    with pytest.raises(ArtifactError, match=r"cannot be read: .*embedded null"):
        SourceFile.look(Path("a\0b"))
