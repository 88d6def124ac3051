"""Plug-ins find the names of `trims.manifests.serving` where they were before."""

from __future__ import annotations

import pytest

from trims.core import serving as before
from trims.manifests import serving


def test_a_name_is_found_where_it_was_before() -> None:
    name = "TensorType"
    assert getattr(before, name) is getattr(serving, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        before.nonsense  # noqa: B018
