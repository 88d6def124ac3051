"""Folders of sentence-transformers answer as the library does, or are refused by the module that is not served."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import image_of, loaded, named, save
from tokenizers import Tokenizer
from trims_client.weights import Weights
from trims_predictors.frameworks.transformers.answers import Parts
from trims_predictors.frameworks.transformers.embedding import SentenceEmbedding

from trims.control.artifacts import manifest_for
from trims.core.errors import ArtifactError, ArtifactNotFoundError, NotSupportedError
from trims.formats.transformers.folder import main_in
from trims.image.model_files import Described

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

import sentence_transformers
from sentence_transformers.sentence_transformer import modules as layers
from sentence_transformers.sparse_encoder import modules as sparse

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TEXTS = ["hello world this is some text", "the cat sat on the mat in paris", "not good", ""]


def texts(*values: str) -> np.ndarray[Any, Any]:
    return np.array([each.encode() for each in values], dtype=object)


def embedded(folder: Path, given: Sequence[str] = TEXTS) -> np.ndarray[Any, Any]:
    """Embeddings as a request gets them."""
    assert manifest_for(folder, "m")["artifact"]["options"] == {"task": "sentence-embedding"}
    with loaded(folder) as predictor:
        found: np.ndarray[Any, Any] = predictor.predict({"text": texts(*given)})["embedding"]
    assert found.dtype == np.float32
    return found


def saved(tmp_path: Path, *modules: Any) -> Path:
    sentence_transformers.SentenceTransformer(modules=list(modules), device="cpu").save(str(tmp_path / "saved"))
    return tmp_path / "saved"


def transformer(tmp_path: Path, kind: str = "BertModel") -> Any:
    return layers.Transformer(str(save(named(kind), tmp_path / "plain")))


def expected(folder: Path) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    return found


def table(tmp_path: Path) -> Any:
    """A static embedding: a tokenizer, and a vector for each of its tokens."""
    save(named("BertModel"), tmp_path / "plain")
    tokenizer = Tokenizer.from_file(str(tmp_path / "plain" / "tokenizer.json"))
    return layers.StaticEmbedding(tokenizer, embedding_dim=16)


@pytest.mark.parametrize(
    "module",
    [
        lambda: layers.LayerNorm(32),
        lambda: layers.Dense(32, 32, use_residual=True),
        lambda: layers.Dense(32, 8, use_residual=True, bias=False, activation_function=torch.nn.GELU()),
        lambda: layers.Dense(32, 8, activation_function=torch.nn.SiLU()),
        lambda: layers.Dropout(0.5),
    ],
    ids=["layer-norm", "residual", "residual-projected", "activation", "dropout"],
)
def test_a_layer_answers_as_in_sentence_transformers(tmp_path: Path, module: Any) -> None:
    made = module()
    for each in made.parameters():
        torch.nn.init.normal_(each)
    folder = saved(tmp_path, transformer(tmp_path), layers.Pooling(32), made, layers.Normalize())
    np.testing.assert_allclose(embedded(folder), expected(folder), atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pooling_leaves_out_the_prompt_as_in_sentence_transformers(tmp_path: Path, mode: Any, side: str) -> None:
    first = transformer(tmp_path)
    first.tokenizer.padding_side = side
    model = sentence_transformers.SentenceTransformer(
        modules=[first, layers.Pooling(32, mode, include_prompt=False)],
        device="cpu", prompts={"query": "the cat sat "}, default_prompt_name="query",
    )  # fmt: skip
    model.save(str(tmp_path / "saved"))
    np.testing.assert_allclose(embedded(tmp_path / "saved"), expected(tmp_path / "saved"), atol=1e-5)


@pytest.mark.parametrize("name", ["tokenizer.json", "1_Dense/model.safetensors"])
def test_a_module_that_lacks_a_file_is_refused_by_name_as_it_is_added(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, table(tmp_path), layers.Dense(16, 8))
    (folder / name).unlink()
    with pytest.raises(ArtifactNotFoundError, match=name.partition("/")[0]):
        manifest_for(folder, "m")


def test_a_static_embedding_has_no_other_task(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="StaticEmbedding has one vector"):
        manifest_for(saved(tmp_path, table(tmp_path)), "m", {"task": "feature-extraction"})


def test_a_default_prompt_that_is_not_there_is_refused_as_it_is_added(tmp_path: Path) -> None:
    folder = saved(tmp_path, transformer(tmp_path), layers.Pooling(32))
    (folder / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query", "prompts": {"a": "b"}}')
    with pytest.raises(NotSupportedError, match="no prompt 'query'; it has a"):
        manifest_for(folder, "m")


@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("kind", ["MLMTransformer", "Transformer"])
def test_splade_answers_as_in_sentence_transformers(tmp_path: Path, strategy: Any, activation: Any, kind: str) -> None:
    plain = str(save(named("BertForMaskedLM"), tmp_path / "plain"))
    first = (
        sparse.MLMTransformer(plain)
        if kind == "MLMTransformer"
        else layers.Transformer(plain, transformer_task="fill-mask")
    )
    encoder = sentence_transformers.SparseEncoder(
        modules=[first, sparse.SpladePooling(strategy, activation)], device="cpu"
    )
    folder = tmp_path / "saved"
    encoder.save(str(folder))
    vectors = encoder.encode(TEXTS, convert_to_sparse_tensor=False, convert_to_tensor=True)
    np.testing.assert_allclose(embedded(folder), vectors.cpu().numpy(), atol=1e-5)


KINDS: dict[str, Any] = {
    "pooling": lambda path: [transformer(path), layers.Pooling(32)],
    "several": lambda path: [transformer(path), layers.Pooling(32, ("cls", "mean"))],
    "normalized": lambda path: [transformer(path), layers.Pooling(32), layers.Normalize()],
    "dense": lambda path: [transformer(path), layers.Pooling(32), layers.Dense(32, 16), layers.Normalize()],
    "static": lambda path: [table(path)],
    "static normalized": lambda path: [table(path), layers.Normalize()],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [7, 1000])
def test_an_embedding_is_cut_as_its_folder_says_and_in_sentence_transformers(
    tmp_path: Path, kind: str, width: int
) -> None:
    made = sentence_transformers.SentenceTransformer(modules=KINDS[kind](tmp_path), device="cpu", truncate_dim=width)
    made.save(str(folder := tmp_path / "saved"))
    wanted = expected(folder)
    np.testing.assert_allclose(embedded(folder), wanted, atol=1e-5)
    normalized = made.encode(TEXTS, normalize_embeddings=True)
    with loaded(folder, {"normalize": True}) as predictor:
        np.testing.assert_allclose(predictor.predict({"text": texts(*TEXTS)})["embedding"], normalized, atol=1e-5)
        assert predictor.predict({"text": texts()})["embedding"].shape == (0, wanted.shape[1])


@pytest.mark.parametrize("most", [3, 10_000])
def test_a_sparse_embedding_keeps_its_largest_numbers_as_its_folder_says(tmp_path: Path, most: int) -> None:
    plain = str(save(named("BertForMaskedLM"), tmp_path / "plain"))
    parts = [sparse.MLMTransformer(plain), sparse.SpladePooling("max", "relu")]
    made = sentence_transformers.SparseEncoder(modules=parts, device="cpu", max_active_dims=most)
    made.save(str(folder := tmp_path / "saved"))
    again = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    assert again.max_active_dims == most
    wanted = again.encode(TEXTS, convert_to_sparse_tensor=False, convert_to_tensor=True).cpu().numpy()
    found = embedded(folder)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert (found != 0).sum(1).max() <= most
    with loaded(folder) as predictor:
        assert predictor.predict({"text": texts()})["embedding"].shape == (0, wanted.shape[1])


@pytest.mark.parametrize("bound", [0, -1, "7", 1.5, True])
def test_a_bound_of_an_embedding_that_is_none_is_refused_as_it_is_added(tmp_path: Path, bound: object) -> None:
    folder = saved(tmp_path, table(tmp_path))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": bound}))
    with pytest.raises(ArtifactError, match=r"truncate_dim is .*; write a whole number from 1 up"):
        manifest_for(folder, "m")


@pytest.mark.parametrize("behind", [[], [layers.Normalize()]], ids=["alone", "normalized"])
def test_a_static_embedding_answers_as_in_sentence_transformers(tmp_path: Path, behind: list[Any]) -> None:
    folder = saved(tmp_path, table(tmp_path), *behind)
    assert main_in(folder) == folder / "modules.json"
    np.testing.assert_allclose(embedded(folder), expected(folder), atol=1e-6)
    with loaded(folder, {"prompt": "document"}) as predictor:
        assert predictor.predict({"text": texts()})["embedding"].shape == (0, 16)
    with pytest.raises(NotSupportedError, match="pooling"), loaded(folder, {"pooling": "cls"}):
        pass


def test_the_table_of_a_static_embedding_is_the_files_own_tensor(tmp_path: Path) -> None:
    folder = saved(tmp_path, table(tmp_path))
    with Weights.map_file(image_of(folder)) as weights:
        assert weights.layout.tensors.keys() == {"embedding.weight"}


@pytest.mark.parametrize("shares", [False, True], ids=["plain", "shared rows"])
def test_a_model_of_model2vec_answers_as_in_sentence_transformers(tmp_path: Path, shares: bool) -> None:
    folder = saved(tmp_path, table(tmp_path), layers.Normalize())
    (folder / "config.json").write_text('{"model_type": "model2vec", "architectures": ["StaticModel"]}')
    vectors = load_file(folder / "model.safetensors")["embedding.weight"]
    state = {"embeddings": vectors}
    if shares:
        rows = torch.arange(len(vectors)) % 7
        state = {"embeddings": vectors[:7], "mapping": rows, "weights": torch.linspace(0.1, 2, len(vectors))}
    save_file({name: each.contiguous() for name, each in state.items()}, folder / "model.safetensors")
    np.testing.assert_allclose(embedded(folder), expected(folder), atol=1e-6)


@pytest.mark.parametrize("kind", ["Transformer", "StaticEmbedding"])
def test_a_first_module_in_a_folder_of_its_own_answers_the_same(tmp_path: Path, kind: str) -> None:
    behind = [layers.Pooling(32)] if kind == "Transformer" else []
    folder = saved(tmp_path, transformer(tmp_path) if kind == "Transformer" else table(tmp_path), *behind)
    wanted = embedded(folder)
    listed = json.loads((folder / "modules.json").read_text())
    listed[0]["path"] = f"0_{kind}"
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / f"0_{kind}").mkdir()
    moved = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json")
    for name in moved:
        if (folder / name).exists():
            shutil.move(folder / name, folder / f"0_{kind}" / name)
    stated = manifest_for(folder, "m")["artifact"]["sha256"]
    assert {"modules.json", f"0_{kind}/model.safetensors", f"0_{kind}/tokenizer.json"} <= stated.keys()
    np.testing.assert_allclose(embedded(folder), wanted, atol=1e-6)


def changed(tmp_path: Path, number: int, **fields: Any) -> Path:
    """The folder of a transformer with pooling and a dense layer, one of whose modules is another."""
    folder = saved(tmp_path, transformer(tmp_path), layers.Pooling(32), layers.Dense(32, 16))
    listed = json.loads((folder / "modules.json").read_text())
    if "type" in fields:
        listed[number]["type"] = fields["type"]
        (folder / "modules.json").write_text(json.dumps(listed))
        return folder
    name = f"{listed[number]['path']}/config.json" if number else "sentence_bert_config.json"
    config = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**config, **fields}))
    return folder


_LIBRARY = "sentence_transformers.models"


@pytest.mark.parametrize(
    ("number", "fields", "words"),
    [
        (0, {"type": f"{_LIBRARY}.CLIPModel"}, "CLIPModel"),
        (0, {"type": f"{_LIBRARY}.BoW"}, "BoW"),
        (0, {"type": "custom_st.Transformer"}, "custom_st.Transformer"),
        (0, {"transformer_task": "text-generation"}, "text-generation"),
        (0, {"module_output_name": "sentence_embedding"}, "sentence_embedding"),
        (0, {"modality_config": {"image": {"method": "forward"}}}, "texts become"),
        (1, {"type": f"{_LIBRARY}.Dropout"}, "Dropout at its place"),
        (1, {"type": f"{_LIBRARY}.WeightedLayerPooling"}, "WeightedLayerPooling"),
        (1, {"type": "sentence_transformers.sparse_encoder.modules.SpladePooling"}, "without the head"),
        (1, {"pooling_mode": "median"}, "median"),
        (1, {"pooling_mode": "weightedmean", "include_prompt": False}, "leaves out the prompt"),
        (2, {"type": f"{_LIBRARY}.LSTM"}, "LSTM"),
        (2, {"type": "pylate.models.Dense.Dense"}, r"pylate\.models\.Dense"),
        (2, {"activation_function": "os.system"}, r"os\.system"),
        (2, {"activation_function": "custom.Tanh"}, r"custom\.Tanh"),
        (2, {"module_input_name": "token_embeddings"}, "token_embeddings"),
    ],
    ids=str,
)
def test_a_module_that_is_not_served_is_refused_by_name_as_it_is_added(
    tmp_path: Path, number: int, fields: dict[str, Any], words: str
) -> None:
    folder = changed(tmp_path, number, **fields)
    with pytest.raises(NotSupportedError, match=words):
        manifest_for(folder, "m")
    with pytest.raises(NotSupportedError, match=words):
        image_of(folder)
    assert manifest_for(folder, "m", {"task": "feature-extraction"})["name"] == "m"


def cross_encoder(tmp_path: Path, labels: int = 1) -> Path:
    names = {number: f"c{number}" for number in range(labels)}
    fields = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    return save(named("BertForSequenceClassification"), tmp_path / "plain", **fields)


PAIRS = [("the cat sat", "hello world"), ("not good", "very fine")]


def scored(folder: Path, options: dict[str, Any] | None = None) -> list[float]:
    given = {"text": texts(*(each for each, _ in PAIRS)), "text_pair": texts(*(each for _, each in PAIRS))}
    with loaded(folder, options) as predictor:
        return [float(each) for each in predictor.predict(given)["score"]]


@pytest.mark.parametrize("activation", [torch.nn.Identity, torch.nn.Sigmoid, None], ids=str)
@pytest.mark.parametrize("form", ["saved", "sentence_transformers", "sbert_ce_default_activation_function"])
def test_scores_of_a_cross_encoder_are_those_of_its_activation(tmp_path: Path, form: str, activation: Any) -> None:
    folder = cross_encoder(tmp_path)
    path = None if activation is None else f"{activation.__module__}.{activation.__name__}"
    if form == "saved":
        model = sentence_transformers.CrossEncoder(
            str(folder), device="cpu", activation_fn=None if activation is None else activation()
        )
        model.save(str(tmp_path / "saved"))
        folder = tmp_path / "saved"
    else:
        config = json.loads((folder / "config.json").read_text())
        stated: Any = {"activation_fn": path} if path else {}
        config |= {form: stated if form == "sentence_transformers" else path}
        (folder / "config.json").write_text(json.dumps(config))
    assert manifest_for(folder, "m")["artifact"]["options"] == {"task": "text-classification"}
    wanted = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(scored(folder), wanted, atol=1e-5)
    applied = scored(folder, {"function_to_apply": "none"})
    np.testing.assert_allclose(applied, sentence_transformers.CrossEncoder(
        str(folder), device="cpu", activation_fn=torch.nn.Identity()
    ).predict(PAIRS), atol=1e-5)  # fmt: skip


def test_logits_of_a_cross_encoder_with_classes_stay_as_they_are(tmp_path: Path) -> None:
    folder = cross_encoder(tmp_path, labels=3)
    sentence_transformers.CrossEncoder(str(folder), device="cpu").save(str(tmp_path / "saved"))
    wanted = sentence_transformers.CrossEncoder(str(tmp_path / "saved"), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(scored(tmp_path / "saved"), np.max(wanted, axis=1), atol=1e-5)


@pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Tanh", "custom.Sigmoid"])
def test_an_activation_that_is_not_served_is_refused_by_name_as_it_is_added(tmp_path: Path, activation: str) -> None:
    folder = cross_encoder(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sbert_ce_default_activation_function": activation}))
    for add in (lambda: manifest_for(folder, "m"), lambda: image_of(folder)):
        with pytest.raises(NotSupportedError, match=activation.replace(".", r"\.")):
            add()


def test_a_cross_encoder_with_a_default_prompt_is_refused_as_it_is_added(tmp_path: Path) -> None:
    folder = cross_encoder(tmp_path)
    prompts = {"model_type": "CrossEncoder", "prompts": {"query": "the cat "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with pytest.raises(NotSupportedError, match="default prompt"):
        manifest_for(folder, "m")


@pytest.mark.parametrize(("kind", "reads"), [("ViTForImageClassification", "image"), ("Wav2Vec2ForCTC", "audio")])
def test_features_of_a_model_that_reads_no_text_are_refused_as_it_is_added(
    tmp_path: Path, kind: str, reads: str
) -> None:
    folder = save(named(kind), tmp_path / "m")
    with pytest.raises(NotSupportedError, match=reads):
        image_of(folder, task="feature-extraction")


def test_a_clip_model_is_refused_as_it_is_added(tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**small, "vocab_size": 20}, vision_config={**small, "image_size": 8, "patch_size": 4}
    )
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    with pytest.raises(NotSupportedError, match="CLIPModel reads image and text"):
        image_of(tmp_path / "clip")


def test_an_image_that_another_version_made_of_such_modules_is_refused_by_name() -> None:
    listed = [{"path": "", "type": f"{_LIBRARY}.Transformer"}, {"path": "1", "type": f"{_LIBRARY}.LSTM"}]
    described = Described("sentence-embedding", {"modules.json": json.dumps(listed).encode()})
    with pytest.raises(NotSupportedError, match="LSTM"):
        SentenceEmbedding(Parts(torch.nn.Identity(), described, "", {}, with_code=False))
