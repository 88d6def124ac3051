"""The pickle of a checkpoint read without torch: what is hostile or broken is refused, and nothing of it is run.

What a whole one gives is compared with torch in `test_torch_zip.py`.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest

from trims.core.errors import NotInPlaceError
from trims.formats.torch.pickle import StoredTensor, read_pickle

PLAIN = {
    "none": None,
    "bools": [True, False],
    "numbers": [1, 300, -7, 1 << 40, -(1 << 80), 0.5],
    "text": "\u00e9",
    "pair": (1, "a"),
}


def test_plain_values_are_what_pickle_reads() -> None:
    assert read_pickle(pickle.dumps(PLAIN, protocol=2)) == PLAIN
    many = {f"key {number}": [number] * 3 for number in range(500)}
    assert read_pickle(pickle.dumps(many, protocol=2)) == many


class Harm:
    """Says what it ran."""

    def __reduce__(self) -> Any:
        return print, ("harm",)


def test_nothing_a_pickle_names_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotInPlaceError, match=r"names (builtins|__builtin__).print"):
        read_pickle(pickle.dumps(Harm(), protocol=2))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"\x80\x02", b"\x80\x02q\x00.", b"\x80\x02h\x05.", b"\x80\x02X\xff\xff\xff\xffa.", b"\x80\x02(",
        b"\x80\x02t.", b"\x80\x02\x86.", b"\x80\x02}K\x01s.", b"\x80\x02)K\x01K\x02s.", b"\x80\x02)K\x01a.",
        b"\x80\x02)R.", b"\x80\x02K\x01)R.", b"\x80\x02K\x01Q.", b"\x80\x02ccollections\nOrderedDict\n}R.",
        b"\x80\x02cos\nsystem\n.", b"\x80\x02K\x01K\x02b.", b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02}(K\x01u.", b"\x80\x02X\x01\x00\x00\x00\xff.", b"\x80\x02c\xff\n\n.",
    ],
)  # fmt: skip
def test_a_broken_pickle_is_left_to_a_conversion(data: bytes) -> None:
    with pytest.raises(NotInPlaceError):
        read_pickle(data)


FLOATS, UNTYPED = b"ctorch\nFloatStorage\n", b"ctorch.storage\nUntypedStorage\n"


def storage(kind: bytes = FLOATS) -> bytes:
    """Storage 0, of 48 bytes."""
    count = b"K\x0c" if kind is FLOATS else b"K\x30"
    return b"(" + _text("storage") + kind + _text("0") + _text("cpu") + count + b"tQ"


def tensor(stored: bytes, rest: bytes, version: int = 2) -> bytes:
    """A tensor of 12 elements; `rest` are its arguments behind requires_grad and hooks."""
    rebuild = b"ctorch._utils\n_rebuild_tensor_v%d\n(" % version
    return rebuild + stored + b"K\x00(K\x0ct(K\x01t\x89}" + rest + b"tR"


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def test_a_tensor_has_the_dtype_that_it_or_its_storage_tells() -> None:
    whole = StoredTensor("0", "F32", 0, (12,), 48, dense=True)
    assert read_pickle(b"\x80\x02" + tensor(storage(), b"") + b".") == whole
    assert read_pickle(b"\x80\x02" + tensor(storage(), b"N") + b".") == whole
    assert read_pickle(b"\x80\x02" + tensor(storage(UNTYPED), b"ctorch\nfloat32\n", 3) + b".") == whole


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (tensor(storage(), b"}" + _text("conj") + b"\x88s"), "marked .'conj'"),
        (tensor(storage(), b"}" + _text("newer") + b"Ns"), "marked .'newer'"),
        (tensor(storage(UNTYPED), b"}"), "no storage with a dtype"),
        (tensor(storage(UNTYPED), b"N"), "no storage with a dtype"),
        (tensor(storage(UNTYPED), b"N", 3), "no storage, or no dtype"),
        (tensor(storage(UNTYPED), b"ccollections\nOrderedDict\n", 3), "no storage, or no dtype"),
        (tensor(storage(UNTYPED), b"", 3), "IndexError"),
        (b"(" + tensor(storage(), b"") + tensor(storage(b"ctorch\nIntStorage\n"), b"") + b"t", "has two dtypes"),
    ],
)
def test_a_tensor_that_is_more_than_its_bytes_is_left_to_a_conversion(body: bytes, why: str) -> None:
    with pytest.raises(NotInPlaceError, match=why):
        read_pickle(b"\x80\x02" + body + b".")


def test_a_deep_pickle_does_no_harm() -> None:
    deep = b"\x80\x02" + b")" + b"\x85" * 200_000
    value = read_pickle(deep + b".")
    assert isinstance(value, tuple)
    with pytest.raises(NotInPlaceError, match="neither a string nor a number"):
        read_pickle(b"\x80\x02}" + deep[2:] + b"K\x01s.")


def test_a_far_place_in_the_memo_takes_no_memory() -> None:
    assert read_pickle(b"\x80\x02}r\xff\xff\xff\xff.") == {}
