"""The model `dense` in LitServe: `python -m trims_bench.others.litserve_app WEIGHTS PORT`, in its environment."""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np

from trims_bench.small import dense


class Dense(litserve.LitAPI):
    """Takes and gives lists in JSON."""

    def setup(self, device: str) -> None:
        """Read the weights, in the worker."""
        del device
        with np.load(sys.argv[1]) as file:
            self._weights = {name: file[name] for name in file.files}

    # LitServe takes an annotation as the form of a request's parameters.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Turn a request into an array."""
        return np.asarray(request["x"], dtype=np.float32)

    def predict(self, x: Any) -> Any:
        """Run the model."""
        return dense(self._weights, {"x": x})["y"]

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        """Turn an array into lists."""
        return {"y": output.tolist()}


def main() -> None:
    """Serve with one worker, as LitServe recommends for many small requests: with its faster queue."""
    server = litserve.LitServer(Dense(), accelerator="cpu", devices=1, workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
