"""Answer from vectors.npy: gunicorn -w 4 -k uvicorn.workers.UvicornWorker web_app:app, several workers of one file."""

import os

import numpy as np
from fastapi import FastAPI

app = FastAPI()
#: Drawn when the application is imported, which each worker does for itself.
START = float(np.random.default_rng().random())
VECTORS = np.load("vectors.npy")


@app.get("/")
def root() -> dict[str, float | int]:
    """Return which worker answers, its random number, and the sum of the vectors."""
    return {"worker": os.getpid(), "start": START, "sum": float(VECTORS.sum())}
