"""Tiny Hugging Face models with seeded weights, saved as folders: one for each architecture that tests look at."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Words that the tokenizers know.
WORDS = re.findall(
    r"\w+",
    "the a cat dog sat on mat hello world this is text of some words that are here and there not good bad very fine "
    "day night how what who where paris london france it in city capital lives name my your",
)


@dataclass(frozen=True)
class Tiny:
    """One model.

    Attributes:
        task: What it answers.
        kind: Class of transformers.
        config: Fields of its configuration.
        form: Of its tokenizer: `bert`, `roberta`, `gpt` or `t5`; or of its processor.
    """

    task: str
    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    form: str = "bert"

    def __str__(self) -> str:
        """Return the name of the test."""
        return f"{self.task}-{self.kind}"


_TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
_DECODER = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_SEQ = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_HEARS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "conv_dim": (16, 16),
    "conv_kernel": (10, 8), "conv_stride": (5, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
_CLASSES = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}
_NLI = {
    "id2label": {0: "contradiction", 1: "neutral", 2: "entailment"},
    "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2},
}
_ALBERT = {**_TEXT, "embedding_size": 16}
_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 64}
_T5 = {"decoder_start_token_id": 0, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}

TINY = (
    Tiny("text-classification", "BertForSequenceClassification", {**_TEXT, **_CLASSES}),
    Tiny("text-classification", "RobertaForSequenceClassification", {**_TEXT, **_CLASSES}, "roberta"),
    Tiny("text-classification", "DistilBertForSequenceClassification", {**_DISTIL, **_CLASSES}),
    Tiny("text-classification", "ElectraForSequenceClassification", {**_ALBERT, **_CLASSES}),
    Tiny("text-classification", "AlbertForSequenceClassification", {**_ALBERT, **_CLASSES}),
    Tiny("text-classification", "DebertaV2ForSequenceClassification", {**_TEXT, **_CLASSES}),
    Tiny("text-classification", "MPNetForSequenceClassification", {**_TEXT, **_CLASSES}, "roberta"),
    Tiny("text-classification", "ModernBertForSequenceClassification", {**_TEXT, **_CLASSES}),
    Tiny("text-classification", "GPT2ForSequenceClassification", {**_GPT2, **_CLASSES, "pad_token_id": 1}, "gpt"),
    Tiny("token-classification", "BertForTokenClassification", {**_TEXT, **_CLASSES}),
    Tiny("token-classification", "RobertaForTokenClassification", {**_TEXT, **_CLASSES}, "roberta"),
    Tiny("token-classification", "ElectraForTokenClassification", {**_ALBERT, **_CLASSES}),
    Tiny("fill-mask", "BertForMaskedLM", _TEXT),
    Tiny("fill-mask", "RobertaForMaskedLM", _TEXT, "roberta"),
    Tiny("fill-mask", "DistilBertForMaskedLM", _DISTIL),
    Tiny("fill-mask", "AlbertForMaskedLM", _ALBERT),
    Tiny("fill-mask", "ModernBertForMaskedLM", _TEXT),
    Tiny("zero-shot-classification", "BartForSequenceClassification", {**_SEQ, **_NLI}, "roberta"),
    Tiny("zero-shot-classification", "BertForSequenceClassification", {**_TEXT, **_NLI}),
    Tiny("feature-extraction", "BertModel", _TEXT),
    Tiny("feature-extraction", "XLMRobertaModel", _TEXT, "roberta"),
    Tiny("feature-extraction", "GPT2Model", _GPT2, "gpt"),
    Tiny("feature-extraction", "MobileBertModel", {**_TEXT, "embedding_size": 16, "intra_bottleneck_size": 16}),
    Tiny("text-generation", "GPT2LMHeadModel", _GPT2, "gpt"),
    Tiny("text-generation", "GPTNeoXForCausalLM", _TEXT, "gpt"),
    Tiny("text-generation", "OPTForCausalLM", {**_TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}, "gpt"),
    Tiny("text-generation", "LlamaForCausalLM", _DECODER, "gpt"),
    Tiny("text-generation", "MistralForCausalLM", _DECODER, "gpt"),
    Tiny("text-generation", "MixtralForCausalLM", {**_DECODER, **_MOE}, "gpt"),
    Tiny("text-generation", "Qwen3ForCausalLM", _DECODER, "gpt"),
    Tiny("text-generation", "Gemma2ForCausalLM", _DECODER, "gpt"),
    Tiny("text-generation", "Phi3ForCausalLM", {**_DECODER, "pad_token_id": 1}, "gpt"),
    Tiny("text-generation", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "gpt"),
    Tiny("text2text-generation", "T5ForConditionalGeneration", _T5, "t5"),
    Tiny("text2text-generation", "BartForConditionalGeneration", _SEQ, "roberta"),
    Tiny("text2text-generation", "MarianMTModel", {**_SEQ, "decoder_start_token_id": 0}, "t5"),
    Tiny("question-answering", "BertForQuestionAnswering", _TEXT),
    Tiny("question-answering", "DistilBertForQuestionAnswering", _DISTIL),
    Tiny("image-classification", "ViTForImageClassification", {**_VISION, **_CLASSES}, "ViTImageProcessor"),
    Tiny("image-classification", "BeitForImageClassification", {**_VISION, **_CLASSES}, "BeitImageProcessor"),
    Tiny(
        "image-classification",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], **_CLASSES},
        "ConvNextImageProcessor",
    ),
    Tiny(
        "image-classification",
        "SwinForImageClassification",
        {
            "image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
            **_CLASSES,
        },
        "ViTImageProcessor",
    ),
    Tiny("automatic-speech-recognition", "Wav2Vec2ForCTC", _HEARS, "ctc"),
    Tiny("automatic-speech-recognition", "HubertForCTC", _HEARS, "ctc"),
    Tiny(
        "automatic-speech-recognition",
        "MoonshineForConditionalGeneration",
        {
            "hidden_size": 32, "intermediate_size": 48, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "max_position_embeddings": 64,
            "decoder_start_token_id": 2,
        },
        "moonshine",
    ),
)  # fmt: skip


def save(tiny: Tiny, folder: Path, *, safe: bool = True, seed: int = 0, **fields: Any) -> Path:
    """Save a model with tokenizer or processor, as its publisher would. Returns the folder."""
    import torch
    import transformers
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # or a thread of it stays behind
    folder.mkdir(parents=True, exist_ok=True)
    ids = _save_tokenizer(tiny.form, folder)
    kind = getattr(transformers, tiny.kind)
    config = kind.config_class(**{**ids, **tiny.config, **fields})
    torch.manual_seed(seed)
    module = kind(config).eval()
    with torch.no_grad():
        for each in module.parameters():  # as if trained: what models begin with answers all texts alike
            if each.is_floating_point() and each.dim() > 1:
                each.normal_(0, 0.3)
    module.save_pretrained(folder, safe_serialization=safe) if safe else _save_pickled(module, folder)
    return folder


def _save_pickled(module: Any, folder: Path) -> None:
    import torch

    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(folder)
    torch.save(module.state_dict(), folder / "pytorch_model.bin")


def _save_tokenizer(form: str, folder: Path) -> dict[str, Any]:
    """Save tokenizer and processor. Returns what the configuration says of tokens."""
    if form.endswith("ImageProcessor"):
        import transformers

        size = {"height": 32, "width": 32} if "ConvNext" not in form else {"shortest_edge": 32}
        getattr(transformers, form)(size=size).save_pretrained(folder)
        return {}
    if form == "ctc":
        return _save_ctc(folder)
    found = _tokenizer(form)
    found.save_pretrained(folder)
    if form == "moonshine":
        from transformers import Wav2Vec2FeatureExtractor

        Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(folder)
    ids = {
        "vocab_size": len(found), "pad_token_id": found.pad_token_id, "bos_token_id": found.bos_token_id,
        "eos_token_id": found.eos_token_id,
    }  # fmt: skip
    return {name: value for name, value in ids.items() if value is not None}


def _save_ctc(folder: Path) -> dict[str, Any]:
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({each: index for index, each in enumerate(letters)}))
    Wav2Vec2CTCTokenizer(str(vocabulary)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return {"vocab_size": len(letters), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _tokenizer(form: str) -> Any:
    """Return a tokenizer of whole words, with the special tokens of a family of models."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = {
        "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
        "roberta": {
            "bos": "<s>",
            "pad": "<pad>",
            "eos": "</s>",
            "unk": "<unk>",
            "mask": "<mask>",
            "cls": "<s>",
            "sep": "</s>",
        },
        "gpt": {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"},
        "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
        "moonshine": {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"},
    }[form]
    words = [*dict.fromkeys(names.values()), *dict.fromkeys(WORDS)]
    made = Tokenizer(models.WordLevel({each: index for index, each in enumerate(words)}, unk_token=names["unk"]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.Fuse() if form == "none" else decoders.WordPiece(prefix="##", cleanup=False)
    first, last = names.get("cls"), names.get("sep", names.get("eos") if form == "t5" else None)
    if first and last:
        special = [(each, words.index(each)) for each in (first, last)]
        made.post_processor = processors.TemplateProcessing(
            f"{first} $A {last}", f"{first} $A {last} $B:1 {last}:1", special
        )
    elif last:
        made.post_processor = processors.TemplateProcessing(
            f"$A {last}", f"$A {last} $B {last}", [(last, words.index(last))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=60, **{f"{name}_token": value for name, value in names.items()}
    )


def image_of(folder: Path, **options: Any) -> Path:
    """Convert a folder as the daemon's converter would. Returns the file of the image, beside the folder."""
    from trims.formats.base import Artifact
    from trims.formats.transformers.converter import TransformersConverter
    from trims.formats.transformers.folder import main_of_model

    converter, main = TransformersConverter(), main_of_model(folder)
    plan = converter.plan(Artifact("transformers", converter.files(main, options), options))
    image = folder.with_suffix(".image")
    with image.open("w+b") as file:
        file.truncate(plan.nbytes)
        plan.write(file.fileno())
    return image


@contextlib.contextmanager
def loaded(folder: Path, predictor_options: dict[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """Yield the predictor of a folder, loaded from its image."""
    from trims_client.weights import Weights
    from trims_predictors.api import Context
    from trims_predictors.frameworks.transformers.predictor import TransformersPredictor

    with Weights.map_file(image_of(folder, **options)) as weights:
        weights.trusted = True
        made = TransformersPredictor()
        made.load(weights, Context("m", options=predictor_options or {}))
        try:
            yield made
        finally:
            made.unload()


def named(kind: str) -> Tiny:
    """Return the first tiny model of a class."""
    return next(each for each in TINY if each.kind == kind)
