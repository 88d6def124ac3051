"""The hub's cache: shared with the hub's own client in both directions, and what other programs leave in it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hub_side import NAME, SCAN, content, environment, fetch, look, real_client, tree
from looking import wait_until
from repository import SUPPORT
from stub_hub import StubHub, stub_hub

from trims.core.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    DeadlineError,
    NoSpaceError,
    NotSupportedError,
    PermissionDeniedError,
)
from trims.sources.base import RemoteFile
from trims.sources.hub import cache as hub_cache
from trims.sources.hub.cache import HubCache

if TYPE_CHECKING:
    from collections.abc import Iterator

WEIGHTS = bytes(range(256)) * 1024
FILES = {"config.json": b'{"a": 1}', "1_Pooling/config.json": b"[]", "modules.json": b'[{"path": "1_Pooling"}]'}
FILES |= {"model.safetensors": WEIGHTS}
NOBODY = 65534
_PREFIX = "models--org--model"


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub() as made:
        yield made


@pytest.fixture
def commit(hub: StubHub) -> str:
    return hub.add(NAME, FILES)


@pytest.fixture
def variables(hub: StubHub, tmp_path: Path) -> dict[str, str]:
    return environment(hub, tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub"


def _weights(hub: StubHub, commit: str, cache: Path) -> tuple[Path, Path]:
    """Blob and snapshot link of the weights."""
    folder = cache / _PREFIX
    sha256 = hub.repositories[NAME].commits[commit]["model.safetensors"].sha256
    return folder / "blobs" / sha256, folder / "snapshots" / commit / "model.safetensors"


def test_the_layout_is_that_of_the_hubs_client(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path, tmp_path: Path
) -> None:
    fetch(variables)
    theirs = environment(hub, tmp_path / "theirs")
    real_client(theirs, f"found = hf.snapshot_download({NAME!r})")
    ours, expected = tree(cache), tree(tmp_path / "theirs" / "hf" / "hub")
    assert ours.pop("CACHEDIR.TAG").startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n".hex())
    expected.pop("CACHEDIR.TAG")
    assert ours == expected


def test_the_hubs_client_reads_offline_what_trims_wrote(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    folder = fetch(variables)
    hub.requests.clear()
    offline = {**variables, "HF_HUB_OFFLINE": "1"}
    assert real_client(offline, f"found = hf.snapshot_download({NAME!r}, local_files_only=True)") == str(folder)
    path = real_client(offline, f"found = hf.hf_hub_download({NAME!r}, 'model.safetensors', revision={commit!r})")
    assert Path(path).read_bytes() == WEIGHTS
    assert real_client(variables, SCAN) == []
    assert hub.requests == []
    assert real_client(variables, f"found = hf.snapshot_download({NAME!r})") == str(folder)
    assert hub.asked("/resolve/") == []  # the client asked what main is, and for no file


# fault (hub): a transfer is killed again and again
def test_a_part_of_a_download_is_no_snapshot_and_no_damage_for_the_hubs_client(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    with contextlib.closing(look(variables)) as opened:
        config, weights = opened.files[1], opened.files[2]
        destination = opened.cached
        destination.partial(weights)
        assert real_client(variables, SCAN) == []
        destination.publish(config, _written(destination.partial(config), content(opened, config)))
        destination.partial(weights).write_bytes(WEIGHTS[:1000])
    assert real_client(variables, SCAN) == []
    offline = {**variables, "HF_HUB_OFFLINE": "1"}
    code = (
        f"try: found = hf.snapshot_download({NAME!r}, revision={commit!r}, local_files_only=True)\n"
        "except hf.errors.IncompleteSnapshotError as error: found = str(error)"
    )
    assert "model.safetensors" in real_client(offline, code)
    with contextlib.closing(look(variables)) as again:
        assert again.cached.partial(weights).read_bytes() == WEIGHTS[:1000]  # where a killed transfer goes on


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# fault (hub): blobs or links are removed -> fetched or linked again
def test_blobs_that_were_removed_are_fetched_again_and_links_are_whole(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    fetch(variables)
    blob, link = _weights(hub, commit, cache)
    blob.unlink()
    assert link.is_symlink()
    hub.sent.clear()
    with pytest.raises(ArtifactNotFoundError, match=r"model\.safetensors"):
        look({**variables, "HF_HUB_OFFLINE": "1"})
    fetch(variables, f"hf://{NAME}@{commit}")
    assert hub.sent == {"model.safetensors": len(WEIGHTS)}
    assert link.read_bytes() == WEIGHTS
    assert real_client(variables, SCAN) == []


def test_a_link_that_leads_nowhere_is_replaced(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    blob, link = _weights(hub, commit, cache)
    link.parent.mkdir(parents=True)
    link.symlink_to("../../blobs/none")
    assert (fetch(variables) / "model.safetensors").read_bytes() == WEIGHTS
    assert os.readlink(link) == f"../../blobs/{blob.name}"


def test_links_that_were_removed_are_made_again_without_a_byte(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    fetch(variables)
    _, link = _weights(hub, commit, cache)
    link.unlink()
    hub.requests.clear()
    fetch(variables, f"hf://{NAME}@{commit}")
    assert link.read_bytes() == WEIGHTS
    assert hub.requests == []


# fault (hub): another program's half-written blob, or a foreign link -> `bad_artifact` with path and remedy;
# untouched
@pytest.mark.parametrize("length", [0, 1000, len(WEIGHTS) + 1])
def test_a_half_written_blob_is_neither_served_nor_overwritten(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path, length: int
) -> None:
    blob, _ = _weights(hub, commit, cache)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(length))
    with pytest.raises(ArtifactError, match=f"{blob}.*{length} bytes.*remove") as raised:
        fetch(variables)
    assert type(raised.value) is ArtifactError
    assert blob.read_bytes() == bytes(length)
    with contextlib.closing(look(variables)) as opened:
        weights = opened.files[2]
        partial = _written(opened.cached.partial(weights), WEIGHTS)
        with pytest.raises(ArtifactError):
            opened.cached.publish(weights, partial)
    assert blob.read_bytes() == bytes(length)
    blob.unlink()
    assert (fetch(variables) / "model.safetensors").read_bytes() == WEIGHTS


def test_a_blob_that_came_meanwhile_is_kept(hub: StubHub, commit: str, variables: dict[str, str], cache: Path) -> None:
    blob, link = _weights(hub, commit, cache)
    with contextlib.closing(look(variables)) as opened:
        weights = opened.files[2]
        partial = _written(opened.cached.partial(weights), WEIGHTS)
        blob.write_bytes(WEIGHTS)
        inode = blob.stat().st_ino
        assert opened.cached.publish(weights, partial) == blob
    assert blob.stat().st_ino == inode
    assert not partial.exists()
    assert link.read_bytes() == WEIGHTS


def test_a_blob_in_the_clients_shared_store_is_served(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    blob, _ = _weights(hub, commit, cache)
    stored = cache / "blobs" / "ab" / ("ab" * 32)
    for path in (blob, stored):
        path.parent.mkdir(parents=True)
    stored.write_bytes(WEIGHTS)
    blob.symlink_to(f"../../blobs/ab/{stored.name}")
    fetch(variables)
    assert "model.safetensors" not in hub.sent
    assert blob.is_symlink()


def test_nothing_of_the_cache_is_ever_removed(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    real_client(variables, f"found = hf.snapshot_download({NAME!r})")
    left = cache / _PREFIX / "blobs" / "0123.abcdef01.incomplete"
    left.write_bytes(b"of the client")
    before = tree(cache)
    hub.add(NAME, FILES | {"config.json": b"{}"})
    fetch(variables)
    after = tree(cache)
    assert {path: after.get(path) for path in before if "/refs/" not in path} == {
        path: held for path, held in before.items() if "/refs/" not in path
    }


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    """Be a user to whom permissions apply."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _read_only(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)


