"""An inference engine's side of a test: its own loader, or what is recorded of it, loads a small model of a folder.

python engine_side.py ENGINE WAY FOLDER: `wheel` has the engine's modules on the path, without what needs a device;
`recorded` has none of them.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

#: Modules of the loader, the configuration, and what stands for them in `recorded`.
HOMES = {
    "vllm": ("vllm.model_executor.model_loader.default_loader", "vllm.config.load", "vllm.model_executor.model_loader"),
    "sglang": ("sglang.srt.model_loader.loader", "sglang.srt.configs.load_config", "sglang.srt.model_loader.loader"),
}
#: Parameters of what the loaders call, and of what calls them: of vLLM 0.33 and SGLang 0.5.23.
RECORDED = {
    "vllm": {
        "__init__": ["self", "load_config"],
        "download_model": ["self", "model_config"],
        "get_all_weights": ["self", "model_config", "model"],
        "load_weights": ["self", "model", "model_config"],
        "get_external_weight_memory": ["self", "vllm_config"],
        "_get_weights_iterator": ["self", "source"],
    },
    "sglang": {
        "__init__": ["self", "load_config"],
        "download_model": ["self", "model_config"],
        "_get_all_weights": ["self", "model_config", "model"],
        "load_weights_only": ["model", "weights", "target_device"],
        "_filter_mtp_weights": ["weights_iterator", "prefix", "draft_model_idx"],
    },
}
#: Libraries for pictures and devices that no loader needs, and the engines import.
MISSING = {"vllm": {"torchvision"}, "sglang": {"torchvision", "sgl_kernel"}}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of which anything can be asked."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return MagicMock(__path__=[], __spec__=spec, __name__=spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def put_missing(engine: str) -> None:
    """Have what the engine's modules import found, once transformers has seen that it is not there."""
    available = importlib.import_module("transformers.utils")
    for name in vars(available):
        if name.startswith("is_torchvision") and name.endswith("available"):
            getattr(available, name)()
    sys.meta_path.append(StandIns(MISSING[engine]))


@dataclasses.dataclass
class RecordedConfig:
    """Configuration of loads, of either engine."""

    load_format: Any = "auto"
    model_loader_extra_config: Any = None
    draft_model_idx: int | None = None


class RecordedLoader:
    """Loader of checkpoints, of either engine."""

    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    def download_model(self, model_config: Any) -> None:
        raise NotImplementedError

    def get_all_weights(self, model_config: Any, model: Any) -> Any:
        raise NotImplementedError

    _get_all_weights = get_all_weights

    def load_weights(self, model: Any, model_config: Any) -> None:
        model.load_weights(self.get_all_weights(model_config, model))

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        return 0

    def _get_weights_iterator(self, source: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def load_weights_only(model: Any, weights: Any, target_device: Any) -> None:
        model.load_weights(weights)

    @staticmethod
    def _filter_mtp_weights(weights_iterator: Any, prefix: str, draft_model_idx: int) -> Any:
        raise NotImplementedError


def put_recorded(engine: str) -> None:
    """Have modules found that are what is recorded of an engine."""
    formats: dict[str, Any] = {}

    def register_model_loader(load_format: str) -> Any:
        return lambda loader: formats.setdefault(load_format, loader)

    def get_model_loader(load_config: Any) -> Any:
        return formats.get(load_config.load_format, load_config.load_format)(load_config)

    for home in HOMES[engine]:
        parts = home.split(".")
        names = [".".join(parts[: length + 1]) for length in range(len(parts))]
        for name in names:
            sys.modules.setdefault(name, ModuleType(name)).__path__ = []
        vars(sys.modules[home]).update(
            LoadConfig=RecordedConfig, DefaultModelLoader=RecordedLoader, get_model_loader=get_model_loader,
            register_model_loader=register_model_loader,
        )  # fmt: skip


class Model(torch.nn.Linear):
    """A model as engines have them, which writes into what it is given."""

    def load_weights(self, weights: Any) -> set[str]:
        loaded = set()
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)
            tensor.add_(1)
            loaded.add(name)
        return loaded


def load(engine: str, loader: Any, config: Any) -> Model:
    """Load a model by the engine's own code."""
    model = Model(512, 1024)
    if engine == "sglang":
        loader.load_weights_only(model, loader._get_all_weights(config, model), torch.device("cpu"))
        return model
    if hasattr(sys.modules["vllm"], "__file__"):
        from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
            loader.load_weights(model, config)
    else:
        loader.load_weights(model, config)
    return model


def main(engine: str, way: str, folder: str) -> None:
    (put_missing if way == "wheel" else put_recorded)(engine)
    home, configs, loaders = map(importlib.import_module, HOMES[engine])
    ours = importlib.import_module(f"trims.{engine}")
    if engine == "vllm":
        ours.register()

    def loader(**options: str) -> Any:
        stated = "trims" if engine == "vllm" else ours.TrimsModelLoader
        return loaders.get_model_loader(configs.LoadConfig(load_format=stated, model_loader_extra_config=options))

    config = SimpleNamespace(
        model=folder, model_path=folder, quantization=None, is_moe=False, multimodal_config=None, revision=None
    )
    made = loader()
    made.download_model(config)
    found = [load(engine, made, config).state_dict() for _ in range(2)]
    refused = []
    for options in ({"nme": "x"}, {"name": "no-such-model"}):
        try:
            load(engine, loader(**options), config)
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
    base = home.DefaultModelLoader
    report = {
        "sums": [{name: float(tensor.double().sum()) for name, tensor in state.items()} for state in found],
        "is_one": isinstance(made, base),
        "external": made.get_external_weight_memory(None) if engine == "vllm" else 0,
        "refused": refused,
        "parameters": {name: list(inspect.signature(getattr(base, name)).parameters) for name in RECORDED[engine]},
    }
    sys.stdout.write(f"\n{json.dumps(report)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
