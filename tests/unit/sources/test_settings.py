"""Settings of sources: made once, and not changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.settings import SourceSettings


def test_settings_cannot_be_changed_by_a_source() -> None:
    settings = SourceSettings(Http(HostPolicy()), {"HF_TOKEN": "t"})
    with pytest.raises(FrozenInstanceError):
        settings.environment = {}  # type: ignore[misc]
