"""Classes of texts, of their words, of a masked word, and of a text against labels of the request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import pipeline

from trims.core.errors import CallerError
from trims.manifests.sentence_modules import function_to_apply
from trims.manifests.task_options import TEMPLATE, check_options, is_template
from trims_predictors.frameworks.transformers.answers import Answer
from trims_predictors.frameworks.transformers.requests import padded, strings, texts_of
from trims_predictors.frameworks.transformers.tokens import LengthLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_predictors.api import Arrays
    from trims_predictors.frameworks.transformers.answers import Parts
    from trims_predictors.frameworks.transformers.requests import Inputs

#: Words for a mask where the manifest states no number.
_WORDS = 5
#: Hypothesis of transformers' pipeline where neither request nor manifest states one.
_TEMPLATE = "This example is {}."


class _TextPipeline:
    """A pipeline of transformers over the module."""

    task = ""
    options: tuple[str, ...] = ()

    def __init__(self, parts: Parts) -> None:
        check_options(parts.options, self.task)
        self.tokenizer = parts.tokenizer()
        self.module = parts.module
        self.limit = LengthLimit(self.tokenizer, parts.module.config, parts.options)
        if self.limit.tokens is not None:
            # Some pipelines cut texts at this length, which the manifest or the model may set lower.
            self.tokenizer.model_max_length = self.limit.tokens
        given = {
            **self.defaults(parts),
            **{name: parts.options[name] for name in self.options if name in parts.options},
        }
        self._batch = parts.options.get("batch_size", 1)
        self.pipeline = pipeline(
            self.task, model=parts.module, tokenizer=self.tokenizer, device=parts.module.device, **given
        )

    def defaults(self, parts: Parts) -> dict[str, Any]:
        """Return the pipeline's settings that the folder states."""
        del parts
        return {}

    def run(self, rows: Sequence[Any], **options: Any) -> list[Any]:
        """Return the pipeline's answer for each row, which are none for none."""
        if not rows:
            return []
        try:
            return list(self.pipeline(list(rows), batch_size=self._batch, **options))
        except ValueError as error:
            raise CallerError(str(error)) from error


class TextClassification(_TextPipeline):
    """Class of each text, or of each pair of texts (input `text_pair`)."""

    task = "text-classification"
    options = ("top_k", "function_to_apply")

    def defaults(self, parts: Parts) -> dict[str, Any]:
        """Return what a CrossEncoder makes scores of its logits with, if the model is one."""
        config = json.loads(parts.described.files["config.json"])
        applied = function_to_apply(config, parts.described.files, "the model's folder")
        return {} if applied is None else {"function_to_apply": applied}

    def __call__(self, inputs: Inputs) -> Answer:
        """Return label and score of each text, or of its best `top_k` classes."""
        texts = inputs.texts(others=("text_pair",))
        pairs = inputs.take("text_pair")
        inputs.check_all_read()
        rows: list[Any] = texts
        if pairs is not None:
            seconds = texts_of("text_pair", pairs)
            if len(seconds) != len(texts):
                raise CallerError(f"the request brings {len(texts)} texts and {len(seconds)} in text_pair")
            rows = [{"text": first, "text_pair": second} for first, second in zip(texts, seconds, strict=True)]
            self.limit.check(texts, seconds)
        else:
            self.limit.check(texts)
        found = self.run(rows, **self.limit.arguments())
        return Answer(lambda: _labels(found), lambda: found, lambda: self._classes(found))

    def _classes(self, found: Sequence[Any]) -> np.ndarray[Any, Any]:
        best = [each[0] if isinstance(each, list) else each for each in found]
        return np.array([self.module.config.label2id[each["label"]] for each in best], dtype=np.int64)


def _labels(found: Sequence[Any]) -> Arrays:
    """Return labels and scores of classes, in two dimensions if each row has several."""
    if found and isinstance(found[0], list):
        labels = strings([[each["label"] for each in row] for row in found])
        return {
            "label": labels,
            "score": np.array([[each["score"] for each in row] for row in found], dtype=np.float32),
        }
    scores = np.array([each["score"] for each in found], dtype=np.float32)
    return {"label": strings([each["label"] for each in found]), "score": scores}


class TokenClassification(_TextPipeline):
    """Classes of the words of each text."""

    task = "token-classification"
    options = ("aggregation_strategy",)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the entities of each text; shorter lists of a request are filled up with empty labels and -1."""
        texts = inputs.texts()
        inputs.check_all_read()
        self.limit.check(texts)
        found = self.run(texts)
        return Answer(lambda: _entities(found), lambda: found, lambda: self._classes(texts))

    def _classes(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the class of each token, with a dimension of one as KServe's runtime has it."""
        if not texts:
            return np.zeros((0, 1, 0), dtype=np.int64)
        tokens = self.tokenizer(list(texts), return_tensors="pt", padding=True, **self.limit.arguments())
        found = self.module(**tokens.to(self.module.device)).logits.argmax(-1)
        classes: np.ndarray[Any, Any] = found.cpu().numpy()[:, None, :]
        return classes


