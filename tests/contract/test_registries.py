"""The registry contract on our own registry, in the state folder and in a shared file, and on one of a plug-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from own_parts import declare

from trims.testing.registries import RegistryContract

if TYPE_CHECKING:
    from pathlib import Path


class TestSqlite(RegistryContract):
    def setting(self, folder: Path) -> str:
        return "sqlite"


class TestSqliteInAFileOfItsOwn(RegistryContract):
    def setting(self, folder: Path) -> str:
        return f"sqlite:{folder}/shared/models.db"


class TestARegistryOfAPlugin(RegistryContract):
    survives_restart = False
    keeps_versions = False

    def setting(self, folder: Path) -> str:
        return "memory"

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        declare(monkeypatch, "trims.registries", memory="MemoryRegistry")
