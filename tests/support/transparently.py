"""Fixtures of tests of transparent loaders: in place, with counts from zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trims_client import shared, transparent
from trims_client.transparent import file_bytes, outcomes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds that a load may wait for a conversion, so that the first one is from shared memory.
_LONG_S = 60.0


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loaders are in place, with counts from zero; files count as written long ago, and small ones, too."""
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.setattr(shared, "_shared", None)
    monkeypatch.setattr(file_bytes, "_REST_S", 0.0)
    monkeypatch.setattr(file_bytes, "_PATIENCE_S", _LONG_S)
    monkeypatch.setattr(file_bytes, "LEAST_BYTES", 1)
    outcomes._shared.clear()
    outcomes._stepped_aside.clear()
    assert transparent.install()
    yield
    transparent.uninstall()
    if shared._shared is not None:
        shared._shared.close()


def counted() -> tuple[int, list[str]]:
    """Loads from shared memory, and the reasons of the others."""
    found = outcomes.report()
    return sum(found.shared.values()), sorted({reason for _, reason in found.stepped_aside})
