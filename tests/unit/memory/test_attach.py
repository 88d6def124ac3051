"""The borrower's mapping: how long it lives, when it is released, and who may write what."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trims.core.errors import ClosedError, ImageError
from trims.memory import mapping
from trims.memory.attach import Attachment
from trims.memory.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NBYTES = 3 * 4096


@pytest.fixture(autouse=True, params=["where the kernel puts it", "aligned for large pages"])
def _mapping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with both ways to map, which keep the same promises."""
    if "aligned" in request.param:
        monkeypatch.setattr(mapping, "_WORTH_BYTES", 1)


@pytest.fixture
def segment() -> Iterator[int]:
    fd = os.memfd_create("trims-test")
    os.write(fd, bytes(range(256)) * (NBYTES // 256))
    yield fd
    os.close(fd)


@pytest.fixture
def attach(segment: int) -> Callable[[], tuple[Attachment, list[int]]]:
    """An attachment and the list that gets an entry with each release."""

    def make() -> tuple[Attachment, list[int]]:
        released: list[int] = []
        return Attachment(segment, NBYTES, lambda: released.append(1)), released

    return make


def test_an_attachment_reads_the_segment_and_is_released_once(
    attach: Callable[[], tuple[Attachment, list[int]]],
) -> None:
    made, released = attach()
    assert bytes(made.data) == bytes(range(256)) * (NBYTES // 256)
    assert not made.closed
    made.close()
    made.close()
    assert made.closed
    assert released == [1]
    for use in (lambda: made.data, made.private_data):
        with pytest.raises(ClosedError, match="open them again"):
            use()


def test_the_descriptor_given_stays_the_givers(segment: int) -> None:
    made = Attachment(segment, NBYTES)
    made.close()
    assert os.fstat(segment).st_size == NBYTES


def test_views_outlive_close_and_delay_the_release(attach: Callable[[], tuple[Attachment, list[int]]]) -> None:
    made, released = attach()
    view = np.frombuffer(made.data, np.uint8)
    part = view[256:512].reshape(16, 16)
    made.close()
    del view
    assert released == []
    assert part[0, 1] == 1
    del part
    assert released == [1]


def test_a_private_view_alone_delays_it_too(attach: Callable[[], tuple[Attachment, list[int]]]) -> None:
    made, released = attach()
    private = np.frombuffer(made.private_data(), np.uint8)
    made.close()
    assert released == []
    assert private[5] == 5
    del private
    assert released == [1]


def test_what_is_dropped_without_close_is_released_all_the_same(
    attach: Callable[[], tuple[Attachment, list[int]]],
) -> None:
    made, released = attach()
    before = len(os.listdir("/proc/self/fd"))
    del made
    gc.collect()
    assert released == [1]
    assert len(os.listdir("/proc/self/fd")) < before


def test_shared_bytes_cannot_be_written_from_python(attach: Callable[[], tuple[Attachment, list[int]]]) -> None:
    made, _ = attach()
    with pytest.raises(TypeError, match="read-only"):
        made.data[0] = 1
    assert not np.frombuffer(made.data, np.uint8).flags.writeable
    made.close()


def test_a_private_write_is_seen_through_its_own_mapping_only(
    attach: Callable[[], tuple[Attachment, list[int]]], segment: int
) -> None:
    made, released = attach()
    one, other = made.private_data(), made.private_data()
    one[4096] = 200
    assert (one[4096], other[4096], made.data[4096], os.pread(segment, 1, 4096)) == (200, 0, 0, b"\0")
    other[4096] = 100
    assert one[4096] == 200
    made.close()
    assert one[4096] == 200
    del one, other
    assert released == [1]


@pytest.mark.parametrize("nbytes", [NBYTES + 1, NBYTES * 1000, 0, -1])
def test_more_than_the_segment_has_is_refused_before_it_is_mapped(segment: int, nbytes: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ImageError, match=f"has {NBYTES} bytes, {nbytes} were announced"):
        Attachment(segment, nbytes)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_that_cannot_be_mapped_is_an_error_and_leaves_nothing() -> None:
    reader, writer = os.pipe()
    with pytest.raises(ImageError):
        Attachment(reader, 10)
    os.close(reader)
    os.close(writer)


def test_threads_may_take_private_views_while_another_closes(
    attach: Callable[[], tuple[Attachment, list[int]]],
) -> None:
    for _ in range(20):
        made, released = attach()
        start = threading.Barrier(4)

        def take(made: Attachment = made, start: threading.Barrier = start) -> None:
            start.wait(30)
            try:
                assert made.private_data()[1] == 1
            except ClosedError:
                return

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        start.wait(30)
        made.close()
        for thread in threads:
            thread.join()
        assert released == [1]


@pytest.mark.parametrize(
    ("begin", "nbytes", "offset", "wrong"),
    [
        (4096, 100, 1, "no pages"),
        (1, 100, 0, "no pages"),
        (4096, 0, 0, "no pages"),
        (-4096, 100, 0, "no pages"),
        (4096, 4097, 0, "no pages"),
        (4096, 4096, 4096, "cut short"),
    ],
)
def test_pages_that_reading_would_die_of_are_refused(
    begin: int, nbytes: int, offset: int, wrong: str, tmp_path: Path
) -> None:
    (tmp_path / "head").write_bytes(bytes(8192))
    (tmp_path / "file").write_bytes(bytes(5000))
    with open(tmp_path / "head", "rb") as head, open(tmp_path / "file", "rb") as file:
        pages = Pages(file.fileno(), begin, nbytes, offset)
        with pytest.raises(ImageError, match=wrong):
            Attachment(head.fileno(), 8192, pages=[pages])


def test_pages_of_other_files_lie_over_the_first_until_the_last_view_is_gone(tmp_path: Path) -> None:
    (tmp_path / "head").write_bytes(b"h" * 8192)
    (tmp_path / "file").write_bytes(b"f" * 8192)
    gone: list[bool] = []
    with open(tmp_path / "head", "rb") as head, open(tmp_path / "file", "rb") as file:
        pages = Pages(file.fileno(), 4096, 4000, 4096)
        attachment = Attachment(head.fileno(), 8096, lambda: gone.append(True), [pages])
    assert bytes(attachment.data) == b"h" * 4096 + b"f" * 4000
    private = attachment.private_data()
    private[5000] = 7
    assert attachment.data[5000] == ord("f")
    attachment.close()
    assert not gone, "a private view is left"
    del private
    assert gone


@pytest.fixture
def another() -> Iterator[int]:
    """Other bytes of the same length, so that it shows which file is mapped."""
    fd = os.memfd_create("trims-another")
    os.write(fd, b"x" * NBYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_WORTH_BYTES", 1)


@pytest.mark.usefixtures("aligned")
def test_an_exchange_reaches_views_and_later_private_copies_and_leaves_no_descriptor(
    attach: Callable[[], tuple[Attachment, list[int]]], another: int
) -> None:
    made, released = attach()
    view, descriptors = made.data, len(os.listdir("/proc/self/fd"))
    assert made.exchange(another)
    assert bytes(view) == bytes(made.private_data()) == b"x" * NBYTES
    assert len(os.listdir("/proc/self/fd")) == descriptors
    made.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1
    del view
    gc.collect()
    assert released == [1]


@pytest.mark.usefixtures("aligned")
def test_nothing_is_exchanged_while_a_private_copy_of_the_old_bytes_is_alive(
    attach: Callable[[], tuple[Attachment, list[int]]], another: int
) -> None:
    made, _ = attach()
    private = made.private_data()
    assert not made.exchange(another)
    assert bytes(made.data) == bytes(private)
    del private
    gc.collect()
    assert made.exchange(another)
    made.close()


@pytest.mark.usefixtures("aligned")
def test_a_closed_attachment_is_exchanged_while_a_view_is_left(
    attach: Callable[[], tuple[Attachment, list[int]]], another: int
) -> None:
    made, released = attach()
    view = made.data
    made.close()
    descriptors = len(os.listdir("/proc/self/fd"))
    assert made.exchange(another)
    assert bytes(view[:2]) == b"xx"
    assert len(os.listdir("/proc/self/fd")) == descriptors
    del view
    gc.collect()
    assert released == [1]
    assert not made.exchange(another)


def test_a_file_that_is_too_short_is_not_exchanged_for_the_present_one(
    attach: Callable[[], tuple[Attachment, list[int]]],
) -> None:
    made, _ = attach()
    fd = os.memfd_create("trims-short")
    with pytest.raises(ImageError, match="the segment has 0 bytes"):
        made.exchange(fd)
    os.close(fd)
    made.close()


def test_each_part_is_duplicated_before_the_next_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "head").write_bytes(bytes(3 * 4096))
    (tmp_path / "file").write_bytes(b"\5" * 4096)

    def parts() -> Iterator[Pages]:
        for begin in (4096, 8192):
            fd = os.open(tmp_path / "file", os.O_RDONLY)
            yield Pages(fd, begin, 4096, 0)
            os.close(fd)

    with (tmp_path / "head").open("rb") as head:
        attachment = Attachment(head.fileno(), 3 * 4096, pages=parts())
    assert bytes(attachment.data) == bytes(4096) + b"\5" * 8192
    assert bytes(attachment.private_data()) == bytes(attachment.data)
    attachment.close()
