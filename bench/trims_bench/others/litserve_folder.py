"""The folder of a sentence encoder in LitServe: `python -m trims_bench.others.litserve_folder FOLDER PORT`."""

from __future__ import annotations

import os
import sys
from typing import Any

import litserve
import torch

#: Processes that answer, which divide the processors.
_WORKERS = int(os.environ.get("WORKERS", "1"))


class Encoder(litserve.LitAPI):
    """Takes a text in JSON and gives the mean of its tokens' last states, as a unit vector."""

    def setup(self, device: str) -> None:
        """Load the folder, in the worker."""
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // _WORKERS))
        self._tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
        self._module = AutoModel.from_pretrained(sys.argv[1]).eval().to(device)

    # LitServe takes an annotation as the form of a request's parameters.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Return the text of a request."""
        return request["text"]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def predict(self, x: Any) -> Any:
        """Run the model."""
        tokens = self._tokenizer([x], padding=True, truncation=True, return_tensors="pt")
        states, mask = self._module(**tokens).last_hidden_state, tokens["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        """Turn an array into lists."""
        return {"y": output.tolist()}


def main() -> None:
    """Serve with as many workers as are asked for, and LitServe's faster queue."""
    server = litserve.LitServer(Encoder(), accelerator="cpu", devices=1, workers_per_device=_WORKERS, fast_queue=True)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), num_api_servers=1, generate_client_file=False, log_level="warning"
    )


if __name__ == "__main__":
    main()
