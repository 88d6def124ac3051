"""Plug-ins find the names of `trims.manifests.serving` where they were before."""

from __future__ import annotations

import pytest

from trims.core import serving as before
from trims.manifests import predictor, serving


@pytest.mark.parametrize(
    ("name", "module"), [("TensorType", serving), ("PredictorSettings", predictor), ("parse_predictor", predictor)]
)
def test_a_name_is_found_where_it_was_before(name: str, module: object) -> None:
    assert getattr(before, name) is getattr(module, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        before.nonsense  # noqa: B018
