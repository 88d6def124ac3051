"""Weights: read-only views by name, private ones on request, and errors that say what to do instead."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from in_place_files import weights_of
from trims_client.weights import Weights, numpy_dtype

from trims.core.errors import CallerError, ClosedError, ImageError, NotSupportedError
from trims.core.layout import DTYPE_BYTES
from trims.image.plan import Contents, SourceTensor, plan_image
from trims.image.program import Program
from trims.image.source import FileSpan, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_the_size_of_weights_is_said_with_a_unit(segment: Callable[..., int], folder: Path) -> None:
    path = folder / "image"
    path.write_bytes(os.pread(segment(), 1 << 20, 0))
    with Weights.map_file(path) as weights:
        assert repr(weights) == f"<Weights {str(path)!r} at disk: 1 tensors, {weights.nbytes / 1024:.1f} KiB>"


FLOATS = SourceTensor("f", "F32", (2, 3), lambda place: place.__setitem__(slice(None), bytes(range(24))))
ZEROS = SourceTensor("b", "BF16", (2,))


@pytest.fixture
def path(folder: Path) -> Path:
    """An image with a tensor of floats, one of bfloat16, a program and metadata."""
    planned = plan_image([FLOATS, ZEROS], program=Program("test", {"n": 1}, b"body"), metadata={"origin": "here"})
    data = bytearray(planned.nbytes)
    planned.write_into(memoryview(data))
    (folder / "image").write_bytes(data)
    return folder / "image"


def test_weights_are_a_mapping_of_read_only_views_in_the_order_of_the_artifact(path: Path) -> None:
    with Weights.map_file(path) as weights:
        assert (list(weights), len(weights), "f" in weights, "x" in weights) == (["f", "b"], 2, True, False)
        array = weights["f"]
        assert (array.shape, array.dtype.name, array.tobytes()) == ((2, 3), "float32", bytes(range(24)))
        assert weights["b"].dtype == ml_dtypes.bfloat16
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
        assert bytes(weights.raw("f")) == bytes(range(24))
        assert weights.metadata == {"origin": "here"}
        assert weights.program() == Program("test", {"n": 1}, b"body")
        assert (weights.place, weights.shared, weights.device, weights.lost) == ("disk", False, None, None)


def test_a_name_that_is_not_there_is_a_key_error_that_names_the_nearest(path: Path) -> None:
    with Weights.map_file(path) as weights:
        for look in (weights.__getitem__, weights.raw, weights.private_raw):
            with pytest.raises(KeyError, match="the image has no tensor 'ff'"):
                look("ff")
        assert weights.get("ff") is None


def test_a_private_view_is_written_without_changing_the_shared_one(path: Path) -> None:
    with Weights.map_file(path) as weights:
        before = path.read_bytes()
        at = weights.layout.tensors["f"].offset
        one, whole = weights.private_raw("f"), weights.data(private=True)
        one[0], whole[at + 1] = 99, 98
        assert (bytes(one[:2]), bytes(whole[at : at + 2])) == (b"\x63\1", b"\0\x62")
        assert bytes(weights.data()[at : at + 2]) == bytes(weights.raw("f")[:2]) == b"\0\1"
        assert path.read_bytes() == before


# -- tensors that are not aligned to their elements --------------------------------------------------------------------


@pytest.fixture
def unaligned(folder: Path) -> Iterator[Weights]:
    """Weights in place: `odd` and its `part` begin one byte behind a multiple of 64, `even` at one."""
    (folder / "raw").write_bytes(bytes(range(256)))
    file = SourceFile.look(folder / "raw")
    sources = [
        SourceTensor("odd", "F32", (2, 3), span=FileSpan(file, 65)),
        SourceTensor("part", "F32", (2,), tied_to="odd"),
        SourceTensor("even", "I16", (4,), span=FileSpan(file, 128)),
        SourceTensor("wide", "C64", (2,), span=FileSpan(file, 196)),
        SourceTensor("brain", "BF16", (3,), span=FileSpan(file, 233)),
        SourceTensor("bytes", "U8", (3,), span=FileSpan(file, 243)),
    ]
    with weights_of(Contents(sources), folder) as weights:
        yield weights


def test_a_tensor_that_is_not_aligned_is_copied_once_when_it_is_asked_for(unaligned: Weights) -> None:
    assert unaligned.copied_bytes == 0
    first, second = unaligned["odd"], unaligned["odd"]
    assert (first.flags.aligned, first.flags.writeable, first.shape) == (True, False, (2, 3))
    assert first.tobytes() == bytes(range(65, 89))
    assert np.shares_memory(first, second)
    assert unaligned.copied_bytes == 24
    assert unaligned["part"].tobytes() == bytes(range(65, 73))
    for name in ("even", "bytes"):
        assert unaligned[name].flags.aligned
    assert unaligned.copied_bytes == 32
    assert (unaligned["wide"].tobytes(), unaligned["wide"].dtype) == (bytes(range(196, 212)), np.complex64)
    assert unaligned["brain"].tobytes() == bytes(range(233, 239))
    assert unaligned.copied_bytes == 54
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


def test_the_bytes_of_a_tensor_are_given_as_they_lie_or_aligned(unaligned: Weights) -> None:
    for name in unaligned:
        assert unaligned.aligned(name) == unaligned.raw(name)
        assert unaligned.aligned(name).readonly
    assert np.shares_memory(np.frombuffer(unaligned.aligned("even"), "u1"), np.frombuffer(unaligned.data(), "u1"))
    assert np.frombuffer(unaligned.aligned("odd"), "u1").ctypes.data % 4 == 0


def test_a_copy_outlives_the_weights(unaligned: Weights) -> None:
    array = unaligned["odd"]
    unaligned.close()
    assert unaligned.copied_bytes == 0
    assert array.tobytes() == bytes(range(65, 89))


def test_other_libraries_borrow_the_copy(unaligned: Weights) -> None:
    found = np.from_dlpack(unaligned["odd"])
    assert found.tobytes() == bytes(range(65, 89))


def test_closed_weights_say_what_to_do_and_their_views_stay(path: Path) -> None:
    released: list[int] = []
    weights = Weights.map_file(path, lambda: released.append(1))
    array = weights["f"]
    weights.close()
    weights.close()
    assert weights.closed
    assert repr(weights) == f"<Weights {str(path)!r} at disk: closed>"
    for look in (lambda: weights["f"], lambda: weights.nbytes, lambda: list(weights), weights.program):
        with pytest.raises(ClosedError, match=r"image' are closed; open the model again to read them"):
            look()
    assert array.tobytes() == bytes(range(24))
    assert released == []
    del array
    gc.collect()
    assert released == [1]


def test_what_lies_on_the_host_is_not_lent_as_device_memory(path: Path) -> None:
    with Weights.map_file(path) as weights:
        asks: list[Callable[[], object]] = [lambda: weights.on_device("f"), weights.device_data]
        for ask in asks:
            with pytest.raises(NotSupportedError, match=r"lies at disk; open it with place='gpu'"):
                ask()
        with pytest.raises(NotSupportedError, match="room is kept free on devices only"):
            weights.report_workspace(1)
        for nbytes in (-1, 1 << 53, 1.0, True, None):
            with pytest.raises(CallerError, match="workspace is a number of bytes from 0 to 2"):
                weights.report_workspace(nbytes)  # type: ignore[arg-type]


def test_a_file_that_is_no_image_is_refused_and_unmapped(folder: Path) -> None:
    (folder / "text").write_bytes(b"no image" * 100)
    with pytest.raises(ImageError, match="image: the header claims"):
        Weights.map_file(folder / "text")
    assert str(folder / "text") not in Path("/proc/self/maps").read_text()


def test_every_dtype_has_one_of_numpy_of_its_size_and_an_unknown_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {name: numpy_dtype(name).itemsize for name in DTYPE_BYTES} == dict(DTYPE_BYTES)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert numpy_dtype("F32") == np.float32
    with pytest.raises(NotSupportedError, match="ml_dtypes"):
        numpy_dtype("BF16")


@pytest.mark.parametrize("what", [pickle.dumps, copy.copy, copy.deepcopy])
def test_weights_are_opened_by_name_in_another_process_and_not_copied(path: Path, what: Callable[..., object]) -> None:
    with Weights.map_file(path) as weights, pytest.raises(NotSupportedError, match="by its name"):
        what(weights)
