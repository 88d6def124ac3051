"""Files inside installed packages stay there."""

from __future__ import annotations

from typing import Any

import pytest

from trims.core.errors import ManifestError
from trims.manifests.packages import parse_package


def test_a_file_in_a_package_is_its_import_name_and_a_path_inside() -> None:
    assert parse_package({"name": "a.b", "path": "c/d"}, "here") == ("a.b", "c/d")


@pytest.mark.parametrize(
    "wrong",
    [{"name": "a"}, {"name": "1", "path": "c"}, {"name": "a", "path": "../c"}, {"name": "a", "path": "/c"}, "a"],
)
def test_a_file_outside_or_without_a_package_is_refused(wrong: Any) -> None:
    with pytest.raises(ManifestError, match="here"):
        parse_package(wrong, "here")
