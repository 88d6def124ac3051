"""Loader of vLLM that reads from shared memory: --load-format trims, with no copy of the checkpoint for each worker.

`--model-loader-extra-config '{"name": "llama"}'` names a model in the store; without it, the checkpoint in the model's
folder is opened by its path. `runtime_dir` is the daemon's, if that is not the usual one. The loader is vLLM's own but
for where weights come from. vLLM copies them into parameters of its own: nothing on a device is held by the daemon.

vLLM finds it by the entry point `vllm.general_plugins`. Proven with the registry, the configuration and the loader of
vLLM 0.33's wheel, on a host without a device: the engine itself was not run.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from trims_client.frameworks.engines import load_ahead, read_options, weights_of
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Name of the load format.
LOAD_FORMAT = "trims"


class TrimsModelLoader(DefaultModelLoader):
    """vLLM's loader of checkpoints, with weights from the store."""

    def __init__(self, load_config: Any) -> None:
        self._options = read_options(load_config.model_loader_extra_config)
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config={}))

    def download_model(self, model_config: Any) -> None:
        """Have the daemon bring the weights to memory."""
        load_ahead(self._options, model_config.model)

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors of the model, and of further checkpoints that it names, which vLLM reads itself."""
        if getattr(model, "allow_patterns_overrides", None) and self._options.name is None:
            raise ValueError(f"{type(model).__name__} chooses files itself; state the model's name in the store")
        self.counter_before_loading_weights = time.perf_counter()
        yield from weights_of(self._options, model_config.model)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)


def register() -> None:
    """Make the load format known to vLLM; may be called again."""
    register_model_loader(LOAD_FORMAT)(TrimsModelLoader)
