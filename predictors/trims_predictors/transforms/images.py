"""Steps over images: decode, resize, crop. Pillow does the work; it is imported when a model with such steps loads."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import NotSupportedError
from trims_predictors.tracebacks import format_error
from trims_predictors.transforms.base import RefusedError, apart, images_of, like, on_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trims_predictors.transforms.base import Array, Operation

#: Formats that requests may bring. Pillow knows more; some of those start other programs, or are hardly ever tested.
from trims.process.packages import install_words

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_PLUGINS = ("JpegImagePlugin", "PngImagePlugin", "WebPImagePlugin", "GifImagePlugin", "BmpImagePlugin")
#: Modes of 8 bits a channel; others lose what they hold when they are converted.
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
#: Name that Pillow gives the bytes that it reads: of no use to a client.
_OBJECT = re.compile(r"\s*<[^<>]* object at 0x[0-9a-fA-F]+>")
#: Pixels of one resized image, at most: a picture of 1 x 1,000,000 pixels would fill the memory.
_MOST_PIXELS = 1 << 26


def pillow() -> Any:
    """The module `PIL.Image`, with what decodes the formats. Raises NotSupportedError if Pillow is not installed."""
    try:
        import importlib

        for plugin in _PLUGINS:
            importlib.import_module(f"PIL.{plugin}")
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise NotSupportedError(
            f"decode_image and resize need Pillow in the predictor's environment: {error}; "
            f"{install_words('trims[steps]')}"
        ) from error


def decode_image(fields: Mapping[str, Any], folder: str) -> Operation:
    """BYTES [] to an image [height, width, channels]; BYTES [n] to n images that lie apart."""
    del folder
    image = pillow()

    def work(array: Array) -> Array:
        if array.dtype != object or array.ndim > 1 or not all(isinstance(each, bytes) for each in array.ravel()):
            raise RefusedError("it must be BYTES of shape [] or [n], each element one encoded image")
        if not array.size:
            raise RefusedError("it has no images; bring at least one")
        found = [_decoded(image, each, index, fields) for index, each in enumerate(array.ravel())]
        return apart(found) if array.ndim else found[0]

    return on_one(work)


def _decoded(pil: Any, data: bytes, index: int, fields: Mapping[str, Any]) -> Array:
    try:
        with _without_limit(pil), pil.open(io.BytesIO(data), formats=FORMATS) as opened:
            return _pixels(opened, index, fields)
    except (RefusedError, MemoryError):
        raise
    except Exception as error:  # for broken bytes Pillow's plugins raise classes of all kinds
        reason = _OBJECT.sub("", format_error(error).partition(": ")[2])
        raise RefusedError(
            f"its element {index} cannot be decoded: {reason}; send one of {', '.join(FORMATS)}, whole"
        ) from error


@contextlib.contextmanager
def _without_limit(pil: Any) -> Iterator[None]:
    """Without Pillow's own bound of pixels: `max_pixels` is the bound, and is held before pixels are decoded.

    A predictor's own code keeps Pillow's bound, which is put back; it does not run meanwhile, unless in a thread.
    """
    bound = pil.MAX_IMAGE_PIXELS
    pil.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        pil.MAX_IMAGE_PIXELS = bound


def _pixels(opened: Any, index: int, fields: Mapping[str, Any]) -> Array:
    width, height = opened.size
    most = fields["max_pixels"]
    if width * height > most:
        raise RefusedError(
            f"its element {index} has {width} x {height} pixels; `max_pixels` of the manifest is {most}: send a "
            "smaller one"
        )
    if opened.mode not in _MODES:
        raise RefusedError(f"its element {index} has pixels of the mode {opened.mode!r}; send 8 bits a channel")
    image = opened
    if fields["upright"]:
        from PIL import ImageOps

        image = ImageOps.exif_transpose(image)
    if image.mode == "P":
        image = image.convert("RGBA")
    pixels: Array = np.array(image.convert("L" if fields["layout"] == "L" else "RGB"))
    if fields["layout"] == "L":
        return pixels[..., None]
    return np.ascontiguousarray(pixels[..., ::-1]) if fields["layout"] == "BGR" else pixels


def resize(fields: Mapping[str, Any], folder: str) -> Operation:
    """8-bit images to one size, or to a shorter side, by Pillow's filter with its antialiasing."""
    del folder
    pil = pillow()
    resample = {"bilinear": pil.Resampling.BILINEAR, "bicubic": pil.Resampling.BICUBIC}[fields["filter"]]

    def work(array: Array) -> Array:
        found = [_resized(pil, each, _goal(each, fields), resample) for each in images_of(array)]
        return apart(found) if array.dtype == object and not fields["size"] else like(array, found)

    return on_one(work)


def _goal(image: Array, fields: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width that an image shall have."""
    if fields["size"]:
        return fields["size"][0], fields["size"][1]
    height, width = image.shape[:2]
    if not height or not width:
        raise RefusedError(f"it has an image of the shape {list(image.shape)}, which has no pixels")
    short = fields["shorter_side"]
    goal = (short, int(short * width / height)) if height <= width else (int(short * height / width), short)
    if goal[0] * goal[1] > _MOST_PIXELS:
        raise RefusedError(
            f"it has an image of {height} x {width} pixels, which resized would have {goal[0]} x {goal[1]}; bring one "
            "that is less narrow"
        )
    return goal


def _resized(pil: Any, image: Array, goal: tuple[int, int], resample: Any) -> Array:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size:
        raise RefusedError(
            f"it has an image of {image.dtype} and the shape {list(image.shape)}; `resize` takes UINT8 and [height, "
            "width, 1 or 3], so it stands before `normalize`, `cast` and `layout`"
        )
    if image.shape[:2] == goal:
        return image
    one = pil.fromarray(image[..., 0] if image.shape[2] == 1 else np.ascontiguousarray(image))
    return np.array(one.resize((goal[1], goal[0]), resample)).reshape(*goal, image.shape[2])


def center_crop(fields: Mapping[str, Any], folder: str) -> Operation:
    """The middle of each image, which then all have one size."""
    del folder
    height, width = fields["size"]

    def work(array: Array) -> Array:
        return np.ascontiguousarray(like(array, [_cropped(each, height, width) for each in images_of(array)]))

    return on_one(work)


def _cropped(image: Array, height: int, width: int) -> Array:
    if image.shape[0] < height or image.shape[1] < width:
        raise RefusedError(
            f"it has an image of {image.shape[0]} x {image.shape[1]} pixels, less than {height} x {width}; the "
            "manifest needs `resize` before `center_crop`, or bring a larger image"
        )
    # An odd remainder is halved as Python rounds, to the even number: that is where torchvision cuts, too.
    top, left = round((image.shape[0] - height) / 2), round((image.shape[1] - width) / 2)
    return image[top : top + height, left : left + width]
