"""Classes of pictures, and the text of spoken sound."""

from __future__ import annotations

import base64
import binascii
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import pipeline

from trims.core.errors import CallerError, NotSupportedError
from trims.image.transformers_models import said_of
from trims.manifests.task_options import check_options
from trims.manifests.tasks import IMAGES, SPEECH
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.requests import number, padded, strings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

_PICTURES = ("image", "inputs", "args", "array_inputs")
_SAMPLES = ("samples", "inputs", "args", "array_inputs", "audio")
#: Points of one picture: a larger one would take gigabytes.
_MOST_POINTS = 100_000_000


class ImageClassification:
    """Classes of each picture."""

    def __init__(self, parts: Parts) -> None:
        from transformers import AutoImageProcessor

        check_options(parts.options, IMAGES)
        processor = _processor(AutoImageProcessor, parts, "image processor", "preprocessor_config.json")
        self._labels = parts.module.config.label2id
        self._pipeline = pipeline(
            "image-classification", model=parts.module, image_processor=processor, device=parts.module.device
        )
        self._top_k = parts.options.get("top_k", 5)
        self._batch = parts.options.get("batch_size", 1)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the best classes of each picture."""
        pictures = pictures_of(*inputs.main(_PICTURES))
        inputs.check_all_read()
        found = list(self._pipeline(pictures, top_k=self._top_k, batch_size=self._batch)) if pictures else []
        return Answer(
            lambda: {
                "label": strings([[each["label"] for each in row] for row in found]),
                "score": padded([[each["score"] for each in row] for row in found], np.float32, 0),
            },
            lambda: found,
            lambda: np.array([self._labels[row[0]["label"]] for row in found], dtype=np.int64),
        )


def _processor(kind: Any, parts: Parts, what: str, file: str) -> Any:
    try:
        return kind.from_pretrained(parts.folder, trust_remote_code=parts.with_code, local_files_only=True)
    except Exception as error:
        first, *_ = said_of(error, parts.folder).split("\n")
        raise NotSupportedError(
            f"no {what} can be made of the model's folder ({type(error).__name__}: {first:.300}); put {file} there, or "
            "install what it needs"
        ) from error


def pictures_of(name: str, array: np.ndarray[Any, Any]) -> list[Image.Image]:
    """Return the pictures of an input: encoded ones (BYTES, or text in base64), or points.

    Points are UINT8 or FP32 from 0 to 255, of shape (height, width, 3) or with rows before. Raises CallerError.
    """
    if array.dtype.kind in "OSU":
        return [_decoded(name, each) for each in array.ravel()]
    from PIL import Image

    points = array[None] if array.ndim == 3 else array
    if points.ndim != 4 or points.shape[-1] != 3 or points.dtype.kind not in "uf":
        raise CallerError(
            f"the input {name!r} is {array.dtype} of shape {list(array.shape)}; give an encoded picture (BYTES), or "
            "points of shape [height, width, 3] from 0 to 255"
        )
    if points.size and (points.min() < 0 or points.max() > 255):
        raise CallerError(f"the input {name!r} has points that are not from 0 to 255")
    return [Image.fromarray(each.astype(np.uint8)) for each in points]


def _decoded(name: str, value: Any) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    content = value.encode() if isinstance(value, str) else bytes(value)
    if content.startswith(b"data:image/"):
        content = content.partition(b",")[2]
    for tried in (content, _unbased(content)):
        if tried is None:
            continue
        try:
            picture = Image.open(io.BytesIO(tried))
            if picture.width * picture.height > _MOST_POINTS:
                raise CallerError(
                    f"the input {name!r} has a picture of {picture.width} x {picture.height} points, too many"
                )
            return picture.convert("RGB")
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            continue
    raise CallerError(
        f"the input {name!r} has {len(content)} bytes that are no picture (JPEG, PNG, ...; paths are not read)"
    )


def _unbased(content: bytes) -> bytes | None:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return None


class SpeechRecognition:
    """Text of spoken sound."""

    def __init__(self, parts: Parts) -> None:
        from transformers import AutoFeatureExtractor

        check_options(parts.options, SPEECH)
        extractor = _processor(AutoFeatureExtractor, parts, "feature extractor", "preprocessor_config.json")
        self._rate = int(extractor.sampling_rate)
        self._pipeline = pipeline(
            "automatic-speech-recognition",
            model=parts.module,
            tokenizer=parts.tokenizer(),
            feature_extractor=extractor,
            device=parts.module.device,
        )

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the text of each row of samples."""
        name, samples = inputs.main(_SAMPLES, others=("sampling_rate",))
        rate = inputs.take("sampling_rate")
        inputs.check_all_read()
        if rate is not None and number("sampling_rate", rate) != self._rate:
            raise CallerError(
                f"sampling_rate is {number('sampling_rate', rate)}; the model hears {self._rate} a second"
            )
        rows = _rows_of(name, samples)
        if rows and self._is_too_short(len(rows[0])):
            raise CallerError(f"the input {name!r} has {len(rows[0])} samples; the sound is too short for the model")
        found = [self._pipeline(each)["text"] for each in rows]
        return Answer(
            lambda: {"text": strings(found)}, lambda: [{"text": each} for each in found], lambda: strings(found)
        )

    def _is_too_short(self, samples: int) -> bool:
        """Return whether the model's convolutions make nothing of so few samples."""
        count = getattr(self._pipeline.model, "_get_feat_extract_output_lengths", None)
        return count is not None and int(count(torch.tensor(samples))) < 1


def _rows_of(name: str, samples: np.ndarray[Any, Any]) -> Sequence[np.ndarray[Any, Any]]:
    if samples.dtype.kind != "f" or samples.ndim not in (1, 2):
        raise CallerError(
            f"the input {name!r} is {samples.dtype} of shape {list(samples.shape)}; give samples from -1 to 1 as FP32 "
            "of shape [length] or [rows, length]"
        )
    if not np.isfinite(samples).all():
        raise CallerError(f"the input {name!r} has samples that are no numbers")
    rows: np.ndarray[Any, Any] = np.atleast_2d(samples).astype(np.float32)
    if not rows.shape[1]:
        raise CallerError(f"the input {name!r} has no samples")
    return list(rows)
