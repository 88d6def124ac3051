"""Answer from eight processes that load one checkpoint each: python model_pool.py MODEL.bin, then numbers, a line each.

A checkpoint is a dictionary of tensors. Each process answers with the sum of the number times every weight.
"""

import multiprocessing
import sys
from typing import Any

import torch

SIZE = 8
state: dict[str, torch.Tensor] = {}


def load(path: str, together: Any) -> None:
    """Load the checkpoint into a process of the pool."""
    state.update(torch.load(path))
    together.wait()


def score(number: float) -> float:
    """Return what the model makes of a number."""
    return sum(float((weight * number).sum()) for weight in state.values())


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with context.Pool(SIZE, load, (sys.argv[1], context.Barrier(SIZE))) as pool:
        for line in sys.stdin:
            print(*pool.map(score, [float(line)] * SIZE, chunksize=1), flush=True)
