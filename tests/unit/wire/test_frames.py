"""Frames of the attach door: however the bytes are cut, the messages are the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trims.core.errors import BadMessageError
from trims.wire.frames import LENGTH, MAX_FRAME_BYTES, Decoder, encode

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
messages = st.lists(st.dictionaries(st.text(), values, max_size=5), max_size=6)


@settings(max_examples=200, deadline=None)
@given(messages, st.data())
def test_any_cut_of_the_bytes_gives_the_same_messages(sent: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder, got = Decoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got == sent
    assert not decoder.partial


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_messages_an_unfinished_frame_or_a_bad_message(noise: bytes) -> None:
    decoder = Decoder()
    try:
        got = decoder.feed(noise)
    except BadMessageError:
        return
    assert all(isinstance(message, dict) for message in got)


def test_a_frame_that_has_begun_is_known_as_such() -> None:
    decoder = Decoder()
    assert decoder.feed(encode({"a": 1})[:-1]) == []
    assert decoder.partial
    assert decoder.feed(b"}") == [{"a": 1}]
    assert not decoder.partial


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, (1 << 32) - 1])
def test_a_length_out_of_range_is_refused_before_anything_of_it_is_kept(length: int) -> None:
    with pytest.raises(BadMessageError, match=f"claims {length} bytes"):
        Decoder().feed(LENGTH.pack(length))
    with pytest.raises(BadMessageError, match=f"claims {length} bytes"):
        Decoder().feed(encode({}) + LENGTH.pack(length) + b"x")


def test_the_longest_frame_passes_and_a_byte_more_is_not_sent() -> None:
    room = MAX_FRAME_BYTES - len('{"a":""}')
    assert Decoder().feed(encode({"a": "x" * room})) == [{"a": "x" * room}]
    with pytest.raises(BadMessageError, match=f"{MAX_FRAME_BYTES + 1} bytes is too long"):
        encode({"a": "x" * (room + 1)})
