from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ArtifactError, ArtifactNotFoundError, DigestMismatchError
from trims.sources.process.fetcher import Fetcher, FetchSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.file_server import FileServer


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Fetcher]:
    made = Fetcher(FetchSettings(str(tmp_path)))
    yield made
    made.close()


def fetched(fetcher: Fetcher, address: str, **more: Any) -> dict[str, bytes]:
    """Return the files that a fetch of an address brings, by name."""
    files = fetcher.do("fetch", {"address": address, "named": True, **more})["files"]
    return {file["name"]: Path(file["path"]).read_bytes() for file in files}


def serve_index(server: FileServer, shards: dict[str, str]) -> bytes:
    index = json.dumps({"weight_map": shards}).encode()
    server.serve("/m/model.safetensors.index.json", index)
    return index


def test_an_index_brings_the_shards_that_it_names(fetcher: Fetcher, server: FileServer) -> None:
    index = serve_index(server, {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"})
    server.serve("/m/one.safetensors", b"first")
    server.serve("/m/two.safetensors", b"second")
    found = fetched(fetcher, f"{server.url}/m/model.safetensors.index.json")
    assert found == {
        "model.safetensors.index.json": index, "one.safetensors": b"first", "two.safetensors": b"second",
    }  # fmt: skip


def test_an_index_that_names_files_elsewhere_is_refused(fetcher: Fetcher, server: FileServer) -> None:
    serve_index(server, {"a": "../../etc/passwd"})
    with pytest.raises(ArtifactError, match="leaves its folder"):
        fetched(fetcher, f"{server.url}/m/model.safetensors.index.json")


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"not JSON", b'{"weight_map": [1]}', b'{"weight_map": {"a": 1}}'])
def test_an_index_that_is_none_is_an_error(fetcher: Fetcher, server: FileServer, data: bytes) -> None:
    server.serve("/m/model.safetensors.index.json", data)
    with pytest.raises(ArtifactError, match="no index"):
        fetched(fetcher, f"{server.url}/m/model.safetensors.index.json")


def test_a_shard_that_is_missing_is_named(fetcher: Fetcher, server: FileServer) -> None:
    serve_index(server, {"a": "one.safetensors"})
    with pytest.raises(ArtifactNotFoundError, match=r"one\.safetensors"):
        fetched(fetcher, f"{server.url}/m/model.safetensors.index.json")


def test_files_that_a_manifest_states_come_along_and_are_proven(fetcher: Fetcher, server: FileServer) -> None:
    server.serve("/m/model.onnx", b"graph")
    server.serve("/m/weights.data", b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    stated = {"stated": ["weights.data"], "expected": {"weights.data": {"nbytes": None, "checksums": {}}}}
    stated["expected"]["weights.data"]["checksums"] = {"sha256": digest}  # type: ignore[index, call-overload]
    assert fetched(fetcher, f"{server.url}/m/model.onnx", **stated) == {
        "model.onnx": b"graph", "weights.data": b"weights",
    }  # fmt: skip
    server.serve("/m/weights.data", b"others!", etag='"v2"')
    with pytest.raises(DigestMismatchError):
        fetched(fetcher, f"{server.url}/m/model.onnx", **stated)
