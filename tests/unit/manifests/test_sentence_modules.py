"""Lists of modules of sentence-transformers, and activations of CrossEncoders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trims.core.errors import ArtifactError, NotSupportedError
from trims.manifests.sentence_modules import (
    ACTIVATIONS,
    activation_of,
    check_modules,
    function_to_apply,
    is_static,
    masks_words,
    poolings_of,
    prompt_of,
    read_modules,
    settings_in,
)

LIBRARY = "sentence_transformers.models"


def files(*kinds: str, **contents: Any) -> dict[str, bytes]:
    listed = [{"path": f"{number}_{kind}" if number else "", "type": kind} for number, kind in enumerate(kinds)]
    named = {name.replace("__", "/") + ".json": content for name, content in contents.items()}
    return {name: json.dumps(content).encode() for name, content in {"modules.json": listed, **named}.items()}


def test_modules_have_their_kind_folder_and_configuration() -> None:
    given = files(
        f"{LIBRARY}.Transformer", "mine.Pooling", sentence_bert_config={"a": 1}, **{"1_mine.Pooling__config": {"b": 2}}
    )
    assert read_modules(given) == [("Transformer", "", {"a": 1}), ("mine.Pooling", "1_mine.Pooling", {"b": 2})]
    assert read_modules({}) == []
    check_modules([], "f")


@pytest.mark.parametrize("content", [b"{", b"3", b"[3]", b'[{"type": "a"}]', b"[" * 100_000])
def test_a_list_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match="list of modules"):
        read_modules({"modules.json": content})


@pytest.mark.parametrize("content", [b"{", b"[]", b"[" * 100_000])
def test_a_configuration_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"sentence_xlnet_config\.json is "):
        settings_in({"sentence_xlnet_config.json": content})


def test_the_first_module_says_what_reads_texts() -> None:
    static = read_modules(files(f"{LIBRARY}.StaticEmbedding"))
    masks = read_modules(files(f"{LIBRARY}.MLMTransformer"))
    stated = read_modules(files(f"{LIBRARY}.Transformer", sentence_bert_config={"transformer_task": "fill-mask"}))
    assert [is_static(each) for each in (static, masks, stated, [])] == [True, False, False, False]
    assert [masks_words(each) for each in (static, masks, stated, [])] == [False, True, True, False]


def test_poolings_of_older_folders_are_joined_in_the_librarys_order() -> None:
    assert poolings_of({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}) == ["cls", "mean"]
    assert poolings_of({"pooling_mode": ["lasttoken", "mean_sqrt_len"]}) == ["lasttoken", "mean_sqrt_len_tokens"]
    assert poolings_of({"pooling_mode_mean_tokens": False}) == ["mean"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activation_is_a_class_of_torch_that_needs_no_arguments(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch.nn, name)
    assert activation_of({"activation_function": f"{kind.__module__}.{name}"}, "f") == name
    assert kind()(torch.zeros(2)).shape == (2,)


def test_no_activation_of_others_is_taken() -> None:
    assert activation_of({}, "f") == "Tanh"
    for name in ("Tanh", "mine.Tanh", "torch.nn.Softmax", "torch.nn.modules.sparse.Embedding", "torch.hub.load"):
        with pytest.raises(NotSupportedError, match=r"f: its modules\.json has a Dense with the activation"):
            activation_of({"activation_function": name}, "f")


@pytest.mark.parametrize(
    ("config", "beside", "applied"),
    [
        ({}, None, None),
        ({}, {"model_type": "SentenceTransformer", "activation_fn": "torch.nn.Sigmoid"}, None),
        ({}, {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Softmax"}, "softmax"),
        ({"id2label": {"0": "a"}}, {"model_type": "CrossEncoder"}, "sigmoid"),
        ({"num_labels": 1, "sentence_transformers": {}}, None, "sigmoid"),
        ({"id2label": {"0": "a", "1": "b"}, "sentence_transformers": {}}, None, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, None, "none"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, None, "none"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"},
             "sbert_ce_default_activation_function": "torch.nn.Identity"}, None, "sigmoid",
        ),
    ],
)  # fmt: skip
def test_a_cross_encoder_says_what_makes_its_scores(
    config: dict[str, Any], beside: dict[str, Any] | None, applied: str | None
) -> None:
    given = {} if beside is None else {"config_sentence_transformers.json": json.dumps(beside).encode()}
    assert function_to_apply(config, given, "f") == applied


def test_the_prompt_is_the_chosen_one_or_the_default() -> None:
    given = {"config_sentence_transformers.json": b'{"prompts": {"a": "A ", "b": "B "}, "default_prompt_name": "b"}'}
    assert (prompt_of(given), prompt_of(given, "a"), prompt_of({})) == ("B ", "A ", "")
    with pytest.raises(NotSupportedError, match="no prompt 'c'; it has a, b"):
        prompt_of(given, "c")
