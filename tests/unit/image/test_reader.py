"""Reading an image from memory: nothing else is taken for one, and no truncation goes unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import check, data_start, image_of, tensor

from trims.core.errors import ImageError, TensorNotFoundError
from trims.image.index import LENGTH
from trims.image.reader import ImageView, is_image


def test_every_truncation_is_noticed(image: bytearray) -> None:
    for length in [*range(0, 80, 7), *range(80, len(image), 97), len(image) - 1]:
        with pytest.raises(ImageError):
            check(image[:length])


def test_every_byte_appended_is_noticed(image: bytearray) -> None:
    with pytest.raises(ImageError, match="truncated"):
        check(image + b"\0")


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    view = ImageView(memoryview(image_of([tensor("encoder.weight")])))
    with pytest.raises(TensorNotFoundError, match=r"no tensor 'encoder.weigth'; did you mean 'encoder.weight'"):
        view.tensor("encoder.weigth")


@given(st.binary(max_size=200))
def test_no_bytes_whatever_are_taken_for_an_image(data: bytes) -> None:
    assert not is_image(data)
    with pytest.raises(ImageError):
        ImageView(memoryview(data))


def test_a_tensor_is_read_without_copying(image: bytearray) -> None:
    view = ImageView(memoryview(image))
    found = view.tensor("a")
    image[view.data_start + view.spec("a").offset] = 99
    assert bytes(found) == b"\x63\2\3\4"


def test_attaching_and_reading_weights_parses_no_json(image: bytearray) -> None:
    image[LENGTH.size : data_start(image)] = b"x" * (data_start(image) - LENGTH.size)
    view = ImageView(memoryview(image))
    assert list(view.layout.tensors) == ["a", "b", "t"]
    assert view.nbytes == len(image)
    with pytest.raises(ImageError, match="image: the header is not JSON"):
        _ = view.metadata


def test_an_image_without_a_program_has_none() -> None:
    assert ImageView(memoryview(image_of([tensor("a")]))).program() is None


def test_a_name_like_no_other_is_answered_with_how_many_there_are(image: bytearray) -> None:
    with pytest.raises(TensorNotFoundError, match="no tensor 'zzzzzzzz'; it has 3 tensors"):
        ImageView(memoryview(image)).spec("zzzzzzzz")


@pytest.mark.parametrize("text", ["", "plain", 'a "quoted" \\ one', "line\nand \u20ac", '{"json": [1]}'])
def test_a_string_is_found_without_parsing_the_header(text: str) -> None:
    made = image_of([tensor('"key":"x"'), tensor("key")], metadata={"other": '"key":"no"', "key": text})
    view = ImageView(memoryview(made))
    assert view.string("key") == text
    assert view.string("other") == '"key":"no"'
    assert view.string("none") is None
    assert "header" not in vars(view)


def test_a_string_that_ends_too_early_is_an_image_error() -> None:
    made = image_of([tensor("w")], metadata={"key": "text"})
    at = made.index(b'"key":"text"') + len(b'"key":"text')
    made[at : data_start(made)] = b" " * (data_start(made) - at)
    with pytest.raises(ImageError, match="string 'key' of the header is not readable"):
        ImageView(memoryview(made)).string("key")
