"""`from_pretrained` with a cast, whose weights come from shared memory: modules are the library's own, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from transparently import counted, installed  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch = pytest.importorskip("torch", reason="missing framework: torch")
transformers = pytest.importorskip("transformers", reason="missing framework: transformers")
from trims_client import transparent  # noqa: E402

pytestmark = pytest.mark.usefixtures("daemon", "installed", "forked_starts")
#: Configurations that make networks of some thousands of numbers.
_TEXT = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "num_key_value_heads": 2, "pad_token_id": 0, "head_dim": 8,
}  # fmt: skip
_GPT = {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 0}
_T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
_BART = {
    "vocab_size": 64, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
}  # fmt: skip
_VISION = {**_TEXT, "image_size": 16, "patch_size": 8}
_EXPERTS = {**_TEXT, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24}
CLASSES: dict[str, dict[str, Any]] = {
    "BertModel": _TEXT, "BertForSequenceClassification": _TEXT, "BertForMaskedLM": _TEXT, "RobertaForMaskedLM": _TEXT,
    "DistilBertModel": {"vocab_size": 64, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "AlbertModel": {**_TEXT, "embedding_size": 8}, "ElectraModel": {**_TEXT, "embedding_size": 8},
    "MPNetModel": _TEXT, "DebertaV2Model": _TEXT, "ModernBertModel": _TEXT, "CamembertModel": _TEXT,
    "GPT2LMHeadModel": _GPT, "GPTNeoXForCausalLM": _TEXT, "OPTForCausalLM": {**_TEXT, "ffn_dim": 24},
    "LlamaForCausalLM": _TEXT, "MistralForCausalLM": _TEXT, "Qwen2ForCausalLM": _TEXT, "Qwen3ForCausalLM": _TEXT,
    "GemmaForCausalLM": _TEXT, "Gemma2ForCausalLM": _TEXT, "PhiForCausalLM": _TEXT, "MixtralForCausalLM": _EXPERTS,
    "Qwen3MoeForCausalLM": _EXPERTS, "T5ForConditionalGeneration": _T5, "MT5EncoderModel": _T5,
    "BartForConditionalGeneration": _BART, "MBartModel": _BART, "ViTForImageClassification": _VISION,
    "DeiTModel": _VISION,
    "ResNetForImageClassification": {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]},
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No progress bars, and no remarks of the library."""
    transformers.utils.logging.disable_progress_bar()
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity(before)


def saved(name: str, folder: Path, **how: Any) -> Any:
    """Save a network of a class with numbers drawn. Return the class."""
    kind = getattr(transformers, name)
    torch.manual_seed(3)
    kind(kind.config_class(**CLASSES[name])).save_pretrained(folder, **how)
    return kind


def contents(module: Any) -> list[tuple[Any, ...]]:
    """Everything of a module's state: names, types, dtypes, layouts, bytes, and which names share memory."""
    state = module.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    return [
        (
            name, type(each), each.dtype, tuple(each.shape), each.stride(), each.requires_grad,
            each.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if each.numel() else b"",
            first.setdefault(each.data_ptr(), name),
        )
        for name, each in state.items()
    ]  # fmt: skip


def both(kind: Any, folder: Path, **how: Any) -> tuple[Any, Any]:
    """A module that the library loads alone, and one with the loaders in place."""
    transparent.uninstall()
    torch.manual_seed(5)
    alone = kind.from_pretrained(folder, **how)
    assert transparent.install()
    torch.manual_seed(5)
    return alone, kind.from_pretrained(folder, **how)


@pytest.mark.parametrize("name", CLASSES)
def test_a_cast_checkpoint_is_what_the_library_makes_of_it(name: str, tmp_path: Path) -> None:
    alone, ours = both(saved(name, tmp_path), tmp_path, dtype=torch.float16)
    assert counted() == (1, [])
    assert contents(ours) == contents(alone)


