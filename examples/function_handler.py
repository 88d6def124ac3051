"""A function as platforms have it: python function_handler.py model.safetensors.

`trims add function_handler.py --model NAME` has the endpoint serve it at `/functions/function_handler`; `trims call
function_handler.py --model NAME --event '{"tensor": "weight"}'` measures its cold and warm starts. Here it is adapted
to a platform that calls `(event, context)`: the model is opened at import, in about a millisecond if the bytes are
there already.
"""

import sys
from pathlib import Path
from typing import Any

import trims


def handler(model: Any, event: dict[str, Any]) -> dict[str, Any]:
    """Answer one event. The model is its weights: name -> read-only view."""
    return {"tensor": event["tensor"], "mean": float(model[event["tensor"]].mean())}


if __name__ == "__main__":
    lambda_function = trims.faas.lambda_handler(handler, Path(sys.argv[1]), deadline_s=60.0)
    for name in ("weight", "bias"):
        print(lambda_function({"tensor": name}, None))
