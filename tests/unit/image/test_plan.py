"""Images are laid out and written: what goes in comes out, for trims and for any safetensors reader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import TENSORS, content, image_of, tensor

from trims.core.errors import ImageError
from trims.core.layout import DTYPE_BYTES, TENSOR_ALIGNMENT_BYTES, element_count
from trims.image.check import check_image
from trims.image.header import METADATA_KEY
from trims.image.index import HEADER
from trims.image.plan import DATA_ALIGNMENT_BYTES, SourceTensor, plan_image
from trims.image.program import Program
from trims.image.reader import ImageView, is_image

if TYPE_CHECKING:
    from pathlib import Path


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


def test_the_header_is_the_text_that_json_makes_of_it() -> None:
    names = ['ü"\\', "\n\x7f\u2028", "plain", "empty"]
    sources = [SourceTensor(name, "F32", shape) for name, shape in zip(names, [(3, 2), (), (5,), (0, 7)], strict=True)]
    head = plan_image(sources, metadata={"quoted": 'é"'}).head
    text = head[8:].rstrip().decode()
    assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    assert set(names) < set(json.loads(text))
