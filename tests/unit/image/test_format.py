"""Images: what goes in comes out, for trims and for any safetensors reader; and no lie in one is believed."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trims.core.errors import ArtifactChangedError, ArtifactError, ImageError, TensorNotFoundError
from trims.core.layout import DTYPE_BYTES, DTYPES, TENSOR_ALIGNMENT_BYTES, element_count
from trims.image.check import check_image
from trims.image.header import METADATA_KEY
from trims.image.index import HEADER, LENGTH, MAGIC, RECORD, decode_header
from trims.image.plan import DATA_ALIGNMENT_BYTES, SourceTensor, plan_image
from trims.image.program import Program
from trims.image.reader import ImageView, is_image
from trims.image.source import PIECE_BYTES, FileSpan, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=12)


def content(number: int, n_bytes: int) -> bytes:
    return bytes((number * 31 + position) % 2 for position in range(n_bytes))  # valid for bool as well


def put(data: bytes) -> Callable[[memoryview], None]:
    def fill(place: memoryview) -> None:
        place[:] = data

    return fill


def image_of(sources: list[SourceTensor], **more: Any) -> bytearray:
    plan = plan_image(sources, **more)
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    return memory


def tensor(name: str, data: bytes = b"\1\2\3\4", dtype: str = "U8", shape: tuple[int, ...] = (4,)) -> SourceTensor:
    return SourceTensor(name, dtype, shape, fill=put(data))


@settings(max_examples=150, deadline=None)
@given(TENSORS, st.binary(max_size=50), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_any_names_dtypes_and_shapes_come_out_as_they_went_in(
    described: dict[str, tuple[str, tuple[int, ...]]], body: bytes, metadata: dict[str, str]
) -> None:
    metadata = {
        key: text for key, text in metadata.items() if key != METADATA_KEY and text.isprintable() and key.isprintable()
    }
    wanted = {
        name: content(number, element_count(shape) * DTYPE_BYTES[dtype])
        for number, (name, (dtype, shape)) in enumerate(described.items())
    }
    sources = [tensor(name, wanted[name], dtype, shape) for name, (dtype, shape) in described.items()]
    program = Program("test", {"n": 1}, body)
    memory = image_of(sources, program=program, metadata=metadata)

    view = ImageView(memoryview(memory).toreadonly())
    check_image(view)
    assert {spec.name: (spec.dtype, spec.shape) for spec in view.layout} == described
    assert {name: bytes(view.tensor(name)) for name in described} == wanted
    assert all(spec.offset % TENSOR_ALIGNMENT_BYTES == 0 for spec in view.layout)
    assert view.data_start % DATA_ALIGNMENT_BYTES == 0
    assert view.metadata == metadata
    assert view.program() == program
    assert is_image(bytes(memory[: view.data_start + HEADER.size]))


@settings(max_examples=50, deadline=None)
@given(TENSORS)
def test_the_safetensors_library_reads_the_same_bytes(described: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    safetensors = pytest.importorskip("safetensors")
    wanted = {
        name: content(number, element_count(shape) * DTYPE_BYTES[dtype])
        for number, (name, (dtype, shape)) in enumerate(described.items())
    }
    memory = image_of([tensor(name, wanted[name], dtype, shape) for name, (dtype, shape) in described.items()])
    read = dict(safetensors.deserialize(bytes(memory)))
    for name, (_, shape) in described.items():
        assert bytes(read[name]["data"]) == wanted[name]
        assert tuple(read[name]["shape"]) == shape


def test_numpy_and_torch_loaders_of_safetensors_read_an_image(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("torch")
    from safetensors.numpy import load_file as load_numpy
    from safetensors.torch import load_file as load_torch

    values = np.arange(6, dtype="<f4").reshape(2, 3)
    path = tmp_path / "image.safetensors"
    path.write_bytes(image_of([tensor("w", values.tobytes(), "F32", (2, 3)), tensor("scalar", b"\7", "U8", ())]))
    assert np.array_equal(load_numpy(path)["w"], values)
    assert np.array_equal(load_torch(path)["w"].numpy(), values)
    assert load_torch(path)["scalar"].item() == 7


def test_tied_tensors_share_an_offset_and_stay_readable_for_other_libraries() -> None:
    memory = image_of(
        [tensor("a"), SourceTensor("b", "U8", (4,), tied_to="a"), SourceTensor("p", "U8", (2,), tied_to="a")]
    )
    view = ImageView(memoryview(memory))
    check_image(view)
    assert view.layout.tensors["a"].offset == view.layout.tensors["b"].offset == view.layout.tensors["p"].offset
    assert bytes(view.tensor("p")) == b"\1\2"
    assert set(view.header.layout.tensors) >= {"a"}
    assert "b" not in view.header.layout.tensors


def test_names_that_look_like_our_own_are_kept_apart() -> None:
    names = ["__trims__.index", "__trims___.program", "__trims__", "__trims____.pad.0"]
    view = ImageView(memoryview(image_of([tensor(name) for name in names])))
    check_image(view)
    assert list(view.layout.tensors) == names


def test_a_tensor_without_a_source_is_zeros() -> None:
    view = ImageView(memoryview(image_of([SourceTensor("z", "F32", (2,))])))
    assert bytes(view.tensor("z")) == bytes(8)


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([tensor("a"), tensor("a")], "described twice"),
        ([tensor("__metadata__")], "__metadata__"),
        ([tensor("\ud800")], "not valid Unicode"),
        ([tensor("a", dtype="X")], "unknown dtype"),
        ([tensor("a", shape=(-1,))], "impossible shape"),
        ([tensor("a", shape=(1,) * 65)], "impossible shape"),
        ([SourceTensor("b", "U8", (4,), tied_to="a"), tensor("a")], "not there or smaller"),
        ([tensor("a"), SourceTensor("b", "U8", (5,), tied_to="a")], "not there or smaller"),
    ],
)
def test_what_cannot_be_an_image_is_refused_when_it_is_planned(sources: list[SourceTensor], words: str) -> None:
    with pytest.raises(ImageError, match=words):
        plan_image(sources)


def test_memory_of_another_size_is_refused() -> None:
    plan = plan_image([tensor("a")])
    with pytest.raises(ImageError, match="was given"):
        plan.write_into(memoryview(bytearray(plan.nbytes + 1)))


# -- reading what a converter child, or a stranger, wrote -----------------------------------------------------


@pytest.fixture
def image() -> bytearray:
    sources = [tensor("a"), tensor("b", bytes(16), "F32", (2, 2)), SourceTensor("t", "U8", (4,), tied_to="a")]
    return image_of(sources, program=Program("test", {}, b"body"))


def data_start(image: bytearray) -> int:
    return LENGTH.size + int(LENGTH.unpack_from(image)[0])


def check(image: bytearray) -> None:
    view = ImageView(memoryview(image))
    check_image(view)


def test_every_truncation_is_noticed(image: bytearray) -> None:
    for length in [*range(0, 80, 7), *range(80, len(image), 97), len(image) - 1]:
        with pytest.raises(ImageError):
            check(image[:length])


def test_every_byte_appended_is_noticed(image: bytearray) -> None:
    with pytest.raises(ImageError, match="truncated"):
        check(image + b"\0")


@pytest.mark.parametrize(
    "field", range(1, 8), ids=["tensors", "dimensions", "names", "size", "program at", "program", "data"]
)
@pytest.mark.parametrize("change", [-1, 1, 1 << 30])
def test_a_lie_in_the_index_header_is_noticed(image: bytearray, field: int, change: int) -> None:
    start = data_start(image)
    values = list(HEADER.unpack_from(image, start))
    values[field] = max(0, values[field] + change)
    HEADER.pack_into(image, start, *values)
    with pytest.raises(ImageError):
        check(image)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0, 0, 0, HEADER.size, 0, 0, HEADER.size - 1), "which its own counts contradict"),
        ((0, 0, 0, HEADER.size, 60, 5, HEADER.size), "program lies outside"),
    ],
)
def test_an_index_header_that_cannot_be_true_is_refused_before_the_table_is_read(
    values: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ImageError, match=words):
        decode_header(HEADER.pack(MAGIC, *values))


@pytest.mark.parametrize("field", range(7), ids=["name at", "name", "offset", "first", "dtype", "rank", "zero"])
@pytest.mark.parametrize("record", range(3))
@pytest.mark.parametrize("change", [-1, 1, 64, 255])
def test_a_lie_in_a_record_of_the_index_is_noticed(image: bytearray, record: int, field: int, change: int) -> None:
    at = data_start(image) + HEADER.size + record * RECORD.size
    values = list(RECORD.unpack_from(image, at))
    limit = [1 << 32, 1 << 32, 1 << 64, 1 << 32, 256, 256, 1 << 16][field]
    values[field] = (values[field] + change) % limit
    RECORD.pack_into(image, at, *values)
    with pytest.raises(ImageError):
        check(image)


def test_every_flipped_byte_of_the_index_is_noticed(image: bytearray) -> None:
    start = data_start(image)
    size = ImageView(memoryview(image)).index_header.index_bytes
    unused = range(start + HEADER.size - 8, start + HEADER.size)
    for at in (at for at in range(start, start + size) if at not in unused):
        image[at] ^= 0x41
        with pytest.raises(ImageError):
            check(image)
        image[at] ^= 0x41
    check(image)


def rewritten(image: bytearray, change: Callable[[dict[str, Any]], None]) -> bytearray:
    """The image with its JSON header changed, of the same length."""
    start = data_start(image)
    header = json.loads(image[LENGTH.size : start])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode().ljust(start - LENGTH.size)
    return image[: LENGTH.size] + text + image[start:]


def own(header: dict[str, Any], **fields: Any) -> None:
    header["__metadata__"][METADATA_KEY] = json.dumps({**json.loads(header["__metadata__"][METADATA_KEY]), **fields})


def tied(**fields: Any) -> dict[str, Any]:
    return {"t": {"dtype": "U8", "shape": [4], "data_offsets": [192, 196], **fields}}


def renamed(header: dict[str, Any]) -> None:
    header["c"] = header.pop("b")


def with_a_pad_called_tensor(header: dict[str, Any]) -> None:
    header["more"] = header.pop(next(name for name in header if ".pad." in name))


def with_a_longer_index(header: dict[str, Any]) -> None:
    pad = header.pop(next(name for name in header if ".pad." in name))
    end = pad["data_offsets"][1]
    header["__trims__.index"].update(shape=[end], data_offsets=[0, end])


HEADER_LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "another dtype": lambda header: header["b"].update(dtype="I32"),
    "another shape": lambda header: header["b"].update(shape=[4]),
    "another name": renamed,
    "a tensor more": with_a_pad_called_tensor,
    "a longer index": with_a_longer_index,
    "no metadata": lambda header: header.pop("__metadata__") and None,
    "metadata no JSON": lambda header: header["__metadata__"].update({METADATA_KEY: "{"}),
    "metadata no object": lambda header: header["__metadata__"].update({METADATA_KEY: "[]"}),
    "a later version": lambda header: own(header, version=2),
    "a prefix of nothing": lambda header: own(header, prefix=""),
    "another prefix": lambda header: own(header, prefix="__other__"),
    "a prefix that hides a tensor": lambda header: own(header, prefix="a"),
    "tied no map": lambda header: own(header, tied=[]),
    "a tied tensor less": lambda header: own(header, tied={}),
    "a tied tensor of another dtype": lambda header: own(header, tied=tied(dtype="I8")),
    "a tied tensor of another shape": lambda header: own(header, tied=tied(shape=[2, 2])),
    "a tied tensor elsewhere": lambda header: own(header, tied=tied(data_offsets=[0, 4])),
    "an owner called tied": lambda header: own(header, tied={**tied(), "a": header["a"]}),
}


@pytest.mark.parametrize("change", HEADER_LIES.values(), ids=HEADER_LIES.keys())
def test_a_header_that_disagrees_with_the_index_is_noticed(
    image: bytearray, change: Callable[[dict[str, Any]], None]
) -> None:
    check(rewritten(image, lambda header: None))
    with pytest.raises(ImageError):
        check(rewritten(image, change))


def test_a_tied_tensor_that_lies_on_nothing_is_noticed() -> None:
    image = image_of([tensor("a"), tensor("b"), SourceTensor("t", "U8", (4,), tied_to="b")])
    view = ImageView(memoryview(image))
    offset = view.layout.tensors["t"].offset + 1
    record = data_start(image) + HEADER.size + 2 * RECORD.size
    struct.pack_into("<Q", image, record + 8, offset)
    entry = {"t": {"dtype": "U8", "shape": [4], "data_offsets": [offset, offset + 4]}}
    with pytest.raises(ImageError, match="does not lie on the tensor it is tied to"):
        check(rewritten(image, lambda header: own(header, tied=entry)))


@pytest.mark.parametrize("damage", [b"", b"\0\0", b"\xff\xff\xff\xff", b"\4\0\0\0nope", b"\2\0\0\0[]", b"\2\0\0\0{}"])
def test_a_program_that_is_none_is_refused(damage: bytes) -> None:
    with pytest.raises(ImageError, match="program"):
        Program.decode(damage)


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    view = ImageView(memoryview(image_of([tensor("encoder.weight")])))
    with pytest.raises(TensorNotFoundError, match=r"no tensor 'encoder.weigth'; did you mean 'encoder.weight'"):
        view.tensor("encoder.weigth")


@given(st.binary(max_size=200))
def test_no_bytes_whatever_are_taken_for_an_image(data: bytes) -> None:
    assert not is_image(data)
    with pytest.raises(ImageError):
        ImageView(memoryview(data))


# -- bytes that come from files ------------------------------------------------------------------------------


def span_of(path: Path, n_bytes: int, offset: int = 0) -> SourceTensor:
    return SourceTensor("w", "U8", (n_bytes,), span=FileSpan(SourceFile.look(path), offset))


def test_spans_of_files_are_read_into_place_and_progress_is_told_in_total_bytes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 12345)
    path.write_bytes(b"skip" + data)
    plan = plan_image([span_of(path, len(data), 4), tensor("last")])
    memory, told = bytearray(plan.nbytes), []
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
