"""Loader of SGLang that reads from shared memory: `sglang.Engine(..., load_format=trims.sglang.TrimsModelLoader)`.

`model_loader_extra_config='{"name": "llama"}'` names a model in the store; without it, the checkpoint in the model's
folder is opened by its path. `runtime_dir` is the daemon's, if that is not the usual one. The loader is SGLang's own
but for where weights come from. Proven with the configuration and the loader of SGLang 0.5.23's wheel, on a host
without a device: the engine itself was not run.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from sglang.srt.model_loader.loader import DefaultModelLoader
from trims_client.frameworks.engines import load_ahead, read_options, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: File that SGLang adds to some models, whether or not their index names it.
_OUTSIDE = "mtp.safetensors"


class TrimsModelLoader(DefaultModelLoader):
    """SGLang's loader of checkpoints, with weights from the store."""

    def __init__(self, load_config: Any) -> None:
        self._options = read_options(load_config.model_loader_extra_config)
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config={}))

    def download_model(self, model_config: Any) -> None:
        """Have the daemon bring the weights to memory."""
        load_ahead(self._options, model_config.model_path)

    def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors of the model, and of further checkpoints that it names, which SGLang reads itself."""
        outside = os.path.exists(os.path.join(model_config.model_path, _OUTSIDE))
        if self._options.name is None and (outside or getattr(model, "allow_patterns_overrides", None)):
            raise ValueError(f"{type(model).__name__} chooses files itself; state the model's name in the store")
        self.counter_before_loading_weights = time.perf_counter()
        weights = weights_of(self._options, model_config.model_path)
        if self.load_config.draft_model_idx is not None:
            weights = self._filter_mtp_weights(weights, "", self.load_config.draft_model_idx)
        yield from weights
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)
