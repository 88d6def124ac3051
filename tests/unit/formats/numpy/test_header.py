"""Headers of numpy's arrays read without numpy: what numpy writes for numbers, and nothing else."""

from __future__ import annotations

import io
import os
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trims.core.errors import NotInPlaceError
from trims.formats.numpy.header import DTYPES, StoredArray, read_array

if TYPE_CHECKING:
    from pathlib import Path


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    target = io.BytesIO()
    np.lib.format.write_array(target, np.asanyarray(array), version=version)
    return target.getvalue()


def read(data: bytes, folder: Path, before: bytes = b"") -> StoredArray:
    path = folder / "a.npy"
    path.write_bytes(before + data + b"behind it")
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_array(fd, len(before), len(before) + len(data))
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 0, 5), (1,) * 32])
def test_an_array_of_numbers_is_found_where_it_lies(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.ones(shape, np.dtype(kind))
    found = read(saved(array), tmp_path, before=b"odd")
    assert (found.dtype, found.shape) == (DTYPES[kind], shape)
    behind = (tmp_path / "a.npy").read_bytes()[found.offset :]
    assert behind == array.tobytes() + b"behind it"


def test_a_header_of_version_2_is_read(tmp_path: Path) -> None:
    assert read(saved(np.arange(3), (2, 0)), tmp_path).shape == (3,)


def header(text: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + data


def of(descr: str = "<f4", shape: str = "(1,)", order: str = "False", data: bytes = bytes(4)) -> bytes:
    return header(f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n", data)


NOT_HERE = {
    "big endian": (saved(np.arange(3, dtype=">f4")), "big endian"),
    "column-major": (saved(np.ones((2, 3), order="F")), "column-major"),
    "complex128": (saved(np.ones(2, "c16")), "dtype c16 is none of an image"),
    "strings": (saved(np.array(["ab"])), "dtype U2"),
    "records": (saved(np.zeros(2, [("x", "f4")])), "not as numpy writes it"),
    "version 3": (saved(np.zeros(2, [("\N{GREEK SMALL LETTER ALPHA}", "f4")]), (3, 0)), "does not begin"),
    "too few bytes": (of(data=bytes(3)), "its 3 bytes are not those of an array of F32"),
    "too many bytes": (of(data=bytes(5)), "its 5 bytes are not those"),
    "more than fits": (of(shape="(999999999999999999, 999999999999999999)"), "its 4 bytes are not those"),
    "a number of many digits": (of(shape=f"({'9' * 30},)"), "no array has the shape"),
    "many dimensions": (of(shape=f"({'1, ' * 64}1)"), "no array has the shape"),
    "a negative extent": (of(shape="(-1,)"), "not as numpy writes it"),
    "a shape that is a number": (of(shape="(1)"), "not as numpy writes it"),
    "code": (header("__import__('os').abort()\n"), "not as numpy writes it"),
    "another order of keys": (header("{'shape': (1,), 'descr': '<f4', 'fortran_order': False, }\n"), "not as numpy"),
    "a header that ends behind the array": (of()[:40], "not as numpy writes it"),
    "a long header": (of(shape="(1,)" + " " * 5000), "not as numpy writes it"),
    "nothing": (b"", "does not begin"),
    "something else": (b"PK\3\4" + bytes(100), "does not begin"),
}


@pytest.mark.parametrize("what", NOT_HERE)
def test_what_only_numpy_can_read_is_left_to_it(what: str, tmp_path: Path) -> None:
    data, why = NOT_HERE[what]
    with pytest.raises(NotInPlaceError, match=why):
        read(data, tmp_path)


def test_random_damage_gives_an_array_inside_the_bytes_or_a_refusal(tmp_path: Path) -> None:
    good, chance, refused = saved(np.ones((3, 4), "f4")), random.Random(0), 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.choice([1, 3])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            found = read(bytes(data), tmp_path)
        except NotInPlaceError:
            refused += 1
        else:
            assert 0 < found.offset <= len(data)
    assert 100 < refused < 300
