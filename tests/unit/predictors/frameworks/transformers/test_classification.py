"""Classes of texts, words and masked words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from trims.core.errors import CallerError, NotSupportedError


def texts(*values: str) -> np.ndarray[Any, Any]:
    return np.array([each.encode() for each in values], dtype=object)


def test_the_best_classes_of_a_text_are_a_table(load: Any) -> None:
    with load("BertForSequenceClassification", {"top_k": 2}) as predictor:
        found = predictor.predict({"text": texts("not good", "hello")})
        assert found["label"].shape == found["score"].shape == (2, 2)
        assert (found["score"][:, 0] >= found["score"][:, 1]).all()
        assert found["score"].dtype == np.float32


def test_a_pair_of_texts_is_classified_together(load: Any) -> None:
    with load("BertForSequenceClassification") as predictor:
        alone = predictor.predict({"text": texts("the cat")})
        pair = predictor.predict({"text": texts("the cat"), "text_pair": texts("some text")})
        assert alone["score"][0] != pair["score"][0]
        with pytest.raises(CallerError, match="text_pair"):
            predictor.predict({"text": texts("a", "b"), "text_pair": texts("c")})


# fault (folders): a text longer than the model takes -> `bad_request` with the limit, or cut with `truncation: true`
def test_a_longer_text_than_the_model_takes_is_refused_or_cut_as_the_manifest_says(load: Any) -> None:
    long = " ".join(["cat"] * 100)
    with load("BertForSequenceClassification") as predictor, pytest.raises(CallerError, match=r"102 tokens.*60"):
        predictor.predict({"text": texts("hello", long)})
    with load("BertForSequenceClassification", {"truncation": True}) as predictor:
        cut = predictor.predict({"text": texts(long)})
        whole = predictor.predict({"text": texts(" ".join(["cat"] * 58))})
        assert cut["score"] == pytest.approx(whole["score"])
    with load("BertForSequenceClassification", {"max_length": 5}) as predictor, pytest.raises(CallerError, match="5"):
        predictor.predict({"text": texts("the cat sat on the mat")})


def test_entities_of_texts_of_different_lengths_are_filled_up(load: Any) -> None:
    with load("BertForTokenClassification") as predictor:
        found = predictor.predict({"text": texts("the cat sat", "hello")})
        assert found["entity"].shape == found["word"].shape == found["start"].shape == (2, 3)
        assert found["word"][1].tolist() == [b"hello", b"", b""]
        assert found["start"][1].tolist() == [0, -1, -1]
        assert found["end"][0].tolist() == [3, 7, 11]
        kserve = predictor.predict_only({"text": texts("the cat sat")}, ["output-0"])["output-0"]
        assert kserve.shape == (1, 1, 5)


def test_words_of_an_entity_are_joined_if_the_manifest_says_so(load: Any) -> None:
    with load("BertForTokenClassification", {"aggregation_strategy": "simple"}) as predictor:
        rows = json.loads(predictor.predict_only({"text": texts("the cat sat")}, ["output"])["output"][0])
        assert all("entity_group" in each for each in rows)


def test_a_text_has_one_mask(load: Any) -> None:
    with load("BertForMaskedLM", {"top_k": 3}) as predictor:
        found = predictor.predict({"text": texts("the [MASK] sat", "a [MASK]")})
        assert found["token_str"].shape == (2, 3)
        assert found["token"].dtype == np.int64
        best = found["token_str"][0, 0].decode()
        assert found["sequence"][0, 0].decode() == f"the {best} sat"
        one = predictor.predict({"text": texts("the [MASK] sat")})
        assert one["token_str"].shape == (1, 3)
        assert predictor.predict_only({"text": texts("a [MASK]")}, ["output-0"])["output-0"].shape == (1,)
        for wrong in ("no mask", "[MASK] and [MASK]"):
            with pytest.raises(CallerError, match="masks"):
                predictor.predict({"text": texts(wrong)})


def test_a_masked_text_is_cut_as_the_manifest_says_with_its_mask_or_is_refused(load: Any) -> None:
    with load("BertForMaskedLM", {"truncation": True, "max_length": 8}) as predictor:
        cut = predictor.predict({"text": texts("the [MASK] sat " + "on the mat " * 100)})
        short = predictor.predict({"text": texts("the [MASK] sat on the mat")})
        assert cut["token"].tolist() == short["token"].tolist()
        with pytest.raises(CallerError, match=r"cut to 8 tokens, and its \[MASK\] comes later"):
            predictor.predict({"text": texts("on the mat " * 100 + "[MASK]")})


def test_more_words_for_a_mask_than_there_are_are_all_there_are(load: Any) -> None:
    with load("BertForMaskedLM", {"top_k": 100_000}) as predictor:
        found = predictor.predict({"text": texts("the [MASK] sat")})["token"]
    assert sorted(found[0].tolist()) == list(range(found.shape[1]))


def test_a_text_whose_words_have_classes_is_cut_at_the_manifests_length(load: Any) -> None:
    with load("BertForTokenClassification", {"truncation": True, "max_length": 8}) as predictor:
        assert predictor.predict({"text": texts("cat " * 200)})["word"].shape == (1, 6)


def test_labels_come_with_the_request(load: Any) -> None:
    task = "zero-shot-classification"
    with load("BertForSequenceClassification", task=task) as predictor:
        apart = predictor.predict({"text": texts("hello"), "candidate_labels": texts("cat", "city")})
        joined = predictor.predict({"array_inputs": texts("hello"), "candidate_labels": texts("cat, city")})
        assert apart["labels"].tolist() == joined["labels"].tolist()
        assert apart["scores"].sum() == pytest.approx(1)
        other = predictor.predict(
            {"text": texts("hello"), "candidate_labels": texts("cat", "city"), "hypothesis_template": texts("this {}")}
        )
        assert other["scores"].tolist() != apart["scores"].tolist()
        for labels in (texts(""), texts("cat", " ")):
            with pytest.raises(CallerError, match="candidate_labels"):
                predictor.predict({"text": texts("hello"), "candidate_labels": labels})
        with pytest.raises(CallerError, match="candidate_labels"):
            predictor.predict({"text": texts("hello")})


def test_a_hypothesis_template_has_one_place_for_a_label(load: Any) -> None:
    task, asked = "zero-shot-classification", {"text": texts("hello"), "candidate_labels": texts("cat", "{0}")}
    with load("BertForSequenceClassification", task=task) as predictor:
        assert predictor.predict({**asked, "hypothesis_template": texts("this {}")})["labels"].shape == (1, 2)
        wrong = ("", "this", "{} {}", "{0}", "{:>9999999999}", "{.__class__}", "{{}}", "{} {", "} {}", "{{}", "{} {x}")
        for template in wrong:
            with pytest.raises(CallerError, match="hypothesis_template"):
                predictor.predict({**asked, "hypothesis_template": texts(template)})
        with pytest.raises(CallerError, match="max_text_bytes"):
            predictor.predict({**asked, "hypothesis_template": texts("cat " * 300_000 + "{}")})
    options = {"hypothesis_template": "this {0}"}
    with (
        pytest.raises(NotSupportedError, match="hypothesis_template"),
        load("BertForSequenceClassification", options, task=task),
    ):
        pass
    same = {"hypothesis_template": "it is {}"}
    with load("BertForSequenceClassification", task=task) as predictor:
        brought = predictor.predict({**asked, "hypothesis_template": texts("it is {}")})
    with load("BertForSequenceClassification", same, task=task) as predictor:
        assert predictor.predict(asked)["scores"] == pytest.approx(brought["scores"])


def test_a_text_and_a_hypothesis_that_are_too_long_together_are_refused(load: Any) -> None:
    task, template, words = "zero-shot-classification", texts("{}"), ["cat"] * 100
    with load("BertForSequenceClassification", task=task) as predictor:
        for text, label in ((40, 20), (1, 70), (70, 1)):
            with pytest.raises(CallerError, match=rf"{text + label + 3} tokens, the model takes 60"):
                predictor.predict(
                    {
                        "text": texts("hello", " ".join(words[:text])),
                        "candidate_labels": texts("dog", " ".join(words[:label])),
                        "hypothesis_template": template,
                    }
                )
        most = {"text": texts(" ".join(words[:37])), "candidate_labels": texts(" ".join(words[:20]))}
        assert predictor.predict({**most, "hypothesis_template": template})["scores"].shape == (1, 1)


@pytest.mark.parametrize(("options", "most"), [({}, 60), ({"max_length": 30}, 30)])
def test_a_text_is_cut_beside_its_hypothesis_and_no_hypothesis_is(
    load: Any, options: dict[str, Any], most: int
) -> None:
    task, words = "zero-shot-classification", ["cat"] * 100
    with load("BertForSequenceClassification", {"truncation": True, **options}, task=task) as predictor:
        asked = {"hypothesis_template": texts("{}")}
        cut = predictor.predict({**asked, "text": texts(" ".join(words)), "candidate_labels": texts("dog", "city")})
        whole = {**asked, "text": texts(" ".join(words[: most - 4])), "candidate_labels": texts("dog", "city")}
        assert cut["scores"] == pytest.approx(predictor.predict(whole)["scores"])
        one_left = texts(" ".join(words[: most - 4]))
        assert predictor.predict({**asked, "text": texts("hello the"), "candidate_labels": one_left})["scores"].size
        for tokens in (most, most + 10):
            labels = texts("dog", " ".join(words[: tokens - 3]))
            with pytest.raises(CallerError, match=rf"{tokens} tokens, the model takes {most}"):
                predictor.predict({**asked, "text": texts("hello the"), "candidate_labels": labels})


def test_a_text_without_tokens_has_no_class(load: Any) -> None:
    with load("GPT2ForSequenceClassification") as predictor, pytest.raises(CallerError, match="no tokens"):
        predictor.predict({"text": texts("hello", "")})
