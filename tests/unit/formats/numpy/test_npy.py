"""npy artifacts, and the files that are refused by name with the way out."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

from trims.core.errors import ArtifactError, NotInPlaceError, NotSupportedError
from trims.formats.base import Artifact
from trims.formats.conversion.conversion import detect
from trims.formats.numpy.npy import NpyConverter

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.plan import ImagePlan


def planned(path: Path) -> ImagePlan:
    return NpyConverter().plan(Artifact("npy", (path,), {}))


@pytest.mark.parametrize("array", [np.zeros((3, 0, 2), np.int16), np.float32(7.0), np.arange(6, dtype=np.uint8)])
def test_an_array_of_any_shape_becomes_one_tensor(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    (spec,) = planned(tmp_path / "a.npy").layout
    assert (spec.name, spec.shape) == ("arr_0", np.shape(array))


@pytest.mark.parametrize("array", [np.arange(12.0).reshape(3, 4), np.float32(7), np.zeros((0, 2), "i1"), np.arange(5)])
def test_an_array_in_place_is_that_of_a_conversion(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    (source,) = NpyConverter().contents(Artifact("npy", (tmp_path / "a.npy",), {})).sources
    (spec,) = planned(tmp_path / "a.npy").layout
    assert (source.name, source.dtype, source.shape) == (spec.name, spec.dtype, spec.shape)
    assert source.span is not None
    assert source.span.file.read(spec.nbytes + 1, source.span.offset) == np.asarray(array).tobytes()


def test_an_array_that_must_be_brought_into_order_is_converted(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3), order="F"))
    with pytest.raises(NotInPlaceError, match="column-major"):
        NpyConverter().contents(Artifact("npy", (tmp_path / "a.npy",), {}))


def test_what_an_image_cannot_hold_is_refused_with_the_way_out(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.zeros(3, np.complex128))
    with pytest.raises(ArtifactError, match=r"c\.npy has the dtype complex128, .*; save it as complex64"):
        planned(tmp_path / "c.npy")
    np.save(tmp_path / "o.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(ArtifactError, match="objects or records"):
        planned(tmp_path / "o.npy")


def test_a_file_that_is_cut_short_or_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(100))
    whole = path.read_bytes()
    for content in (whole[:-1], whole + b"\x00", whole[:50], whole[:7]):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"a\.npy"):
            planned(path)


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (b"GGUF\x03\x00\x00\x00", "a GGUF file.*safetensors"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file.*npz"),
        (pickle.dumps({"a": 1}), "a pickle that torch.save did not write.*safetensors"),
    ],
)
def test_a_foreign_format_is_refused_by_its_name(first_bytes: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(first_bytes + bytes(64))
    with pytest.raises(NotSupportedError, match=words):
        detect(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "too short"),
        (b"\xff" * 64, "header"),
        ((2).to_bytes(8, "little") + b"no", "JSON|header"),
        ((1 << 40).to_bytes(8, "little") + b"{", "header"),
    ],
    ids=["empty", "noise", "not JSON", "a header too large"],
)
def test_a_broken_safetensors_file_is_told_what_is_wrong_with_it(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    found = detect(path)
    assert found.format == "safetensors"
    with pytest.raises(ArtifactError, match=words) as caught:
        found.plan(Artifact("safetensors", (path,), {}))
    assert "converter" not in str(caught.value)
