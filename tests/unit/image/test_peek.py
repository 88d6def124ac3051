"""Looking at an image without its weights: how much there is to parse, and a copy of just that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from safetensors_files import FEW, MANY, NAME, a_file, an_image

from trims.core.errors import ArtifactError, ImageError
from trims.image.index import LENGTH
from trims.image.peek import CHECK_HERE_BYTES, described_bytes, why_of, without_weights
from trims.image.plan import SourceTensor, plan_image
from trims.image.program import Program
from trims.tiers import transfer

if TYPE_CHECKING:
    from pathlib import Path


def test_an_image_that_is_truncated_while_it_is_checked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = an_image(tmp_path, FEW)
    nbytes, pread = path.stat().st_size, os.pread

    def truncates(fd: int, length: int, offset: int) -> bytes:
        if offset > 0:
            os.truncate(path, offset + 10)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", truncates)
    with path.open("rb") as file, pytest.raises(ImageError, match=r"too short for an index|truncated"):
        transfer.check_bytes(file.fileno(), nbytes)


def test_an_image_is_as_large_as_what_must_be_parsed_of_it(tmp_path: Path) -> None:
    for tensors, program, large in ((FEW, 100, False), (FEW, 20 << 20, True), (MANY, 100, True)):
        sources = [SourceTensor(NAME.format(number), "F32", (2,)) for number in range(tensors)]
        planned = plan_image(sources, program=Program("mxnet-symbol", {}, bytes(program)))
        with (tmp_path / "image").open("w+b") as file:
            file.truncate(planned.nbytes)
            planned.write(file.fileno())
            assert (described_bytes(file.fileno(), planned.nbytes, "image") > CHECK_HERE_BYTES) is large


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (Program("torch-builder", {"why": "it says so"}, b"body"), "it says so"),
        (Program("torch-builder"), ""),
        (None, ""),
    ],
)
def test_why_an_image_is_not_as_others_is_read_from_its_program(
    program: Program | None, why: str, tmp_path: Path
) -> None:
    planned = plan_image([SourceTensor("w", "U8", (100_000,))], program=program)
    with (tmp_path / "image").open("w+b") as file:
        file.truncate(planned.nbytes)
        planned.write(file.fileno())
        assert why_of(file.fileno(), planned.nbytes) == why
        if program is not None:
            file.seek(len(planned.head) + planned.program_offset)
            file.write(b"\xff" * 8)
            file.flush()
        assert why_of(file.fileno(), planned.nbytes) == ""
        assert why_of(file.fileno(), 3) == ""


def test_a_copy_without_weights_has_all_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "image"
    data = os.urandom(100_000)
    planned = plan_image(
        [SourceTensor("w", "U8", (len(data),), lambda place: place.__setitem__(slice(None), data))],
        program=Program("mxnet-symbol", {}, b"body"),
    )
    path.write_bytes(bytes(planned.nbytes))
    with path.open("r+b") as file:
        planned.write(file.fileno())
        copy = without_weights(file.fileno(), planned.nbytes)
    whole = path.read_bytes()
    at = whole.index(data)
    assert copy[:at].rstrip(b"\0") == whole[:at].rstrip(b"\0")
    assert copy[at : at + len(data)] == bytes(len(data))
    assert copy[at + len(data) :] == whole[at + len(data) :]
    copy.close()


def test_a_file_that_is_no_image_is_as_large_as_its_header(tmp_path: Path) -> None:
    path = a_file(tmp_path, FEW)
    with path.open("rb") as file:
        (length,) = LENGTH.unpack(os.pread(file.fileno(), LENGTH.size, 0))
        assert described_bytes(file.fileno(), path.stat().st_size, "m") == length


def test_a_header_that_cannot_be_true_is_an_artifact_error_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(LENGTH.pack(100) + b"{}")
    with path.open("rb") as file, pytest.raises(ArtifactError, match=r"m\.safetensors: the header claims 100 bytes"):
        described_bytes(file.fileno(), 10, "m.safetensors")


@pytest.mark.parametrize("more", [-1, 1])
def test_a_copy_of_another_length_than_the_image_says_is_refused(tmp_path: Path, more: int) -> None:
    path = an_image(tmp_path, FEW)
    nbytes = path.stat().st_size + more
    os.truncate(path, nbytes)
    with path.open("rb") as file, pytest.raises(ImageError, match="bytes of data, the image has"):
        without_weights(file.fileno(), nbytes)