@pytest.mark.parametrize(
    ("saved_as", "dtype"),
    [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16"), ("float64", "float16")],
)
def test_each_cast_is_torchs_to_the_bit(saved_as: str, dtype: str, tmp_path: Path) -> None:
    kind = transformers.BertModel
    module = kind(kind.config_class(**_TEXT))
    odd = [0.0, -0.0, 1e-8, 6e-5, 65504.0, 7e4, -1e30, float("inf"), float("-inf"), float("nan"), 1 / 3, 1 + 2**-11]
    with torch.no_grad():
        module.embeddings.word_embeddings.weight.view(-1)[: len(odd)] = torch.tensor(odd)
        module.pooler.dense.bias.view(torch.int32)[:2] = torch.tensor([0x7FA00001, -0x000FFFFF], dtype=torch.int32)
    module.to(getattr(torch, saved_as)).save_pretrained(tmp_path)
    alone, ours = both(kind, tmp_path, dtype=dtype)
    assert counted() == (1, [])
    assert contents(ours) == contents(alone)


def test_shards_are_cast_each_and_a_task_s_new_head_is_made(tmp_path: Path) -> None:
    saved("BertModel", tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    alone, ours = both(transformers.BertForSequenceClassification, tmp_path, dtype="float16")
    assert (counted()[0] > 1, counted()[1]) == (True, [])
    assert contents(ours) == contents(alone)


def test_a_module_loaded_in_inference_mode_can_be_trained(tmp_path: Path) -> None:
    kind = saved("LlamaForCausalLM", tmp_path)
    with torch.inference_mode():
        alone, ours = both(kind, tmp_path, dtype=torch.bfloat16)
    assert [each.is_inference() for each in ours.parameters()] == [each.is_inference() for each in alone.parameters()]
    ours(torch.arange(6).view(1, 6)).logits.sum().backward()
    assert counted() == (1, [])


def test_what_a_program_writes_into_its_module_no_other_sees(tmp_path: Path) -> None:
    kind = saved("BertModel", tmp_path)
    alone, ours = both(kind, tmp_path, dtype=torch.float16)
    with torch.no_grad():
        for each in ours.parameters():
            each.add_(1)
    assert contents(kind.from_pretrained(tmp_path, dtype=torch.float16)) == contents(alone)
    assert counted() == (2, [])


ASIDE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"dtype": "float32"}, "nothing is cast"),
    ({}, {"dtype": "auto"}, "nothing is cast"),
    ({}, {"dtype": "float64"}, "an argument that the adapter does not know"),
    ({}, {"dtype": "float16", "disable_mmap": True}, "an argument that the adapter does not know"),
]


@pytest.mark.parametrize(("save", "load", "reason"), ASIDE)
def test_what_is_not_cast_the_library_loads_alone(
    save: dict[str, Any], load: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    alone, ours = both(saved("BertModel", tmp_path, **save), tmp_path, **load)
    assert counted() == (0, [reason])
    assert contents(ours) == contents(alone)


def test_a_checkpoint_that_changes_is_cast_again(tmp_path: Path) -> None:
    kind = saved("BertModel", tmp_path)
    before = kind.from_pretrained(tmp_path, dtype=torch.float16)
    kept = contents(before)
    torch.manual_seed(11)
    kind(kind.config_class(**_TEXT)).save_pretrained(tmp_path)
    alone, ours = both(kind, tmp_path, dtype=torch.float16)
    assert counted() == (2, [])
    assert contents(ours) == contents(alone) != kept
    assert contents(before) == kept


def test_a_checkpoint_that_is_replaced_while_it_is_opened_is_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = saved("BertModel", tmp_path / "m")
    torch.manual_seed(11)
    kind(kind.config_class(**_TEXT)).save_pretrained(tmp_path / "n")
    opens = transformers.modeling_utils.safe_open

    def replaces(path: str, *args: Any, **kwargs: Any) -> Any:
        if (other := tmp_path / "n" / "model.safetensors").exists():
            other.rename(path)
        return opens(path, *args, **kwargs)

    monkeypatch.setattr(transformers.modeling_utils, "safe_open", replaces)
    ours = kind.from_pretrained(tmp_path / "m", dtype=torch.float16)
    assert counted() == (0, ["changed meanwhile"])
    transparent.uninstall()
    assert contents(ours) == contents(kind.from_pretrained(tmp_path / "m", dtype=torch.float16))


def test_errors_are_the_librarys(tmp_path: Path) -> None:
    kind = saved("BertModel", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    found = []
    for install in (False, True):
        transparent.uninstall()
        if install:
            transparent.install()
        with pytest.raises(Exception) as error:
            kind.from_pretrained(tmp_path, dtype=torch.float16)
        found.append((type(error.value), str(error.value)))
    assert found[0] == found[1]


def test_without_a_daemon_the_library_loads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(folder / "nobody"))
    alone, ours = both(saved("BertModel", tmp_path), tmp_path, dtype=torch.float16)
    assert counted() == (0, ["daemon_away"])
    assert contents(ours) == contents(alone)
