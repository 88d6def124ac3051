"""Models of a few kilobytes, whose compute does not hide what is around it. numpy only: other servers run them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    _Arrays = Mapping[str, "np.ndarray[Any, Any]"]

#: Extents of `dense`.
WIDTH, HIDDEN, CLASSES = 64, 256, 10


def write_weights(path: Path) -> Path:
    """Seeded random weights of both models, as an .npz file."""
    chance = np.random.default_rng(7)
    shapes = {"first": (WIDTH, HIDDEN), "second": (HIDDEN, CLASSES), "colours": (3, CLASSES)}
    made: dict[str, Any] = {name: chance.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    np.savez(path, **made)
    return path


def pooled(weights: _Arrays, inputs: _Arrays) -> dict[str, Any]:
    """Scores of images from the mean of each colour: `x` [n, 3, height, width] gives `y` [n, 10]."""
    return {"y": inputs["x"].mean(axis=(2, 3)) @ weights["colours"]}


def dense(weights: _Arrays, inputs: _Arrays) -> dict[str, Any]:
    """Scores by two dense layers: `x` [n, 64] gives `y` [n, 10]."""
    return {"y": np.maximum(inputs["x"] @ weights["first"], 0) @ weights["second"]}


def manifest(name: str, path: Path, function: str, shape: list[int], **predictor: object) -> dict[str, Any]:
    """Return the manifest of one of these models, for `trims add`."""
    return {
        "name": name,
        "framework": {"name": "numpy"},
        "artifact": {"path": str(path)},
        "inputs": [{"name": "x", "dtype": "FP32", "shape": shape}],
        "outputs": [{"name": "y", "dtype": "FP32", "shape": [-1, CLASSES]}],
        "predictor": {"function": f"trims_bench.small:{function}", "threads": 1, **predictor},
    }
