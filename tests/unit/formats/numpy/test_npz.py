"""npz archives: what numpy writes comes out, what lies or wants pickle does not."""

# fault (in place): a damaged or hostile checkpoint or archive

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from damages import refusals_of_random_damage
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from in_place_files import weights_of
from trims_client.weights import Weights, numpy_dtype

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.formats.base import Artifact
from trims.formats.numpy.npz import NpzConverter
from trims.image.check import check_image
from trims.image.in_place import plan_in_place
from trims.image.plan import plan_image
from trims.image.reader import ImageView
from trims.testing.converters import artifact_at, convert

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from trims.image.plan import Contents

CONVERTER = NpzConverter()
DTYPES = ["?", "u1", "i1", "<u2", ">i2", "<f2", ">f4", "<f8", "<c8", ">c8", "<i8", ">u8"]


def converted(path: Path) -> dict[str, NDArray[Any]]:
    """Through plan and write, in this process: the child has tests of its own."""
    plan = CONVERTER.plan(Artifact("npz", CONVERTER.files(path, {})))
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    view = ImageView(memoryview(memory))
    check_image(view)
    return {
        spec.name: np.frombuffer(view.tensor(spec.name), numpy_dtype(spec.dtype)).reshape(spec.shape)
        for spec in view.layout
    }


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    compressed=st.booleans(),
    kinds=st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(DTYPES), max_size=4),
)
def test_arrays_of_any_order_come_out_row_major_and_little_endian(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, compressed: bool, kinds: dict[str, str]
) -> None:
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    arrays = {name: data.draw(hnp.arrays(np.dtype(kind), shapes)) for name, kind in kinds.items()}
    arrays = {n: np.asfortranarray(a) if number % 2 else a for number, (n, a) in enumerate(arrays.items())}
    path = tmp_path_factory.mktemp("npz") / "m.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    found = converted(path)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype.newbyteorder("<")
        assert np.array_equal(found[name], array, equal_nan=array.dtype.kind in "fc")


def test_an_array_larger_than_a_chunk_is_whole(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, 20_000_001, dtype="u1")
    np.savez_compressed(tmp_path / "m.npz", a=array)
    assert np.array_equal(converted(tmp_path / "m.npz")["a"], array)


def test_it_is_converted_in_a_child(tmp_path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    np.savez(tmp_path / "m.npz", a=array)
    assert CONVERTER.needs_child({})
    with Weights.map_file(convert(artifact_at(tmp_path / "m.npz"), tmp_path / "image")) as weights:
        assert np.array_equal(weights["a"], array)


def test_an_archive_with_a_member_twice_is_refused_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", described("'<f4'", "(1,)", bytes(4)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", described("'<f4'", "(1,)", bytes(4)))
    with pytest.raises(ArtifactError, match=f"{path}: tensor 'a' is described twice; publish the file again"):
        convert(artifact_at(path), tmp_path / "image")


def member(name: str, data: bytes, **more: Any) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", **more) as archive:
        archive.writestr(name, data)
    return target.getvalue()


