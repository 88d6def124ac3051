"""Artifacts and images at addresses, as the resolver asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.file_server import FileServer, file_server
from trims.core.errors import ArtifactError, NotSupportedError
from trims.manifests.manifest import parse_manifest
from trims.sources.downloads import Downloads
from trims.sources.lock import LockFile
from trims.sources.process.fetcher import Fetcher, FetchSettings
from trims.sources.remote import Fetched, Remote
from trims.store.resolve.addresses import Addresses, main_of, server_of
from trims.store.resolve.hashing import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trims.manifests.manifest import Manifest
    from trims.store.catalog import Catalog

DATA = bytes(range(256)) * 999
ANY = Reading()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


@pytest.fixture
def addresses(folder: Path, catalog: Catalog) -> Iterator[Addresses]:
    fetcher = Fetcher(FetchSettings(str(folder / "downloads"), patience_s=0.3))
    downloads = Downloads(folder / "downloads", 1 << 40)
    yield Addresses(Remote(fetcher, LockFile(folder / "trims.lock"), downloads), catalog)
    fetcher.close()


def manifest(uri: str) -> Manifest:
    return parse_manifest({"name": "m", "artifact": {"uri": uri}})


def test_what_is_fetched_is_here_from_then_on_and_its_digests_are_known(
    addresses: Addresses, server: FileServer, catalog: Catalog
) -> None:
    from trims.store.catalog import identity_of

    server.serve("/m.bin", DATA)
    it = manifest(f"{server.url}/m.bin")
    assert not addresses.is_here(it)
    assert addresses.folder_of(str(it.artifact.uri)) is None
    found = addresses.fetch(it, ANY)
    assert addresses.is_here(it)
    assert addresses.folder_of(str(it.artifact.uri)) == found.folder
    path = found.files["m.bin"]
    known = catalog.digests(str(path.absolute()), identity_of(path))
    assert known is not None
    asked = len(server.requests)
    assert addresses.fetch(it, ANY).files == found.files
    assert len(server.requests) == asked


def test_a_store_that_fetches_nothing_says_so(catalog: Catalog) -> None:
    nothing = Addresses(None, catalog)
    assert not nothing.is_here(manifest("s3://b/m"))
    assert nothing.is_here(parse_manifest({"name": "m", "artifact": {"path": "/m"}}))
    with pytest.raises(NotSupportedError, match="s3://b/m"):
        nothing.fetch(manifest("s3://b/m"), ANY)


@pytest.mark.parametrize(
    ("uri", "files", "main"),
    [
        ("s3://b/m", ["any"], "any"),
        ("https://h/m.index.json", ["m.index.json", "m-1.bin"], "m.index.json"),
        ("s3://b/m", ["config.json", "model.safetensors"], "model.safetensors"),
        ("s3://b/m", ["a.pt", "b.pt"], None),
    ],
)
def test_the_weights_are_the_file_that_is_named_or_the_only_one(
    uri: str, files: list[str], main: str | None, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    found = Fetched(uri, uri, {name: tmp_path / name for name in files}, folder=tmp_path)
    if main is None:
        with pytest.raises(ArtifactError, match="several"):
            main_of(manifest(uri), found)
    else:
        assert main_of(manifest(uri), found) == tmp_path / main


def test_looks_hang_on_the_server_or_bucket_of_an_address() -> None:
    assert server_of("https://h:8/a/b") == "https://h:8"
    assert server_of("s3://bucket/a") == "s3://bucket"
