"""The scheme hf: addresses, what is asked of the hub, what of the cache, and errors that say what to do."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hub_side import NAME, SCAN, content, environment, fetch, look, names, real_client, source
from looking import wait_until
from stub_hub import StubHub, apart, stub_hub

from trims.core.errors import (
    AddressRefusedError,
    ArtifactError,
    ArtifactNotFoundError,
    CallerError,
    NotSupportedError,
    SourceRefusedError,
    SourceUnavailableError,
    TrimsError,
)
from trims.sources.hub.source import HubAddress
from trims.sources.process.fetcher import Fetcher, FetchSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

WEIGHTS = bytes(range(256)) * 1024
FILES = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "README.md": b"# Model", "tokenizer.json": b"{}"}
WANTED = ["config.json", "model.safetensors", "tokenizer.json"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub() as made:
        yield made


@pytest.fixture
def variables(hub: StubHub, tmp_path: Path) -> dict[str, str]:
    return environment(hub, tmp_path)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://org/name", ("org/name", "main", "")),
        ("hf://models/org/name", ("org/name", "main", "")),
        ("hf://org/name@v1.0", ("org/name", "v1.0", "")),
        ("hf://org/name@v1/onnx/model.onnx", ("org/name", "v1", "onnx/model.onnx")),
        ("hf://org/name:v1", ("org/name", "v1", "")),
        ("hf://org/name@refs/pr/3/a.json", ("org/name", "refs/pr/3", "a.json")),
        ("hf://org/name@feature%2Fx/a.json", ("org/name", "feature/x", "a.json")),
        ("hf://org/name/a@b.txt", ("org/name", "main", "a@b.txt")),
        ("hf://Org-1/na.me_2/", ("Org-1/na.me_2", "main", "")),
    ],
)
def test_an_address_names_repository_revision_and_path(address: str, expected: tuple[str, str, str]) -> None:
    found = HubAddress.parse(address)
    assert (found.name, found.revision, found.path) == expected
    assert HubAddress.parse(str(found)) == found


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("hf://datasets/org/name", NotSupportedError),
        ("hf://spaces/org/name", NotSupportedError),
        ("hf://buckets/org/name", NotSupportedError),
        ("hf://model/org/name", CallerError),
        ("hf://gpt2", CallerError),
        ("hf://", CallerError),
        ("https://huggingface.co/org/name", CallerError),
        ("hf://org/name@", CallerError),
        ("hf://org/name@../../etc", CallerError),
        ("hf://org/name@..%2F..%2Fx", CallerError),
        ("hf://org/name/../x", CallerError),
        ("hf://org/name//x", CallerError),
        ("hf://org/na--me", CallerError),
        ("hf://../name", CallerError),
        ("hf://org/name\n", CallerError),
    ],
)
def test_an_address_that_names_no_model_is_refused(address: str, error: type[TrimsError]) -> None:
    with pytest.raises(error) as raised:
        HubAddress.parse(address)
    assert type(raised.value) is error


def test_a_branch_is_pinned_to_its_commit_with_the_files_it_needs(hub: StubHub, variables: dict[str, str]) -> None:
    commit = hub.add(NAME, FILES)
    with contextlib.closing(look(variables)) as opened:
        assert opened.pinned == f"hf://{NAME}@{commit}"
        assert names(opened) == WANTED
        assert opened.notes == []
        assert opened.destination is opened.cached
        rows = {file.name: (file.nbytes, file.version, dict(file.checksums)) for file in opened.files}
        contents = hub.repositories[NAME].commits[commit]
        weights, config = contents["model.safetensors"], contents["config.json"]
        assert rows["model.safetensors"] == (len(WEIGHTS), weights.sha256, {"sha256": weights.sha256})
        assert rows["config.json"] == (8, config.blob_id, {"git-sha1": config.blob_id})
        assert [content(opened, file) for file in opened.files] == [FILES[name] for name in WANTED]
    assert len(hub.asked("/revision/")) == len(hub.asked("/tree/")) == 1


def test_a_listing_of_seven_pages_is_read_to_its_end(tmp_path: Path) -> None:
    with stub_hub(page_files=2) as hub:
        hub.add(NAME, FILES | {f"more/{number}.txt": b"" for number in range(9)})
        with contextlib.closing(look(environment(hub, tmp_path))) as opened:
            assert names(opened) == WANTED
        assert len(hub.asked("/tree/")) == 7


def test_the_token_stays_with_the_hub_when_files_are_redirected(hub: StubHub, variables: dict[str, str]) -> None:
    hub.add(NAME, FILES, private=True)
    with pytest.raises(ArtifactNotFoundError, match="HF_TOKEN"):
        look(variables)
    fetch({**variables, "HF_TOKEN": "hf_known"})
    assert [request.headers.get("Authorization") for request in hub.asked("/resolve/")] == ["Bearer hf_known"] * 3
    assert len(hub.asked("/repos/")) == 4  # the delivery network was asked for four parts
    assert hub.cdn_tokens == []


def test_a_token_in_a_file_is_used(hub: StubHub, variables: dict[str, str], tmp_path: Path) -> None:
    hub.add(NAME, FILES, private=True)
    (tmp_path / "token").write_text("hf_known\n")
    with contextlib.closing(look({**variables, "HF_TOKEN_PATH": str(tmp_path / "token")})) as opened:
        assert names(opened) == WANTED


# fault (hub): a delivery signature ends -> nothing; the token stays with the hub
def test_a_signature_that_ends_is_asked_for_again(hub: StubHub, variables: dict[str, str]) -> None:
    hub.add(NAME, FILES)
    with contextlib.closing(look(variables)) as opened:
        weights = opened.files[1]
        assert content(opened, weights) == WEIGHTS
        hub.expire_signatures()
        assert content(opened, weights) == WEIGHTS
    assert len(hub.asked("/resolve/")) == 2


def test_a_location_is_good_for_as_long_as_its_signature(tmp_path: Path) -> None:
    with stub_hub(signed_for_s=500) as hub:
        hub.add(NAME, FILES)
        with contextlib.closing(look(environment(hub, tmp_path))) as opened:
            location = opened._locate(opened.files[1])
            assert location.good_for_s is not None
            assert 490 <= location.good_for_s <= 500
            assert location.headers == {}
            assert opened._locate(opened.files[0]).good_for_s is None  # the hub's own, for which the token is


def test_a_redirect_to_a_private_host_is_refused(tmp_path: Path) -> None:
    with stub_hub() as hub:
        hub.add(NAME, FILES)
        hub.cdn_url = hub.cdn_url.replace("127.0.0.1", "127.0.0.2")
        with contextlib.closing(look(environment(hub, tmp_path))) as opened, pytest.raises(AddressRefusedError):
            content(opened, opened.files[1])


@pytest.mark.parametrize(
    ("address", "token", "error", "said"),
    [
        ("hf://org/none", "", ArtifactNotFoundError, "org/none"),
        ("hf://org/none", "hf_known", ArtifactNotFoundError, "org/none"),
        (f"hf://{NAME}@v9", "", ArtifactNotFoundError, "v9"),
        (f"hf://{NAME}/none.json", "", ArtifactNotFoundError, "none.json"),
        (f"hf://{NAME}", "hf_wrong", SourceRefusedError, "hf auth login"),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    hub: StubHub, variables: dict[str, str], address: str, token: str, error: type[TrimsError], said: str
) -> None:
    hub.add(NAME, FILES)
    with pytest.raises(error, match=said) as raised:
        look({**variables, "HF_TOKEN": token}, address)
    assert type(raised.value) is error
    assert "org/" in str(raised.value)


# fault (hub): gated, private or missing -> `source_refused`, `artifact_not_found` with how to get access
@pytest.mark.parametrize("token", ["", "hf_known"])
def test_a_gated_model_names_its_terms(hub: StubHub, variables: dict[str, str], token: str) -> None:
    hub.add(NAME, FILES, gated=True, readers={"hf_reader"})
    hub.tokens.add("hf_reader")
    with pytest.raises(SourceRefusedError, match=f"{hub.url}/{NAME}"):
        fetch({**variables, "HF_TOKEN": token})
    fetch({**variables, "HF_TOKEN": "hf_reader"})


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_is_busy_may_be_asked_again(hub: StubHub, variables: dict[str, str], status: int) -> None:
    hub.add(NAME, FILES)
    hub.faults.status, hub.faults.failures, hub.faults.retry_after = status, 1, "7"
    with pytest.raises(SourceUnavailableError) as raised:
        look(variables)
    assert raised.value.retry_after_s == 7
    with contextlib.closing(look(variables)) as opened:
        assert names(opened) == WANTED


def test_a_server_that_is_no_hub_is_named_with_its_setting(hub: StubHub, variables: dict[str, str]) -> None:
    hub.faults.status, hub.faults.failures = 200, 1  # an answer, and not a hub's
    with pytest.raises(ArtifactError, match="HF_ENDPOINT"):
        look(variables)


# fault (hub): a path that leaves its folder -> `bad_artifact`; nothing is fetched
@pytest.mark.parametrize("path", ["../evil.json", "/etc/evil.json", "a/../../evil.json", "a\\..\\b.json", "./b.json"])
def test_a_path_that_leaves_the_folder_is_not_fetched(hub: StubHub, variables: dict[str, str], path: str) -> None:
    hub.add(NAME, FILES | {path: b"{}"})
    with pytest.raises(ArtifactError, match=r"leaves its folder"):
        look(variables)


def test_a_commit_in_the_cache_costs_no_request(hub: StubHub, variables: dict[str, str]) -> None:
    commit = hub.add(NAME, FILES)
    folder = fetch(variables)
    hub.requests.clear()
    with contextlib.closing(look(variables, f"hf://{NAME}@{commit}")) as opened:
        assert opened.notes == []
        found = [opened.cached.find(file) for file in opened.files]
        assert [path.read_bytes() for path in found if path] == [FILES[name] for name in WANTED]
        assert opened.cached.finish(opened.files) == folder
    assert hub.requests == []


def test_a_snapshot_of_the_hubs_client_costs_no_request_and_no_byte(hub: StubHub, variables: dict[str, str]) -> None:
    commit = hub.add(NAME, FILES)
    folder = real_client(variables, f"found = hf.snapshot_download({NAME!r})")
    hub.requests.clear()
    for address in (f"hf://{NAME}@{commit}", f"hf://{NAME}@{commit}/model.safetensors"):
        assert str(fetch(variables, address)) == folder
    assert str(fetch({**variables, "HF_HUB_OFFLINE": "1"})) == folder
    assert hub.requests == []


def test_one_file_of_the_hubs_client_costs_no_request(hub: StubHub, variables: dict[str, str]) -> None:
    commit = hub.add(NAME, FILES)
    path = real_client(variables, f"found = hf.hf_hub_download({NAME!r}, 'model.safetensors')")
    hub.requests.clear()
    folder = fetch(variables, f"hf://{NAME}@{commit}/model.safetensors")
    assert str(folder / "model.safetensors") == path
    assert hub.requests == []
    with pytest.raises(ArtifactNotFoundError, match=r"tokenizer\.json"):
        look({**variables, "HF_HUB_OFFLINE": "yes"}, f"hf://{NAME}@{commit}/tokenizer.json")


# fault (hub): `HF_HUB_OFFLINE` -> what the cache has; else `artifact_not_found` with the files
@pytest.mark.parametrize("value", ["1", "ON", "yes", "True"])
def test_offline_the_missing_files_are_named_and_no_one_is_asked(
    hub: StubHub, variables: dict[str, str], value: str
) -> None:
    hub.add(NAME, FILES)
    with contextlib.closing(look(variables)) as opened:
        opened.cached.partial(opened.files[0])
        opened.cached.finish([])
    hub.requests.clear()
    with pytest.raises(ArtifactNotFoundError) as raised:
        look({**variables, "HF_HUB_OFFLINE": value})
    assert all(name in str(raised.value) for name in (*WANTED, NAME, "HF_HUB_OFFLINE"))
    assert hub.requests == []


# fault (hub): the hub is away, stalls or is busy -> the cached revision with a note; else `source_unavailable` with
# what lacks
def test_a_hub_that_is_away_leaves_what_the_cache_has_with_a_note(hub: StubHub, variables: dict[str, str]) -> None:
    commit = hub.add(NAME, FILES)
    fetch(variables)
    hub.close()
    with contextlib.closing(look(variables)) as opened:
        assert opened.pinned == f"hf://{NAME}@{commit}"
        (note,) = opened.notes
        assert "main" in note
    with pytest.raises(SourceUnavailableError, match="v2"):
        look(variables, f"hf://{NAME}@v2")


def test_a_hub_that_stalls_is_left_after_its_timeout(variables: dict[str, str], hub: StubHub) -> None:
    hub.add(NAME, FILES)
    fetch(variables)
    hub.faults.silences = 1
    with contextlib.closing(look({**variables, "HF_HUB_ETAG_TIMEOUT": "1"})) as opened:
        (note,) = opened.notes
        assert "for 1 s" in note


def test_a_branch_that_moved_is_fetched_beside_its_older_commit(hub: StubHub, variables: dict[str, str]) -> None:
    first = hub.add(NAME, FILES)
    old = fetch(variables)
    second = hub.add(NAME, FILES | {"config.json": b'{"a": 2}'})
    hub.sent.clear()
    new = fetch(variables)
    assert fetch(variables) == new
    assert len(hub.asked("/tree/")) == 2  # the listing of a commit never changes
    assert (old.name, new.name) == (first, second)
    assert (new / "config.json").read_bytes() == b'{"a": 2}'
    assert (old / "config.json").read_bytes() == FILES["config.json"]
    assert hub.sent == {"config.json": 8}  # the other bytes are there
    assert (old / "model.safetensors").resolve() == (new / "model.safetensors").resolve()


def test_shards_of_an_index_are_fetched_and_no_others(hub: StubHub, variables: dict[str, str]) -> None:
    shards = {f"model-0000{number}-of-00002.safetensors": b"%d" % number * 99 for number in (1, 2)}
    index = json.dumps({"weight_map": {"a": sorted(shards)[0], "b": sorted(shards)[1]}}).encode()
    hub.add(NAME, {**shards, "model.safetensors.index.json": index, "config.json": b"{}", "pytorch_model.bin": b"0"})
    folder = fetch(variables)
    found = sorted(path.name for path in folder.iterdir())
    assert found == ["config.json", *sorted(shards), "model.safetensors.index.json"]
    hub.requests.clear()
    assert fetch({**variables, "HF_HUB_OFFLINE": "1"}) == folder
    assert hub.requests == []


def test_a_file_in_a_folder_is_named_by_its_last_part(hub: StubHub, variables: dict[str, str]) -> None:
    commit = hub.add(NAME, FILES | {"onnx/model.onnx": b"onnx", "onnx/model.onnx_data": b"data", "onnx/q.onnx": b"q"})
    address = f"hf://{NAME}@main/onnx/model.onnx"
    with contextlib.closing(look(variables, address)) as opened:
        assert opened.pinned == f"hf://{NAME}@{commit}/onnx/model.onnx"
        assert names(opened) == ["model.onnx", "model.onnx_data"]
    folder = fetch(variables, address)
    assert folder.parts[-2:] == (commit, "onnx")
    assert (folder / "model.onnx_data").read_bytes() == b"data"


def test_a_repository_without_weights_names_what_it_has(hub: StubHub, variables: dict[str, str]) -> None:
    hub.add(NAME, {"config.json": b"{}", "model.gguf": b"gguf"})
    with pytest.raises(NotSupportedError, match=rf"{NAME}.*model\.gguf"):
        look(variables)
    with contextlib.closing(look(variables, f"hf://{NAME}/model.gguf")) as opened:
        assert names(opened) == ["model.gguf"]


@pytest.fixture
def fetcher(variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fetcher]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = Fetcher(FetchSettings(str(tmp_path / "downloads"), patience_s=20.0))
    yield made
    made.close()


def test_a_transfer_fills_the_hubs_cache_and_leaves_nothing_else(
    hub: StubHub, fetcher: Fetcher, variables: dict[str, str], tmp_path: Path
) -> None:
    commit = hub.add(NAME, FILES | {"merges.txt": b""})
    answer = fetcher.do("fetch", {"address": f"hf://{NAME}"})
    assert answer["pinned"] == f"hf://{NAME}@{commit}"
    assert [file["name"] for file in answer["files"]] == sorted([*WANTED, "merges.txt"])
    assert all(file["checksums"].items() <= file["found"].items() for file in answer["files"] if file["nbytes"])
    cache = tmp_path / "hf" / "hub"
    assert [path for path in cache.rglob("*") if "trims" in path.name] == []
    assert real_client(variables, SCAN) == []
    hub.requests.clear()
    again = fetcher.do("fetch", {"address": answer["pinned"]})
    assert again["folder"] == answer["folder"]
    assert hub.requests == []


# fault (hub): a transfer is killed again and again -> nothing; it goes on, and the hub's client sees no half file
def test_a_transfer_that_is_killed_again_and_again_fetches_hardly_a_byte_twice(
    hub: StubHub, fetcher: Fetcher, tmp_path: Path
) -> None:
    data = random.Random(3).randbytes(24 << 20)
    hub.add(NAME, {"model.safetensors": data})
    ended = threading.Event()

    def moved(least: int) -> bool:
        return ended.is_set() or any(job.moved.done_bytes > least for job in fetcher.running())

    def kill() -> None:
        for share in (1, 2, 3, 4, 5):
            wait_until(functools.partial(moved, share * len(data) // 6), "bytes come")
            if not ended.is_set() and (pid := fetcher.pid) is not None:
                os.kill(pid, signal.SIGKILL)

    hub.faults.bytes_per_s = 4 << 20
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        answer = fetcher.do("fetch", {"address": f"hf://{NAME}"})
    finally:
        ended.set()
        killer.join()
    assert Path(answer["files"][0]["path"]).read_bytes() == data
    assert hub.sent["model.safetensors"] <= 1.5 * len(data)  # 3.5 if each transfer began from nothing
    assert [path for path in (tmp_path / "hf" / "hub").rglob("*") if "trims" in path.name] == []


def test_a_hub_in_a_process_of_its_own_serves_a_folder(tmp_path: Path) -> None:
    for name, data in FILES.items():
        path = tmp_path / "models" / NAME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with apart(tmp_path / "models") as hub:
        hub.set_faults(break_after=70_000, breaks=1)
        variables = environment(hub, tmp_path)
        with contextlib.closing(look(variables)) as opened:
            filling = opened.fill(opened.files[1], [(0, memoryview(bytearray(len(WEIGHTS))))])
            with pytest.raises(SourceUnavailableError):
                next(filling)
        assert hub.state()["sent"] == {"model.safetensors": 70_000}
        assert (fetch(variables) / "model.safetensors").read_bytes() == WEIGHTS


def test_the_commit_of_an_opened_address_stays_when_the_branch_moves(hub: StubHub, variables: dict[str, str]) -> None:
    hub.add(NAME, FILES)
    with contextlib.closing(source(variables).open(f"hf://{NAME}")) as opened:
        hub.add(NAME, FILES | {"config.json": b"[]", "model.safetensors": b"other"})
        assert content(opened, opened.files[0]) == FILES["config.json"]
        assert content(opened, opened.files[1]) == WEIGHTS
