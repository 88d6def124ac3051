"""Embeddings equal those of sentence-transformers, by each pooling and layer that a folder may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_models import loaded, named, save

from trims.core.errors import CallerError, NotSupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TEXTS = ["hello world this is some text", "the cat sat on the mat in paris", "not good", ""]


def texts(*values: str) -> np.ndarray[Any, Any]:
    return np.array([each.encode() for each in values], dtype=object)


def expected_of(folder: Path, given: Sequence[str] = TEXTS) -> Any:
    """Return the embeddings of sentence-transformers, which takes four seconds to import: not where tests are found."""
    import sentence_transformers

    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(given)


def layers() -> Any:
    from sentence_transformers.sentence_transformer import modules

    return modules


def folder_of(tmp_path: Path, *modules: Any, prompts: dict[str, str] | None = None, default: str | None = None) -> Path:
    """The folder that sentence-transformers saves of a tiny model with these modules behind it."""
    import sentence_transformers

    plain = save(named("BertModel"), tmp_path / "plain")
    transformer = layers().Transformer(str(plain), max_seq_length=12)
    made = sentence_transformers.SentenceTransformer(
        modules=[transformer, *modules], device="cpu", prompts=prompts, default_prompt_name=default
    )
    made.save(str(tmp_path / "saved"))
    return tmp_path / "saved"


def pooling(mode: Any) -> Any:
    return layers().Pooling(32, pooling_mode=mode)


@pytest.mark.parametrize(
    "mode",
    ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ("cls", "mean")],
    ids=str,
)
def test_embeddings_equal_those_of_sentence_transformers(tmp_path: Path, mode: Any) -> None:
    folder = folder_of(tmp_path, pooling(mode))
    expected = expected_of(folder)
    with loaded(folder) as predictor:
        found = predictor.predict({"text": texts(*TEXTS)})["embedding"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layers_behind_the_pooling_are_honoured(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling("mean"), layers().Dense(32, 16), layers().Normalize())
    expected = expected_of(folder)
    with loaded(folder) as predictor:
        found = predictor.predict({"text": texts(*TEXTS)})["embedding"]
        assert predictor.predict({"text": texts()})["embedding"].shape[0] == 0
    assert found.shape == (4, 16)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_default_prompt_comes_before_each_text(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling("mean"), prompts={"query": "the cat ", "passage": ""}, default="query")
    expected = expected_of(folder)
    with loaded(folder) as predictor:
        np.testing.assert_allclose(predictor.predict({"text": texts(*TEXTS)})["embedding"], expected, atol=1e-5)
    with pytest.raises(NotSupportedError, match="nothing"), loaded(folder, {"prompt": "nothing"}):
        pass


def test_longer_texts_are_cut_where_sentence_transformers_cuts_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling("mean"))
    long = " ".join(["cat dog"] * 40)
    expected = expected_of(folder, [long])
    with loaded(folder) as predictor:
        found = predictor.predict_only({"text": texts(long)}, ["embedding", "prompt_tokens"])
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-5)
    assert found["prompt_tokens"].tolist() == [12]


def test_many_texts_are_answered_in_their_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling("mean"))
    words = ["cat " * (1 + index % 7) for index in range(40)]
    with loaded(folder, {"batch_size": 8}) as predictor:
        together = predictor.predict({"text": texts(*words)})["embedding"]
        apart = np.concatenate([predictor.predict({"text": texts(each)})["embedding"] for each in words])
        np.testing.assert_allclose(together, apart, atol=1e-5)
        kserve = predictor.predict_only({"text": texts("cat")}, ["output-0"])["output-0"]
        assert kserve.dtype == np.float64


def test_the_manifest_may_say_another_pooling(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, pooling("mean"), layers().Normalize())
    with loaded(folder, {"pooling": "cls", "normalize": False}) as predictor:
        found = predictor.predict({"text": texts("the cat")})["embedding"]
        assert not np.isclose(np.linalg.norm(found), 1)
    for options in ({"pooling": "median"}, {"normalize": 3}):
        with pytest.raises(NotSupportedError), loaded(folder, options):
            pass


def test_the_features_of_a_shorter_text_end_in_zeros(load: Any) -> None:
    with load("BertModel") as predictor:
        found = predictor.predict({"text": texts("the cat sat", "hello")})["features"]
        assert found.shape == (2, 5, 32)
        assert not found[1, 3:].any()
        alone = predictor.predict({"text": texts("hello")})["features"]
        np.testing.assert_array_equal(found[1, :3], alone[0])


def test_a_text_without_tokens_has_no_features(load: Any) -> None:
    with load("GPT2Model") as predictor:
        with pytest.raises(CallerError, match="no tokens"):
            predictor.predict({"text": texts("hello", "")})
        assert predictor.predict({"text": texts("hello")})["features"].shape == (1, 1, 32)
    with load("BertModel") as predictor:
        assert predictor.predict({"text": texts("")})["features"].shape == (1, 2, 32)
