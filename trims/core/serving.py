"""Forward names to `trims.manifests`, for plug-ins that were written when they were here."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("trims.manifests.serving"), name)
