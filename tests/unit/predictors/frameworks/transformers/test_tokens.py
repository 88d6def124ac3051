"""The tokenizer of a model, and the longest text that the model takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from trims_predictors.frameworks.transformers.answers import Parts
from trims_predictors.frameworks.transformers.media import ImageClassification
from trims_predictors.frameworks.transformers.tokens import LengthLimit

from trims.core.errors import CallerError, NotSupportedError
from trims.image.model_files import Described

if TYPE_CHECKING:
    from pathlib import Path


class Words:
    """A tokenizer of words and two special tokens."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.model_max_length = most
        self.counted: list[str] = []

    def num_special_tokens_to_add(self) -> int:
        return 2

    def __call__(self, *texts: str, **_: Any) -> dict[str, list[int]]:
        self.counted += texts
        return {"input_ids": [0] * (2 + sum(len(each.split()) for each in texts))}


def config(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("most", "fields", "options", "limit"),
    [
        (1 << 40, {}, {}, None),
        (512, {}, {}, 512),
        (1 << 40, {"max_position_embeddings": 64}, {}, 64),
        (512, {"max_position_embeddings": 64}, {}, 64),
        (512, {"n_positions": 32}, {}, 32),
        (512, {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}, {}, 512),
        (1 << 40, {"max_position_embeddings": -1}, {}, None),
        (512, {}, {"max_length": 8}, 8),
        (512, {}, {"max_length": 800}, 512),
    ],
)
def test_the_limit_is_the_least_that_is_stated(
    most: int, fields: dict[str, Any], options: dict[str, Any], limit: int | None
) -> None:
    assert LengthLimit(Words(most), config(**fields), options).tokens == limit


def test_a_short_text_is_not_counted_and_a_long_one_is() -> None:
    words = Words(10)
    limit = LengthLimit(words, config(), {})
    limit.check(["a b"])
    assert words.counted == []
    limit.check(["alphabetically sorted"])
    assert words.counted == ["alphabetically sorted"]
    with pytest.raises(CallerError, match="12 tokens"):
        limit.check(["a b c d e f g h i j"])
    with pytest.raises(CallerError, match="12 tokens"):
        limit.check(["a b c d e"], ["f g h i j"])


def test_texts_are_cut_if_that_is_said() -> None:
    limit = LengthLimit(Words(10), config(), {"truncation": True})
    limit.check(["a b c d e f g h i j"])
    assert limit.arguments() == {"truncation": True, "max_length": 10}
    assert LengthLimit(Words(10), config(), {}).arguments() == {}
    assert LengthLimit(Words(10), config(), {"truncation": False}, truncation=True).arguments() == {}
    with pytest.raises(CallerError, match="max_text_bytes"):
        LengthLimit(Words(10), config(), {"truncation": True, "max_text_bytes": 3}).check(["four"])


def test_a_file_that_the_library_cannot_read_is_named_without_its_temporary_folder(tmp_path: Path) -> None:
    files = {"config.json": b"{", "tokenizer.json": b"{}"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    parts = Parts(torch.nn.Identity(), Described("image-classification", files), str(tmp_path), {}, False)
    for make in (parts.tokenizer, lambda: ImageClassification(parts)):
        with pytest.raises(NotSupportedError, match=r"can be made of the model's folder \(\w+: ") as refused:
            make()
        assert str(tmp_path) not in str(refused.value)
