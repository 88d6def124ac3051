"""The model `dense` in MLServer, which imports this module by the name in `settings`, in the others' environment."""

from __future__ import annotations

from typing import Any

import mlserver
import numpy as np
from mlserver.codecs import NumpyCodec

from trims_bench.small import dense


class Dense(mlserver.MLModel):
    """Dense model, whose weights are the `uri` of its settings."""

    async def load(self) -> bool:
        """Read the weights, in the worker."""
        with np.load(self.settings.parameters.uri) as file:
            self._weights = {name: file[name] for name in file.files}
        return True

    async def predict(self, payload: Any) -> Any:
        """Run the model."""
        output = dense(self._weights, {"x": NumpyCodec.decode_input(payload.inputs[0])})["y"]
        return mlserver.types.InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", output)])
