"""Options of a manifest for Hugging Face models."""

from __future__ import annotations

from typing import Any

import pytest
from trims_predictors.frameworks.transformers.options import TEXT, check_options

from trims.core.errors import NotSupportedError


@pytest.mark.parametrize("given", [{}, {"max_length": 3}, {"truncation": False, "max_text_bytes": 10}])
def test_options_of_the_task_are_taken(given: dict[str, Any]) -> None:
    check_options(given, TEXT, "fill-mask")


@pytest.mark.parametrize(
    "given", [{"x": 1}, {"max_length": 0}, {"max_length": "3"}, {"max_length": True}, {"truncation": 1}]
)
def test_others_are_refused_with_their_name(given: dict[str, Any]) -> None:
    with pytest.raises(NotSupportedError, match=next(iter(given))):
        check_options(given, TEXT, "fill-mask")
