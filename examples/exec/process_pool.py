"""Work in four processes: python process_pool.py fork, spawn or forkserver."""

import multiprocessing
import os
import sys

import numpy as np


def trace(size: int) -> tuple[int, float]:
    """Return this process and the trace of a matrix."""
    return os.getpid(), float(np.trace(np.ones((size, size)) @ np.eye(size)))


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(4) as pool:
        answers = pool.map(trace, range(1, 101), chunksize=1)
    print(sum(value for _, value in answers), os.getpid() in {pid for pid, _ in answers})
