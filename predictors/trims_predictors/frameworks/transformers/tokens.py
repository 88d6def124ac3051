"""The tokenizer of a model, and the longest text that the model takes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, NotSupportedError
from trims.image.transformers_models import said_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Length that tokenizers state which know none.
_NONE = 1 << 30
#: Models whose first positions stand for padding.
_SHIFTED = frozenset(
    ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "longformer", "mpnet", "luke",
     "data2vec-text", "ibert", "xmod", "esm")
)  # fmt: skip
_MOST_TEXT_BYTES = 1 << 20
#: Files with the words of a tokenizer.
_OF_TOKENIZERS = re.compile(
    r"(tokenizer|vocab|tekken|vocab-.*)\.(json|txt|model)\Z|\.(model|spm|tiktoken|bpe|vocab)\Z|merges\.txt\Z|bpe\.codes\Z"
)


def tokenizer_in(folder: str, described: Mapping[str, bytes], *, with_code: bool) -> Any:
    """Return the tokenizer of a model's folder. Raises NotSupportedError if there is none, or it cannot be made."""
    from transformers import AutoTokenizer

    remedy = "put tokenizer.json and tokenizer_config.json there, or install what the tokenizer needs"
    if not any(map(_OF_TOKENIZERS.search, described)) and not _needs_no_file(described):
        raise NotSupportedError(  # transformers would make one that knows no word
            f"the model's folder has no vocabulary of a tokenizer ({', '.join(described)}); {remedy}"
        )
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=with_code, local_files_only=True)
    except Exception as error:
        first, *_ = said_of(error, folder).split("\n")
        said = f"{type(error).__name__}: {first:.300}"
        raise NotSupportedError(f"no tokenizer can be made of the model's folder ({said}); {remedy}") from error


def _needs_no_file(described: Mapping[str, bytes]) -> bool:
    """Return whether the tokenizer's configuration names one that reads bytes or letters as they are."""
    config = described.get("tokenizer_config.json", b"")
    return any(name in config for name in (b"ByT5Tokenizer", b"CanineTokenizer", b"PerceiverTokenizer"))


class LengthLimit:
    """The longest text that a model takes, in tokens, and what is done about longer ones.

    Args:
        tokenizer: The model's.
        options: `max_length`, `truncation` and `max_text_bytes` of the manifest.
    """

    def __init__(self, tokenizer: Any, config: Any, options: Mapping[str, Any], *, truncation: bool = False) -> None:
        self._tokenizer = tokenizer
        self.tokens = _limit_of(tokenizer, config)
        if "max_length" in options:
            self.tokens = options["max_length"] if self.tokens is None else min(self.tokens, options["max_length"])
        self.truncates = bool(options.get("truncation", truncation))
        self._most_bytes = options.get("max_text_bytes", _MOST_TEXT_BYTES)
        self._special = tokenizer.num_special_tokens_to_add() if tokenizer is not None else 0

    def check(self, texts: Iterable[str], pairs: Iterable[str] = ()) -> None:
        """Raise CallerError for a text without tokens, or that the model cannot take whole, unless texts are cut."""
        given = list(zip(texts, pairs, strict=True)) if pairs else [(each,) for each in texts]
        for text in given:
            self._check_bytes(sum(len(each.encode()) for each in text))
            if not self._special and self._tokenizer is not None and not self.count(*text):
                raise CallerError("a text has no tokens; give one that is not empty")
            if not self.truncates:
                self._check_tokens(*text)

    def check_bytes(self, texts: Iterable[str]) -> None:
        """Raise CallerError for a text of more bytes than the manifest allows."""
        for text in texts:
            self._check_bytes(len(text.encode()))

    def check_hypotheses(self, texts: Sequence[str], hypotheses: Iterable[str]) -> None:
        """Raise CallerError for a text and a hypothesis that the model cannot take together.

        Where texts are cut, hypotheses still are not: each must leave room for a token of a text.
        """
        self.check_bytes(texts)
        for hypothesis in hypotheses:
            self.check_bytes([hypothesis])
            if not self.truncates:
                for text in texts:
                    self._check_tokens(text, hypothesis)
            elif self.tokens is not None and (alone := self.count("", hypothesis)) >= self.tokens:
                raise CallerError(
                    f"a text of the hypothesis {hypothesis!r:.80} alone has {alone} tokens, the model takes "
                    f"{self.tokens} together with the text; shorten its label or hypothesis_template"
                )

    def count(self, *text: str) -> int:
        """Return how many tokens a text or a pair of them has, with the special ones."""
        return len(self._tokenizer(*text, truncation=False, verbose=False)["input_ids"])

    def _check_bytes(self, nbytes: int) -> None:
        if nbytes > self._most_bytes:
            raise CallerError(
                f"a text of {nbytes} bytes is longer than {self._most_bytes} (max_text_bytes in the manifest's "
                "predictor.options)"
            )

    def _check_tokens(self, *text: str) -> None:
        # A token stands for one byte at least, so most texts need no count.
        if self.tokens is None or sum(len(each.encode()) for each in text) + 2 * self._special <= self.tokens:
            return
        tokens = self.count(*text)
        if tokens > self.tokens:
            raise CallerError(
                f"a text has {tokens} tokens, the model takes {self.tokens}; shorten it, or set predictor.options "
                "{truncation: true} in the manifest, which cuts texts"
            )

    def arguments(self) -> dict[str, Any]:
        """Return what a tokenizer's call takes to cut texts."""
        return {"truncation": True, "max_length": self.tokens} if self.truncates and self.tokens else {}


def _limit_of(tokenizer: Any, config: Any) -> int | None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limits = [_positions_of(text, "max_position_embeddings", "n_positions")]
    stated = getattr(tokenizer, "model_max_length", _NONE)
    if stated < _NONE:
        limits.append(int(stated))
    return min((each for each in limits if each is not None), default=None)


def decoder_limit_of(config: Any) -> int | None:
    """Return how many tokens the decoder of an encoder-decoder can make; None for one without a limit."""
    text = getattr(config, "decoder", None)
    text = text if hasattr(text, "model_type") else config
    if hasattr(text, "relative_attention_num_buckets"):  # T5 and its kin, whose n_positions bounds nothing
        return None
    return _positions_of(
        text, "max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings", "n_positions"
    )


def _positions_of(config: Any, *names: str) -> int | None:
    """Return how many tokens have a position, by the first of these fields that states it; None if none does."""
    for name in names:
        positions = getattr(config, name, None)
        if isinstance(positions, int) and positions > 0:
            shifted = getattr(config, "model_type", "") in _SHIFTED
            return positions - ((getattr(config, "pad_token_id", None) or 0) + 1 if shifted else 0)
    return None
