"""A function-style handler: python function_handler.py model.safetensors.

A platform starts this process, imports it, and calls `handler` for each event. The model is opened once, at import:
a warm start takes about a millisecond, because the bytes are there already.
"""

import sys
import time
from typing import Any

import trims

_began_s = time.perf_counter()
_session = trims.connect(wait_s=30.0)  # the daemon may be just starting, too
_weights = _session.open_file(sys.argv[1], deadline_s=60.0)
COLD_START_MS = (time.perf_counter() - _began_s) * 1e3


def handler(event: dict[str, Any]) -> dict[str, Any]:
    """Answer one event."""
    return {"tensor": event["tensor"], "mean": float(_weights[event["tensor"]].mean())}


if __name__ == "__main__":
    for name in list(_weights)[:3]:
        print(handler({"tensor": name}))
    print(f"{'warm' if _weights.warm else 'cold'} start")
    _weights.close()
    _session.close()
