"""Steps over numbers, against numpy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from making_steps import apply, elements, picture
from trims_predictors.transforms.base import RefusedError, apart

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def normal(shape: tuple[int, ...], dtype: str = "f4", seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("channels", ["last", "first"])
@pytest.mark.parametrize("batch", [False, True])
def test_each_channel_is_normalized_by_its_own_mean(channels: str, batch: bool) -> None:
    pixels = np.stack([picture(4, 5, seed=seed) for seed in range(2)])[slice(None) if batch else 0]
    expected = (pixels.astype("f8") / 255 - MEAN) / STD
    if channels == "first":
        pixels, expected = np.moveaxis(pixels, -1, -3), np.moveaxis(expected, -1, -3)
    found = apply("normalize", pixels, scale="1/255", mean=MEAN, std=STD, channels=channels)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_one_mean_holds_for_any_shape() -> None:
    values = normal((2, 3))
    np.testing.assert_allclose(apply("normalize", values, mean=0.5, std=2), (values - 0.5) / 2, rtol=1e-6)
    assert apply("normalize", np.float64(3.0)[...], scale=2).tolist() == 6.0
    assert np.array_equal(apply("normalize", values), values)


def test_images_that_lie_apart_are_normalized_each() -> None:
    images = apart([picture(2, 3), picture(4, 2)])
    found = apply("normalize", images, scale="1/255", mean=MEAN)
    for image, made in zip(images, found, strict=True):
        np.testing.assert_allclose(made, image / 255 - MEAN, rtol=1e-5, atol=1e-6)


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"\[2, 3, 4\], and the manifest gives 3 values .* are last"):
        apply("normalize", np.zeros((2, 3, 4)), mean=MEAN)
    with pytest.raises(RefusedError, match="are first, before height and width"):
        apply("normalize", np.zeros((3, 4)), mean=MEAN, channels="first")


@pytest.mark.parametrize(
    ("shape", "to", "goal"),
    [
        ((4, 5, 3), "CHW", (3, 4, 5)),
        ((2, 4, 5, 3), "CHW", (2, 3, 4, 5)),
        ((2, 4, 5, 3), "NCHW", (2, 3, 4, 5)),
        ((3, 4, 5), "HWC", (4, 5, 3)),
        ((2, 3, 4, 5), "NHWC", (2, 4, 5, 3)),
    ],
)
def test_channels_change_their_place(shape: tuple[int, ...], to: str, goal: tuple[int, ...]) -> None:
    values = normal(shape)
    found = apply("layout", values, to=to)
    assert found.shape == goal
    assert found.flags.c_contiguous
    back = apply("layout", found, to="HWC" if to.endswith("CHW") else "CHW")
    assert np.array_equal(back, values)
    if to == "CHW" and len(shape) == 3:
        assert found[2, 1, 4] == values[1, 4, 2]


def test_images_that_lie_apart_change_their_layout_each() -> None:
    images = apart([picture(2, 3), picture(4, 2)])
    assert [each.shape for each in apply("layout", images, to="CHW")] == [(3, 2, 3), (3, 4, 2)]
    with pytest.raises(RefusedError, match="which fit in no tensor"):
        apply("layout", images, to="NCHW")
    assert apply("layout", apart([picture(2, 3)] * 2), to="NCHW").shape == (2, 3, 2, 3)


@pytest.mark.parametrize(("shape", "to"), [((2, 3), "CHW"), ((4, 5, 3), "NCHW"), ((1, 1, 1, 1, 1), "HWC")])
def test_a_layout_that_a_shape_does_not_have_is_refused(shape: tuple[int, ...], to: str) -> None:
    with pytest.raises(RefusedError, match=f"which {to} does not name"):
        apply("layout", np.zeros(shape), to=to)


@pytest.mark.parametrize(
    ("dtype", "name"), [("FP16", "float16"), ("BF16", "bfloat16"), ("UINT8", "uint8"), ("BOOL", "bool")]
)
def test_a_type_is_cast(dtype: str, name: str) -> None:
    found = apply("cast", np.array([0, 1, 200]), dtype=dtype)
    assert found.dtype.name == name
    assert found.astype(int).tolist() == ([0, 1, 1] if dtype == "BOOL" else [0, 1, 200])


@pytest.mark.parametrize(
    ("values", "dtype"), [([300], "UINT8"), ([-1], "UINT64"), ([float("nan")], "INT32"), ([1e30], "INT64")]
)
def test_a_value_that_the_type_cannot_hold_is_refused(values: list[float], dtype: str) -> None:
    with pytest.raises(RefusedError, match=f"which {dtype} cannot hold"):
        apply("cast", np.array(values), dtype=dtype)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_is_e_to_the_power_over_their_sum(axis: int) -> None:
    values = normal((3, 4), "f8") * 5
    expected = np.exp(values) / np.exp(values).sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(apply("softmax", values, axis=axis), expected, rtol=1e-12)


def test_softmax_of_large_numbers_does_not_overflow() -> None:
    found = apply("softmax", np.array([1000.0, 1000.0, -1000.0], "f4"))
    assert found.dtype == np.float32
    assert found.tolist() == [0.5, 0.5, 0.0]
    assert apply("softmax", np.array([1, 1])).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["softmax", "l2_normalize", "argsort"])
def test_an_axis_that_is_not_there_is_refused(kind: str) -> None:
    for array in (np.zeros((2, 2)), np.zeros((2, 2, 0))):
        with pytest.raises(RefusedError, match="nothing along the axis 2"):
            apply(kind, array, axis=2)
    with pytest.raises(RefusedError, match="no numbers"):
        apply(kind, elements(b"a"))


def test_the_mean_is_over_the_vectors_that_the_mask_marks() -> None:
    hidden, mask = normal((3, 5, 4)), np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
    found = apply("mean_pool", hidden, mask)
    np.testing.assert_allclose(found[0], hidden[0].astype("f8").mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], hidden[1, :2].astype("f8").mean(axis=0), rtol=1e-5, atol=1e-6)
    assert not found[2].any()


@pytest.mark.parametrize(("shape", "mask"), [((3, 5), (3, 5)), ((3, 5, 4), (3, 4)), ((3, 5, 4), (3, 5, 1))])
def test_a_mask_that_does_not_fit_is_refused(shape: tuple[int, ...], mask: tuple[int, ...]) -> None:
    with pytest.raises(RefusedError, match="and its mask's"):
        apply("mean_pool", np.zeros(shape), np.ones(mask))


def test_vectors_get_the_length_one() -> None:
    values = normal((3, 4), "f8")
    found = apply("l2_normalize", values)
    np.testing.assert_allclose(found, values / np.linalg.norm(values, axis=-1, keepdims=True), rtol=1e-12)
    assert apply("l2_normalize", np.array([[3.0], [4.0]]), axis=0).ravel().tolist() == [0.6, 0.8]
    assert apply("l2_normalize", np.zeros(3, "f4")).tolist() == [0.0, 0.0, 0.0], "a vector without length stays"


@pytest.mark.parametrize(
    ("value", "given", "dtype"),
    [
        (2.0**63, "f8", "INT64"),
        (2.0**64, "f8", "UINT64"),
        (2.0**31, "f4", "INT32"),
        (2.0**32, "f4", "UINT32"),
        (2**63, "u8", "INT64"),
        (np.inf, "f8", "INT64"),
        (-np.inf, "f4", "UINT8"),
        (np.nan, "f2", "INT32"),
        (70_000, "f8", "FP16"),
        (-1e300, "f8", "FP32"),
        (1e300, "f8", "BF16"),
        (2**40, "i8", "FP16"),
    ],
)
def test_the_first_value_beyond_a_type_is_refused(value: float, given: str, dtype: str) -> None:
    for array in (np.array([0, value], given), np.array(value, given)):
        with pytest.raises(RefusedError, match=rf"which {dtype} cannot hold"):
            apply("cast", array, dtype=dtype)


def test_values_at_the_limits_of_a_type_are_cast() -> None:
    assert apply("cast", np.array([-(2.0**63), 2.0**62]), dtype="INT64").tolist() == [-(2**63), 2**62]
    assert apply("cast", np.array([2**64 - 1], "u8"), dtype="UINT64").tolist() == [2**64 - 1]
    assert apply("cast", np.array([65504.0, np.inf, -np.inf]), dtype="FP16").tolist() == [65504, np.inf, -np.inf]
    assert np.isnan(apply("cast", np.array([np.nan]), dtype="BF16").astype("f4")).all()


def test_integers_cut_fractions_towards_zero() -> None:
    assert apply("cast", np.array([-1.9, -0.5, 0.5, 1.9]), dtype="INT8").tolist() == [-1, 0, 0, 1]
