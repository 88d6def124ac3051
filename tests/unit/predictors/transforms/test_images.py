"""Steps over images, against Pillow called by hand and against slices of numpy."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from making_steps import apply, elements, encoded, operation, picture
from trims_predictors.transforms.base import RefusedError, apart

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'trims[steps]'")


def one(data: bytes, **fields: Any) -> Any:
    return apply("decode_image", np.array(data, dtype=object), **fields)


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_an_image_without_loss_is_decoded_to_its_pixels(form: str) -> None:
    pixels = picture(5, 7)
    found = one(encoded(pixels, form, **({"lossless": True} if form == "WEBP" else {})))
    assert (found.dtype, found.shape) == (np.uint8, (5, 7, 3))
    assert np.array_equal(found, pixels)
    assert found.flags.writeable, "frameworks warn of arrays that are not"


def test_a_jpeg_is_decoded_as_pillow_does() -> None:
    data = encoded(picture(9, 8), "JPEG")
    assert np.array_equal(one(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_channels_come_in_the_layout_that_the_manifest_states() -> None:
    pixels = picture(5, 7)
    data = encoded(pixels)
    bgr = one(data, layout="BGR")
    assert np.array_equal(bgr, pixels[..., ::-1])
    assert bgr.flags.c_contiguous
    grey = one(data, layout="L")
    assert grey.shape == (5, 7, 1)
    assert np.array_equal(grey[..., 0], np.asarray(Image.fromarray(pixels).convert("L")))


def test_other_kinds_of_pixels_become_rgb() -> None:
    grey = picture(3, 4, 1)
    assert np.array_equal(one(encoded(grey)), np.repeat(grey, 3, axis=-1))
    clear = np.concatenate([picture(3, 4), np.full((3, 4, 1), 9, np.uint8)], axis=-1)
    assert np.array_equal(one(encoded(clear)), clear[..., :3]), "transparency is dropped"
    out = io.BytesIO()
    Image.fromarray(picture(3, 4)).quantize(8).save(out, "PNG", transparency=bytes(8))
    assert one(out.getvalue()).shape == (3, 4, 3)


def test_a_batch_of_images_lies_apart() -> None:
    images = [picture(3, 4), picture(5, 2, seed=1)]
    found = apply("decode_image", elements(*map(encoded, images)))
    assert (found.dtype, found.shape) == (np.dtype(object), (2,))
    assert all(np.array_equal(each, image) for each, image in zip(found, images, strict=True))


def test_an_image_is_turned_upright_if_the_manifest_says_so() -> None:
    pixels = picture(3, 4)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rows are columns
    data = encoded(pixels, "PNG", exif=exif)
    assert one(data).shape == (3, 4, 3)
    assert np.array_equal(one(data, upright=True), np.rot90(pixels, -1))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (elements(b"no image"), r"element 0 cannot be decoded.*send one of JPEG, PNG, WEBP, GIF, BMP, whole"),
        (elements(b""), "element 0 cannot be decoded"),
        (elements(), "it has no images; bring at least one"),
        (np.zeros((2, 2), np.uint8), r"it must be BYTES of shape \[\] or \[n\]"),
        (elements(b"a").reshape(1, 1), r"it must be BYTES of shape \[\] or \[n\]"),
    ],
)
def test_what_is_no_image_is_refused(array: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        apply("decode_image", array)


def test_half_an_image_is_refused_with_its_place() -> None:
    whole = encoded(picture(50, 50))
    with pytest.raises(RefusedError, match="element 1 cannot be decoded"):
        apply("decode_image", elements(whole, whole[: len(whole) // 2]))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_damaged_bytes_are_decoded_or_refused_and_nothing_else(form: str) -> None:
    whole, random = encoded(picture(12, 12), form), np.random.default_rng(5)
    for _ in range(150):
        damaged = np.frombuffer(whole, np.uint8).copy()
        damaged[random.integers(0, len(damaged), 4)] = random.integers(0, 256, 4)
        try:
            assert one(damaged.tobytes(), max_pixels=10_000).ndim == 3
        except RefusedError:
            continue


def test_a_format_that_pillow_knows_and_requests_may_not_bring_is_refused() -> None:
    with pytest.raises(RefusedError, match="cannot be decoded"):
        one(encoded(picture(3, 4), "TIFF"))


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(RefusedError, match="4 x 3 pixels; `max_pixels` of the manifest is 11: send a smaller"):
        one(encoded(picture(3, 4)), max_pixels=11)


def test_the_manifest_s_bound_of_pixels_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)  # Pillow refuses twice as many
    pixels = picture(3, 4)
    assert np.array_equal(one(encoded(pixels), max_pixels=12), pixels)
    with pytest.raises(RefusedError, match="4 x 3 pixels; `max_pixels` of the manifest is 11"):
        one(encoded(pixels), max_pixels=11)
    assert Image.MAX_IMAGE_PIXELS == 5, "a predictor's own code keeps Pillow's bound"


def test_what_pillow_calls_the_bytes_is_left_out() -> None:
    with pytest.raises(RefusedError, match="cannot be decoded: cannot identify image file; send one of") as refused:
        one(b"no image")
    assert "0x" not in str(refused.value)


def test_an_image_of_16_bits_is_refused() -> None:
    out = io.BytesIO()
    Image.fromarray(np.full((3, 4), 40_000, np.uint16)).save(out, "PNG")
    with pytest.raises(RefusedError, match="send 8 bits a channel"):
        one(out.getvalue())


def test_without_pillow_the_step_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    for make in (lambda: operation("decode_image"), lambda: operation("resize", size=3)):
        with pytest.raises(NotSupportedError, match=r"need Pillow .*pip install .*\[steps\]'"):
            make()


def by_pillow(pixels: Any, width: int, height: int, resample: str = "BILINEAR") -> Any:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling[resample]))


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
def test_an_image_gets_the_stated_size_by_pillow_s_filter(name: str) -> None:
    pixels = picture(31, 17)
    found = apply("resize", pixels, size=[8, 11], filter=name)
    assert np.array_equal(found, by_pillow(pixels, 11, 8, name.upper()))


@pytest.mark.parametrize(("height", "width", "goal"), [(30, 20, (12, 8)), (20, 33, (8, 13)), (9, 9, (8, 8))])
def test_the_shorter_side_gets_a_length_and_the_shape_stays(height: int, width: int, goal: tuple[int, int]) -> None:
    pixels = picture(height, width)
    found = apply("resize", pixels, shorter_side=8)
    assert found.shape[:2] == goal
    assert np.array_equal(found, by_pillow(pixels, goal[1], goal[0]))


def test_a_grey_image_keeps_its_channel() -> None:
    assert apply("resize", picture(6, 4, 1), size=3).shape == (3, 3, 1)


def test_a_batch_is_resized_image_by_image() -> None:
    images = [picture(6, 4, seed=seed) for seed in range(3)]
    found = apply("resize", np.stack(images), size=5)
    assert np.array_equal(found, np.stack([by_pillow(each, 5, 5) for each in images]))


def test_images_apart_come_together_once_they_have_one_size() -> None:
    images = apart([picture(6, 4), picture(5, 9)])
    assert apply("resize", images, size=5).shape == (2, 5, 5, 3)
    shorter = apply("resize", images, shorter_side=4)
    assert [each.shape for each in shorter] == [(6, 4, 3), (4, 7, 3)]
    assert apply("center_crop", shorter, size=4).shape == (2, 4, 4, 3)


@pytest.mark.parametrize(
    ("array", "fields", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), {"size": 2}, "float32.*stands before `normalize`"),
        (np.zeros((3, 4, 4), np.uint8), {"size": 2}, r"the shape \[3, 4, 4\].*before .*`layout`"),
        (np.zeros((0, 4, 3), np.uint8), {"shorter_side": 2}, "no pixels"),
        (np.zeros((1, 1_000_000, 3), np.uint8), {"shorter_side": 256}, "less narrow"),
        (np.zeros((4, 4), np.uint8), {"size": 2}, r"\[height, width, channels\]"),
    ],
)
def test_what_cannot_be_resized_is_refused(array: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        apply("resize", array, **fields)


@pytest.mark.parametrize(("size", "cut"), [(4, np.s_[1:5, 2:6]), ([6, 8], np.s_[:, :]), ([3, 2], np.s_[2:5, 3:5])])
def test_the_middle_is_cut_out(size: Any, cut: Any) -> None:
    pixels = picture(6, 8)
    found = apply("center_crop", pixels, size=size)
    assert np.array_equal(found, pixels[cut])
    assert np.array_equal(apply("center_crop", np.stack([pixels] * 2), size=size)[1], pixels[cut])


def test_an_image_smaller_than_the_crop_is_refused() -> None:
    with pytest.raises(RefusedError, match="6 x 8 pixels, less than 7 x 7; the manifest needs `resize`"):
        apply("center_crop", picture(6, 8), size=7)


@pytest.mark.parametrize("make", [lambda: encoded(picture(3, 4), "GIF"), lambda: encoded(picture(3, 4), "BMP")])
def test_the_plugins_that_decode_are_imported_when_the_step_is_made(make: Callable[[], bytes]) -> None:
    assert one(make()).shape == (3, 4, 3)
