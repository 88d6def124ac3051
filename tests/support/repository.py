"""Paths of this repository's files, for tests that read or run them."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