def _entities(found: Sequence[Any]) -> Arrays:
    labels = [[str(each.get("entity", each.get("entity_group"))) for each in row] for row in found]
    return {
        "entity": _table(labels),
        "score": padded([[float(each["score"]) for each in row] for row in found], np.float32, -1),
        "word": _table([[str(each["word"]) for each in row] for row in found]),
        "start": padded([[_offset(each["start"]) for each in row] for row in found], np.int64, -1),
        "end": padded([[_offset(each["end"]) for each in row] for row in found], np.int64, -1),
    }


def _offset(value: int | None) -> int:
    return -1 if value is None else int(value)


def _table(rows: list[list[str]]) -> np.ndarray[Any, Any]:
    """Return a BYTES tensor of two dimensions, also of none and of empty rows."""
    return padded([[each.encode() for each in row] for row in rows], object, b"")


class ZeroShotClassification(_TextPipeline):
    """Scores of labels that the request brings."""

    task = "zero-shot-classification"
    options = ("hypothesis_template", "multi_label")

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._template = parts.options.get("hypothesis_template", _TEMPLATE)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the labels of each text, best first, and their scores."""
        texts = inputs.texts(others=("candidate_labels", "hypothesis_template"))
        brought = inputs.take("candidate_labels")
        template = inputs.text("hypothesis_template")
        inputs.check_all_read()
        if brought is None:
            raise CallerError("the task needs the input 'candidate_labels': one element of BYTES for each label")
        labels = _candidates([each.decode() if isinstance(each, bytes) else str(each) for each in brought.ravel()])
        if template is None:
            template = self._template
        self.limit.check_bytes([template])
        if not is_template(template):
            raise CallerError(f"the input 'hypothesis_template' is {template!r:.80}; write {TEMPLATE}")
        self.limit.check_hypotheses(texts, (template.replace("{}", each) for each in labels))
        found = self.run(texts, candidate_labels=labels, hypothesis_template=template)
        return Answer(lambda: _ranked(found), lambda: found, lambda: strings([each["labels"][0] for each in found]))


def _candidates(labels: list[str]) -> list[str]:
    """Return the labels; a single text may name several with commas between them."""
    if len(labels) == 1:
        labels = [each.strip() for each in labels[0].split(",") if each.strip()]
    if not labels or any(not each.strip() for each in labels):
        raise CallerError("the input 'candidate_labels' has no labels, or an empty one")
    return labels


def _ranked(found: Sequence[Any]) -> Arrays:
    scores = [list(map(float, each["scores"])) for each in found]
    return {"labels": _table([each["labels"] for each in found]), "scores": padded(scores, np.float32, 0)}


class FillMask(_TextPipeline):
    """Words for the mask of each text."""

    task = "fill-mask"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._top_k = min(parts.options.get("top_k", _WORDS), parts.module.config.vocab_size)

    def __call__(self, inputs: Inputs) -> Answer:
        """Return the best words for the one mask of each text: token, score, and the text with it."""
        texts = inputs.texts()
        inputs.check_all_read()
        self.limit.check(texts)
        mask, cut = self.tokenizer.mask_token, self.limit.arguments()
        for text in texts:
            if text.count(mask) != 1:
                raise CallerError(f"a text has {text.count(mask)} masks; write {mask} once in each: {text!r:.80}")
            if cut and self.tokenizer.mask_token_id not in self.tokenizer(text, **cut)["input_ids"]:
                raise CallerError(
                    f"a text is cut to {self.limit.tokens} tokens, and its {mask} comes later; shorten it"
                )
        found = self.run(texts, top_k=self._top_k, tokenizer_kwargs=cut)
        rows = [found] if len(texts) == 1 and found and isinstance(found[0], dict) else found
        return Answer(lambda: _words(rows), lambda: rows, lambda: strings([row[0]["token_str"] for row in rows]))


def _words(rows: Sequence[Any]) -> Arrays:
    return {
        "token_str": _table([[each["token_str"] for each in row] for row in rows]),
        "score": padded([[float(each["score"]) for each in row] for row in rows], np.float32, 0),
        "token": padded([[int(each["token"]) for each in row] for row in rows], np.int64, -1),
        "sequence": _table([[each["sequence"] for each in row] for row in rows]),
    }
