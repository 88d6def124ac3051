"""Pictures and sound of requests."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trims_predictors.frameworks.transformers.media import pictures_of

from trims.core.errors import CallerError

POINTS = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)


def encoded(form: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(POINTS).save(content, form)
    return content.getvalue()


def elements(*values: bytes | str) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


@pytest.mark.parametrize(
    "array",
    [
        elements(encoded()),
        elements(base64.b64encode(encoded())),
        elements(base64.b64encode(encoded()).decode()),
        elements("data:image/png;base64," + base64.b64encode(encoded()).decode()),
        POINTS,
        POINTS[None],
        POINTS[None].astype(np.float32),
    ],
    ids=["encoded", "base64", "text", "data", "points", "rows", "floats"],
)
def test_a_picture_comes_in_each_form_that_clients_use(array: np.ndarray[Any, Any]) -> None:
    (found,) = pictures_of("image", array)
    assert np.array_equal(np.asarray(found), POINTS)


@pytest.mark.parametrize(
    "array",
    [
        elements(b"/etc/passwd"),
        elements("http://127.0.0.1/x.png"),
        elements(b""),
        elements(encoded()[:100]),
        POINTS[..., :1],
        POINTS.astype(np.float32) * 2,
        POINTS.astype(np.int64),
        np.zeros(3, np.uint8),
    ],
)
def test_what_is_no_picture_is_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(CallerError, match="image"):
        pictures_of("image", array)


def test_a_picture_of_too_many_points_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trims_predictors.frameworks.transformers.media._MOST_POINTS", 100)
    with pytest.raises(CallerError, match="40 x 40"):
        pictures_of("image", elements(encoded()))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sound_is_samples_of_the_rate_that_the_model_hears(load: Any) -> None:
    sound = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
    with load("Wav2Vec2ForCTC") as predictor:
        found = predictor.predict({"samples": sound})["text"]
        assert found.shape == (1,)
        assert predictor.predict({"samples": sound[None], "sampling_rate": np.array([16000])})["text"] == found
        for wrong in (
            {"samples": sound, "sampling_rate": np.array([8000])},
            {"samples": sound.astype(np.int64)},
            {"samples": np.zeros(0, np.float32)},
            {"samples": np.full(8000, np.nan, np.float32)},
            {"samples": np.zeros((1, 1, 8000), np.float32)},
            {"samples": sound, "language": elements(b"en")},
        ):
            with pytest.raises(CallerError):
                predictor.predict(wrong)


def test_a_picture_is_answered_by_its_best_classes(load: Any) -> None:
    with load("ViTForImageClassification", {"top_k": 2}) as predictor:
        found = predictor.predict({"inputs": elements(encoded(), encoded("BMP"))})
        assert found["label"].shape == found["score"].shape == (2, 2)
        assert found["score"][0].tolist() == pytest.approx(found["score"][1].tolist())
        assert predictor.predict({"image": np.zeros((0, 32, 32, 3), np.uint8)})["label"].shape[0] == 0
        assert predictor.rehearse({"image": np.zeros(3, np.float32)}) is None


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("kind", "least"), [("Wav2Vec2ForCTC", 45), ("HubertForCTC", 45), ("MoonshineForConditionalGeneration", None)]
)
def test_sound_that_is_too_short_is_refused(load: Any, kind: str, least: int | None) -> None:
    sound = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    with load(kind) as predictor:
        for few in (3, *([least - 1] if least else [])):
            with pytest.raises(CallerError, match=rf"{few} samples.*too short"):
                predictor.predict({"samples": sound[:few]})
        assert predictor.predict({"samples": sound[:least]})["text"].shape == (1,)
