from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.file_server import FileServer, file_server
from trims.sources.hosts import HostPolicy
from trims.sources.http import Http
from trims.sources.http_source import HttpSource
from trims.sources.settings import SourceSettings
from trims.testing.sources import SourceContract

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
