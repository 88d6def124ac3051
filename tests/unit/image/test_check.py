"""Whether an image keeps every rule of the format: header, index and program against each other."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from images import check, data_start, image_of, own, rewritten, tensor

from trims.core.errors import ImageError
from trims.image.header import METADATA_KEY
from trims.image.index import HEADER, RECORD
from trims.image.plan import SourceTensor
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_an_image_with_a_program_that_cannot_be_read_is_refused(image: bytearray) -> None:
    index = ImageView(memoryview(image)).index_header
    at = data_start(image) + index.program_offset
    check(image)
    image[at : at + 4] = b"\xff" * 4
    with pytest.raises(ImageError, match="the program's head claims"):
        check(image)