def _writable(top: Path) -> None:
    for path in (top, *top.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


# fault (hub): the cache is read-only, full, or without locks or links -> `permission_denied`, `no_space`,
# `not_supported`; what it has is served
def test_a_cache_that_cannot_be_written_serves_what_it_has_and_names_itself(hub: StubHub, folder: Path) -> None:
    commit = hub.add(NAME, FILES)
    variables = environment(hub, folder)
    at = fetch(variables)
    _read_only(folder)
    try:
        with _as_nobody():
            assert fetch(variables) == at
            assert fetch(variables, f"hf://{NAME}@{commit}/config.json") == at
            hub.add(NAME, FILES | {"config.json": b"{}"})
            with pytest.raises(PermissionDeniedError, match="HF_HUB_CACHE"):
                fetch(variables)
    finally:
        _writable(folder)


def test_a_revision_that_cannot_be_recorded_is_no_error(hub: StubHub, folder: Path) -> None:
    hub.add(NAME, FILES)
    variables = environment(hub, folder)
    at = fetch(variables)
    hub.repositories[NAME].refs["v1"] = at.name
    _read_only(folder)
    try:
        with _as_nobody():
            assert fetch(variables, f"hf://{NAME}@v1") == at
    finally:
        _writable(folder)


def test_a_branch_whose_name_was_a_folder_of_branches_is_fetched(
    hub: StubHub, commit: str, variables: dict[str, str]
) -> None:
    hub.repositories[NAME].refs |= {"a/b": commit, "a": commit}
    assert fetch(variables, f"hf://{NAME}@a%2Fb") == fetch(variables, f"hf://{NAME}@a")


def test_a_full_disk_is_named_with_the_cache(
    hub: StubHub, commit: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "symlink_to", full)
    with pytest.raises(NoSpaceError, match="HF_HUB_CACHE"):
        fetch(variables)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a//b", ".", "a/./b", ""])
def test_a_path_that_leaves_the_snapshot_is_refused_before_a_byte_moves(tmp_path: Path, name: str) -> None:
    destination = HubCache(tmp_path / "hub").repository(NAME).snapshot("0" * 40)
    file = RemoteFile(name, 4, "1" * 40)
    partial = _written(tmp_path / "partial", b"data")
    for act in (lambda: destination.find(file), lambda: destination.publish(file, partial)):
        with pytest.raises(ArtifactError):
            act()
    assert tree(tmp_path) == {"partial": b"data".hex()}


def test_names_that_differ_in_case_only_stay_two_files(hub: StubHub, variables: dict[str, str]) -> None:
    hub.add(NAME, FILES | {"Config.json": b"upper", "config.json": b"lower"})
    folder = fetch(variables)
    assert (folder / "Config.json").read_bytes() == b"upper"
    assert (folder / "config.json").read_bytes() == b"lower"


def test_a_name_that_leads_to_another_file_is_refused(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    """As on a file system that takes two names for one."""
    fetch(variables)
    _, link = _weights(hub, commit, cache)
    config = link.with_name("config.json")
    link.unlink()
    link.symlink_to(os.readlink(config))
    with pytest.raises(ArtifactError, match="HF_HUB_CACHE"):
        fetch(variables)
    assert os.readlink(link) == os.readlink(config)


@pytest.mark.parametrize("by_variable", [True, False])
def test_without_links_a_snapshot_holds_the_files(
    hub: StubHub,
    commit: str,
    variables: dict[str, str],
    cache: Path,
    by_variable: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if by_variable:
        variables["HF_HUB_DISABLE_SYMLINKS"] = "1"
    else:
        monkeypatch.setattr(Path, "symlink_to", refused)
    folder = fetch(variables)
    blob, at = _weights(hub, commit, cache)
    assert at.read_bytes() == WEIGHTS
    assert not at.is_symlink()
    assert not blob.exists()
    hub.requests.clear()
    assert fetch(variables, f"hf://{NAME}@{commit}") == folder
    offline = {**variables, "HF_HUB_OFFLINE": "1"}
    assert real_client(offline, f"found = hf.snapshot_download({NAME!r})") == str(folder)
    assert real_client(offline, SCAN) == []
    assert hub.requests == []


def test_without_links_a_blob_that_is_there_costs_no_second_copy(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    fetch(variables)
    blob, at = _weights(hub, commit, cache)
    at.unlink()
    fetch({**variables, "HF_HUB_DISABLE_SYMLINKS": "1"})
    assert not at.is_symlink()
    assert at.samefile(blob)


def test_a_client_without_links_is_read_without_a_request(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    folder = real_client({**variables, "HF_HUB_DISABLE_SYMLINKS": "1"}, f"found = hf.snapshot_download({NAME!r})")
    hub.requests.clear()
    assert str(fetch({**variables, "HF_HUB_OFFLINE": "1"})) == folder
    assert hub.requests == []


def test_a_snapshot_without_a_listing_is_served_offline_with_a_note(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    fetch(variables)
    (listing,) = (cache / _PREFIX / "trees").iterdir()
    listing.write_text('{"format_version": 2, "files": {}}')  # of a client to come
    hub.requests.clear()
    with contextlib.closing(look({**variables, "HF_HUB_OFFLINE": "1"}, f"hf://{NAME}@{commit}")) as opened:
        assert len(opened.notes) == 1
        sha256 = hub.repositories[NAME].commits[commit]["model.safetensors"].sha256
        assert opened.files[2].checksums == {"sha256": sha256}
        assert opened.cached.find(opened.files[2]) is not None
    assert hub.requests == []
    fetch(variables, f"hf://{NAME}@{commit}")  # what is not proven to be complete, the hub is asked about
    assert len(hub.asked("/tree/")) == 1


@pytest.mark.parametrize("held", ["", "abc", "0123456789abcdef" * 4])
def test_a_half_written_revision_is_none(tmp_path: Path, held: str) -> None:
    repository = HubCache(tmp_path).repository(NAME)
    (repository.folder / "refs").mkdir(parents=True)
    (repository.folder / "refs" / "main").write_text(held)
    assert repository.commit("main") is None


#: Downloads the weights; prints a line each time when another program has the lock.
_CLIENT = """
import fcntl, huggingface_hub as hf
lock = fcntl.flock
def flock(*given):
    try:
        lock(*given)
    except BlockingIOError:
        print("waits", flush=True)
        raise
fcntl.flock = flock
print(hf.hf_hub_download({name!r}, 'model.safetensors'))
"""


@contextlib.contextmanager
def _client(variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    code = _CLIENT.format(name=NAME)
    env = {"PATH": os.environ["PATH"], **variables}
    with subprocess.Popen([sys.executable, "-I", "-c", code], env=env, stdout=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


# fault (hub): two fetch one file -> one copy, fetched once
def test_while_the_hubs_client_downloads_a_file_trims_waits_for_it(
    hub: StubHub, commit: str, variables: dict[str, str], cache: Path
) -> None:
    hub.faults.stall_after = 65_536
    with contextlib.closing(look(variables)) as opened, _client(variables) as client:
        weights = opened.files[2]
        wait_until(lambda: hub.sent["model.safetensors"], "the client downloads")
        with pytest.raises(DeadlineError), opened.cached.lock(weights, lambda: False):
            pytest.fail("the client has the lock")
        hub.faults.stall_after = None
        with opened.cached.lock(weights, lambda: True):
            blob = opened.cached.find(weights)
        assert blob is not None
        assert blob.read_bytes() == WEIGHTS
        client.communicate()
        assert client.returncode == 0
    assert hub.sent["model.safetensors"] == len(WEIGHTS)


def test_while_trims_downloads_a_file_the_hubs_client_waits_for_it(
    hub: StubHub, commit: str, variables: dict[str, str]
) -> None:
    with contextlib.closing(look(variables)) as opened, contextlib.ExitStack() as locked:
        weights = opened.files[2]
        locked.enter_context(opened.cached.lock(weights, lambda: True))
        with _client(variables) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "waits\n"
            opened.cached.publish(weights, _written(opened.cached.partial(weights), WEIGHTS))
            locked.close()
            *_, found = client.communicate()[0].splitlines()
        assert Path(found).read_bytes() == WEIGHTS
    assert hub.sent["model.safetensors"] == 0


def test_two_processes_of_trims_fetch_a_file_once(hub: StubHub, commit: str, variables: dict[str, str]) -> None:
    code = f"from hub_side import fetch; print(fetch({variables!r}))"
    env = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    hub.faults.stall_after = 65_536
    with contextlib.ExitStack() as stack:
        programs = []
        for _ in range(2):
            program = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        wait_until(lambda: len(hub.asked("/revision/")) == 2 and hub.sent["model.safetensors"], "both have looked")
        hub.faults.stall_after = None
        found = [program.communicate()[0] for program in programs]
        assert [program.returncode for program in programs] == [0, 0]
    assert found[0] == found[1]
    assert hub.sent["model.safetensors"] == len(WEIGHTS)


def test_a_file_system_without_locks_is_refused(
    hub: StubHub, commit: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(hub_cache.fcntl, "flock", refused)
    with pytest.raises(NotSupportedError, match="flock"):
        fetch(variables)
