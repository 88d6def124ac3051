from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hub_side import environment
from hub_side import source as hub_source
from stub_hub import StubHub, stub_hub

from tests.support.file_server import FileServer, file_server
from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.source import HttpSource
from trims.sources.settings import SourceSettings
from trims.testing.sources import SourceContract

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trims.sources.hub.source import HubSource


class TestHttpSource(SourceContract):
    has_folders = False

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[FileServer]:
        with file_server() as self.serving:
            yield self.serving

    @pytest.fixture
    def source(self) -> Iterator[HttpSource]:
        http = Http(HostPolicy().naming("127.0.0.1"))
        yield HttpSource(SourceSettings(http, {}))
        http.close()

    def put(self, files: Mapping[str, bytes]) -> str:
        ((name, data),) = files.items()
        self.serving.serve(f"/{name}", data, etag=f'"{hash(data)}"')
        return f"{self.serving.url}/{name}"

    def missing(self) -> str:
        return f"{self.serving.url}/nothing.bin"


class TestHubSource(SourceContract):
    has_versions = False  # a commit never changes: its bytes stay there to be read
    has_folders = False  # of a folder, the hub's source chooses what a model needs

    @pytest.fixture(autouse=True)
    def hub(self) -> Iterator[StubHub]:
        with stub_hub() as self.serving:
            yield self.serving

    @pytest.fixture
    def source(self, tmp_path: Path) -> HubSource:
        return hub_source(environment(self.serving, tmp_path))

    def put(self, files: Mapping[str, bytes]) -> str:
        ((name, _),) = files.items()
        self.serving.add("org/model", files)
        return f"hf://org/model/{name}"

    def missing(self) -> str:
        return "hf://org/nothing"
