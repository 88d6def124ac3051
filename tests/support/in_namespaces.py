"""Marks tests that need namespaces, and says why this machine has none."""

from __future__ import annotations

import pytest
from trims_predictors.sandbox.sandbox import why_no_namespaces

WHY_NOT = why_no_namespaces()
namespaces = pytest.mark.skipif(bool(WHY_NOT), reason=f"no namespaces: {WHY_NOT}")
