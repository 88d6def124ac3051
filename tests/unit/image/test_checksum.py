"""The checksum in an image: it is stated in the index's header, and any changed byte contradicts it."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from trims.image.checksum import stamp, stated, stated_sum
from trims.image.plan import SourceTensor, plan_image
from trims.image.reader import ImageView
from trims.memory.row_sums import checksum, part


def noise(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


def an_image() -> bytearray:
    def fill(place: memoryview) -> None:
        place[:] = noise(len(place))

    plan = plan_image([SourceTensor("a", "F32", (700,), fill), SourceTensor("b", "U8", (33,), fill)])
    made = bytearray(plan.nbytes)
    plan.write_into(memoryview(made))
    return made


def test_an_image_keeps_the_checksum_of_its_bytes_and_reads_as_before() -> None:
    made = an_image()
    before = ImageView(memoryview(bytes(made)))
    assert stated(before) is None
    found = stamp(memoryview(made))
    after = ImageView(memoryview(made))
    assert stated(after) == found == checksum(bytes(before._data))
    assert after.layout == before.layout
    assert part(made, 0) == stated_sum(after)
    assert stated_sum(before) is None


@given(st.data())
def test_a_changed_byte_of_an_image_contradicts_what_it_states(draw: st.DataObject) -> None:
    made = an_image()
    stamp(memoryview(made))
    head = ImageView(memoryview(bytes(made)))
    at = draw.draw(st.integers(head.data_start + 64, len(made) - 1))
    made[at] ^= draw.draw(st.integers(1, 255))
    assert part(made, 0) != stated_sum(head)
