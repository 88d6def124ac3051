"""The head of an image on a device: all but the tensors' bytes, in memory that no process can change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from keepers import put

from trims.core.errors import ImageError
from trims.image.reader import ImageView
from trims.keeper.head import make_head
from trims.keeper.mover import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.keeper.keeper import Keeper


def test_the_head_describes_the_image_and_takes_hardly_any_memory(
    keeper: Keeper, image: Callable[..., tuple[int, bytes]]
) -> None:
    fd, data = image()
    exported, head_fd = keeper.export(put(keeper, fd, len(data)))
    exported.close()
    with memoryview(bytearray(os.pread(head_fd, len(data), 0))) as head:
        view, original = ImageView(head), ImageView(memoryview(data))
        assert view.layout.tensors == original.layout.tensors
        program = view.program()
        assert program is not None
        assert program.body == b"the graph"
        assert not any(view.tensor("w"))
    assert os.fstat(head_fd).st_blocks * 512 < CHUNK_BYTES
    for change in (lambda: os.pwrite(head_fd, b"x", 0), lambda: os.truncate(f"/proc/self/fd/{head_fd}", 0)):
        with pytest.raises(OSError, match=r"Bad file descriptor|not permitted"):
            change()
    os.close(head_fd)


@pytest.mark.parametrize("keep", [0, 7, 100, 4096])
def test_a_file_that_shrinks_while_its_head_is_made_is_an_error_and_no_signal(
    image: Callable[..., tuple[int, bytes]], keep: int
) -> None:
    fd, data = image(1 << 16)
    os.truncate(f"/proc/self/fd/{fd}", keep)
    with pytest.raises(ImageError, match="truncated"):
        make_head(fd, len(data))


def test_a_head_is_made_from_the_image_alone_whatever_lies_behind_it(image: Callable[..., tuple[int, bytes]]) -> None:
    fd, data = image(1 << 16)
    os.pwrite(fd, b"more", len(data))
    head = make_head(fd, len(data))
    try:
        assert os.fstat(head).st_size == len(data)
        view = ImageView(memoryview(os.pread(head, len(data), 0)))
        start = view.data_start + view.index_header.index_bytes
        assert os.pread(head, start, 0) == data[:start]
    finally:
        os.close(head)


def test_a_file_that_is_no_image_or_cannot_be_read_has_no_head(folder: Path) -> None:
    (folder / "text").write_bytes(b"\2\0\0\0\0\0\0\0{}" + bytes(1000))
    with (folder / "text").open("rb") as text, pytest.raises(ImageError, match="no trims index"):
        make_head(text.fileno(), 1010)
    with (folder / "text").open("rb") as text, pytest.raises(ImageError, match="claims 2 bytes, the file has 9"):
        make_head(text.fileno(), 9)
    with (folder / "written").open("wb") as unreadable, pytest.raises(ImageError, match="the image cannot be read: "):
        make_head(unreadable.fileno(), 1010)
