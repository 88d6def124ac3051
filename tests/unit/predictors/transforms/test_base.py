"""Base of all steps: images of different sizes in one tensor, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from making_steps import elements, picture
from trims_predictors.transforms.base import RefusedError, apart, for_each, images_of, is_apart, like, numbers, together


def test_images_lie_apart_and_come_together_again() -> None:
    images = [picture(2, 3, seed=seed) for seed in range(2)]
    both = apart(images)
    assert (both.shape, both.dtype) == ((2,), np.dtype(object))
    assert is_apart(both)
    assert np.array_equal(together(both), np.stack(images))


def test_images_of_different_sizes_fit_in_no_tensor() -> None:
    with pytest.raises(RefusedError, match=r"shapes \[2, 3, 3\] and \[4, 3, 3\].*needs `resize` with `size`"):
        together(apart([picture(4, 3), picture(2, 3)]))


def test_text_and_numbers_are_not_images_apart() -> None:
    text = elements(b"a", b"b")
    assert not is_apart(text)
    assert together(text) is text
    assert not is_apart(np.zeros(2))


def test_text_is_refused_where_numbers_are_wanted() -> None:
    assert numbers(apart([picture(2, 3)])).shape == (1, 2, 3, 3)
    for text in (elements(b"a"), np.array(["a"]), np.array([b"a"])):
        with pytest.raises(RefusedError, match="no numbers"):
            numbers(text)


def test_work_is_done_on_a_tensor_or_on_each_image() -> None:
    assert for_each(np.ones(2), lambda array: array + 1).tolist() == [2.0, 2.0]
    found = for_each(apart([np.ones((1, 2, 3)), np.ones((2, 1, 3))]), lambda array: array + 1)
    assert [each.shape for each in found] == [(1, 2, 3), (2, 1, 3)]
    assert found[1].max() == 2.0


@pytest.mark.parametrize(("shape", "count"), [((2, 3, 1), 1), ((4, 2, 3, 1), 4)])
def test_one_image_and_a_batch_stay_what_they_are(shape: tuple[int, ...], count: int) -> None:
    array = np.zeros(shape)
    images = images_of(array)
    assert len(images) == count
    assert like(array, images).shape == shape


@pytest.mark.parametrize("array", [np.zeros((2, 3)), np.zeros((0, 2, 3, 1)), np.zeros(()), elements(b"a")])
def test_what_is_no_image_is_refused(array: Any) -> None:
    with pytest.raises(RefusedError, match=r"shape|no numbers"):
        images_of(array)
