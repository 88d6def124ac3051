"""The contract that trims ships for sources, kept by this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mounted_share import MountedShare

from trims.testing.sources import SourceContract

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class TestMountedShare(SourceContract):
    """All that every source must keep."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @pytest.fixture
    def source(self) -> MountedShare:
        """See `SourceContract.source`."""
        return MountedShare(None)  # type: ignore[arg-type] # it uses no settings

    def put(self, files: Mapping[str, bytes]) -> str:
        """See `SourceContract.put`."""
        for name, data in files.items():
            path = self.folder / "share" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(path.name + ".new")
            unfinished.write_bytes(data)
            unfinished.rename(path)
        one = f"/{next(iter(files))}" if len(files) == 1 else ""
        return f"share://{self.folder}/share{one}"

    def missing(self) -> str:
        """See `SourceContract.missing`."""
        return f"share://{self.folder}/nothing"
