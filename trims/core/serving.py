"""Forward names to `trims.manifests`, for plug-ins that were written when they were here."""

from __future__ import annotations

import importlib
from typing import Any

#: Names that are in another module than `trims.manifests.serving` by now.
_ELSEWHERE = {"PredictorSettings": "predictor", "parse_predictor": "predictor"}


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module(f"trims.manifests.{_ELSEWHERE.get(name, 'serving')}"), name)
