from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from s3_server import s3_client, s3_server

from tests.support.file_server import FileServer, file_server
from trims.sources.http.hosts import HostPolicy
from trims.sources.process import job as job_module
from trims.sources.process.job import Surroundings
from trims.sources.transfer.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.transfer_jobs import Files


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    return Surroundings(Limits(patience_s=3.0), HostPolicy(), tmp_path / "downloads", {})


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Give the address of an S3 server with an empty `bucket`."""
    with s3_server() as url, s3_client(url) as client:
        client.create_bucket(Bucket="bucket")
        yield url


@pytest.fixture
def client(endpoint: str) -> Iterator[Any]:
    """Give a client of AWS's own, to look at what the server has."""
    with s3_client(endpoint) as made:
        yield made


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that has the next job look at files of the test's own."""

    def use(files: Files) -> Files:
        monkeypatch.setattr(job_module, "source_of", lambda address, settings: files)
        return files

    return use
