"""Plug-ins find the names of `trims.manifests.manifest` where they were before."""

from __future__ import annotations

import pytest

from trims.core import manifest as before
from trims.manifests import manifest


def test_a_name_is_found_where_it_was_before() -> None:
    name = "parse_manifest"
    assert getattr(before, name) is getattr(manifest, name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        before.nonsense  # noqa: B018
