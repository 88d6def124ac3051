"""A web application for several workers: gunicorn -w 4 -k uvicorn.workers.UvicornWorker web_app:app."""

import os

import numpy as np
from fastapi import FastAPI

app = FastAPI()
#: Drawn when the application is imported, which each worker does for itself.
START = float(np.random.default_rng().random())


@app.get("/")
def root() -> dict[str, float | int]:
    """Return which worker answers, and its random number."""
    return {"worker": os.getpid(), "start": START}
