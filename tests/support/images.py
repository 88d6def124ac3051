"""Small images for tests of the format: described at random, written to memory, and damaged afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from trims.core.layout import DTYPES
from trims.image.check import check_image
from trims.image.header import METADATA_KEY
from trims.image.index import LENGTH
from trims.image.plan import SourceTensor, plan_image
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=12)


def content(number: int, n_bytes: int) -> bytes:
    """Bytes that differ by the number."""
    return bytes((number * 31 + position) % 2 for position in range(n_bytes))  # valid for bool as well


def put(data: bytes) -> Callable[[memoryview], None]:
    """Fills a tensor's place with these bytes."""

    def fill(place: memoryview) -> None:
        place[:] = data

    return fill


def image_of(sources: list[SourceTensor], **more: Any) -> bytearray:
    """The image of these tensors."""
    plan = plan_image(sources, **more)
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    return memory


def tensor(name: str, data: bytes = b"\1\2\3\4", dtype: str = "U8", shape: tuple[int, ...] = (4,)) -> SourceTensor:
    """A tensor of four bytes, unless said otherwise."""
    return SourceTensor(name, dtype, shape, fill=put(data))


def data_start(image: bytearray) -> int:
    """Return the offset at which the data block begins."""
    return LENGTH.size + int(LENGTH.unpack_from(image)[0])


def check(image: bytearray) -> None:
    """Raises ImageError if the image breaks a rule of the format."""
    view = ImageView(memoryview(image))
    check_image(view)


def rewritten(image: bytearray, change: Callable[[dict[str, Any]], None]) -> bytearray:
    """The image with its JSON header changed, of the same length."""
    start = data_start(image)
    header = json.loads(image[LENGTH.size : start])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode().ljust(start - LENGTH.size)
    return image[: LENGTH.size] + text + image[start:]


def own(header: dict[str, Any], **fields: Any) -> None:
    """Change fields of trims' own entry in the header."""
    header["__metadata__"][METADATA_KEY] = json.dumps({**json.loads(header["__metadata__"][METADATA_KEY]), **fields})