def npy(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header.encode() + data


def described(descr: str, shape: str, data: bytes = b"", fortran: str = "False") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n", data)


def pickled() -> bytes:
    target = io.BytesIO()
    np.savez(target, a=np.array([{}], dtype=object))
    return target.getvalue()


HOSTILE = {
    "an object array": (pickled(), "objects or records"),
    "a record array": (member("a.npy", described("[('x', '<f4')]", "(1,)", bytes(4))), "objects or records"),
    "strings": (member("a.npy", described("'<U2'", "(1,)", bytes(8))), "has the dtype <U2"),
    "long doubles": (member("a.npy", described("'<f16'", "(1,)", bytes(16))), "has the dtype"),
    "more elements than bytes": (member("a.npy", described("'<f4'", "(1000000000000,)", bytes(4))), "has 4 bytes"),
    "fewer elements than bytes": (member("a.npy", described("'<f4'", "(1,)", bytes(8))), "has 8 bytes"),
    "a negative extent": (member("a.npy", described("'<f4'", "(-1, -1)", bytes(4))), "impossible shape"),
    "a bool as extent": (member("a.npy", described("'<f4'", "(True,)", bytes(4))), "impossible shape|not valid"),
    "a header that is code": (member("a.npy", npy("__import__('os').abort()\n")), "ValueError"),
    "a call in its shape": (member("a.npy", described("'<f4'", "(abs(1),)", bytes(4))), "has code in it, not the"),
    "version 3": (member("a.npy", npy("{}", version=b"\x03\x00")), "npy version"),
    "no magic": (member("a.npy", b"what"), "ValueError"),
    "a member that is no array": (member("readme.txt", b"hi"), "is no array"),
    "no zip": (b"PK\x03\x04" + bytes(100), "BadZipFile"),
    "an encrypted member": (
        member("a.npy", npy("x")).replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"), "encrypted"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_an_archive_is_refused_that_has(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.npz"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=words) as caught:
        converted(path)
    assert "m.npz" in str(caught.value)


def test_a_member_that_claims_to_be_larger_than_deflate_can_make_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    data = bytearray(
        member("a.npy", described("'|u1'", "(3000000000,)", bytes(1000)), compression=zipfile.ZIP_DEFLATED)
    )
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (3_000_000_000).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="claims to unpack"):
        converted(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_is_noticed_by_the_archives_own_checksum(tmp_path: Path, compression: int) -> None:
    body = np.random.default_rng(0).bytes(100_000)
    data = bytearray(member("a.npy", described("'|u1'", "(100000,)", body), compression=compression))
    data[50_000] ^= 1
    path = tmp_path / "m.npz"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=r"m\.npz"):
        converted(path)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    data = member("a.npy", described("'|u1'", "(1000,)", bytes(1000)))
    path = tmp_path / "m.npz"
    for length in (0, 3, 30, 500, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            converted(path)


# -- in place ----------------------------------------------------------------------------------------------------------


def contents(path: Path) -> Contents:
    return CONVERTER.contents(Artifact("npz", CONVERTER.files(path, {})))


def test_arrays_in_place_are_those_of_a_conversion(tmp_path: Path) -> None:
    path, random = tmp_path / "m.npz", np.random.default_rng(0)
    arrays = {name: random.integers(0, 2, (3, 5)).astype(name) for name in DTYPES if not name.startswith(">")}
    np.savez(path, scalar=np.float32(7), none=np.zeros((2, 0)), **{"a/b.npy": np.arange(9)}, **arrays)
    wanted = converted(path)
    with weights_of(contents(path), tmp_path) as weights:
        assert list(weights) == list(wanted)
        for name, array in wanted.items():
            found = weights[name]
            assert (found.dtype, found.shape, found.flags.aligned) == (array.dtype, array.shape, True)
            np.testing.assert_array_equal(found, array)
        assert weights.copied_bytes > 0


@pytest.mark.parametrize(
    ("array", "compressed", "why"),
    [
        (np.arange(6.0), True, r"member 'a\.npy' is packed"),
        (np.arange(6, dtype=">f4"), False, r"member 'a\.npy': its numbers are big endian"),
        (np.ones((2, 3), order="F"), False, r"member 'a\.npy': its order is column-major"),
        (np.array([{}], dtype=object), False, r"member 'a\.npy': .*dtype O|not as numpy writes it for numbers"),
        (np.arange(3, dtype="c16"), False, r"member 'a\.npy': its dtype c16 is none of an image"),
    ],
    ids=["compressed", "big endian", "column-major", "objects", "complex128"],
)
def test_an_archive_is_left_to_a_conversion_for(array: Any, compressed: bool, why: str, tmp_path: Path) -> None:
    (np.savez_compressed if compressed else np.savez)(tmp_path / "m.npz", a=array)
    with pytest.raises(NotInPlaceError, match=why):
        contents(tmp_path / "m.npz")


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_conversion_refuses_is_not_served_in_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    path.write_bytes(HOSTILE[name][0])
    with pytest.raises(NotInPlaceError):
        contents(path)


def test_random_damage_gives_arrays_inside_the_file_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, **{f"layer.{number}": np.ones((3, 4), "f4") for number in range(8)})
    assert 100 < refusals_of_random_damage(path, lambda: plan_in_place(contents(path))) < 400


def test_an_empty_archive_is_an_empty_image(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz")
    assert converted(tmp_path / "m.npz") == {}
    assert plan_image([]).layout.tensors == {}
