"""Models that are named by addresses, with real daemons, a hub, a bucket and a server."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from file_server import FileServer, file_server
from s3_server import KEYS, s3_client, s3_server
from safetensors.numpy import save
from serving import COMMAND, Serving, serving_in
from stub_hub import StubHub, stub_hub

import trims
from trims.control import admin
from trims.core.errors import (
    AddressRefusedError,
    DigestMismatchError,
    ImageError,
    ManifestError,
    NotSupportedError,
    SourceRefusedError,
    SourceUnavailableError,
)
from trims.sources.descriptor import ImageDescription
from trims.sources.transfer import checksums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
_DEADLINE_S = 60.0


def weights(seed: int, mebibytes: int = 12) -> bytes:
    """Return a safetensors file of one tensor."""
    return save({"w": np.random.default_rng(seed).random((mebibytes, 1 << 18)).astype(np.float32)})


def sum_of(serving: Serving, name: str, place: str | None = None) -> float:
    with trims.connect(serving.folder / "run") as session, session.open(name, place=place) as opened:
        return float(np.asarray(opened["w"]).sum())


def truth(data: bytes) -> float:
    from safetensors.numpy import load

    return float(load(data)["w"].sum())


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + _DEADLINE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def hub() -> Iterator[StubHub]:
    with stub_hub() as made:
        yield made


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as made:
        yield made


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """Variables for a bucket `models`."""
    with s3_server() as url:
        with s3_client(url) as client:
            client.create_bucket(Bucket="models")
        yield {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}


def of_hub(folder: Path, hub: StubHub, **more: str) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "TRIMS_ALLOW_HOSTS": "127.0.0.1,localhost",
        "TRIMS_CPU_CAPACITY_BYTES": "256MiB", **more,
    }  # fmt: skip


def test_a_hubs_model_is_pulled_killed_halfway_resumed_and_opened(folder: Path, hub: StubHub) -> None:
    data = weights(1, 24)
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": data})
    hub.faults.bytes_per_s = 6e6
    with serving_in(folder, **of_hub(folder, hub)) as serving:
        daemon = serving.start()
        pull = subprocess.Popen([*COMMAND, "pull", "hf://org/model"], env=serving.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        wait_until(lambda: sum(hub.sent.values()) > len(data) // 2)
        daemon.kill()
        daemon.wait()
        assert pull.communicate()[0] == b""
        assert pull.returncode == 1
        hub.faults.bytes_per_s = 0
        serving.start()
        done = serving.run("pull", "hf://org/model", "--json")
        assert done.returncode == 0, done.stderr
        assert sum_of(serving, "model") == truth(data)
        assert sum(hub.sent.values()) < 1.4 * len(data)  # what was in the sockets of the killed process comes on top
        left = [path for path in (folder / "hf").rglob("*") if "partial" in path.name]
        assert not left


def test_a_snapshot_that_is_there_costs_no_request_and_no_byte(folder: Path, hub: StubHub) -> None:
    data = weights(2)
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": data})
    with serving_in(folder / "one", **of_hub(folder, hub)) as first:
        first.start()
        assert first.run("add", "hf://org/model").returncode == 0
    asked, on_disk = len(hub.requests), _bytes_below(folder / "hf")
    with serving_in(folder / "two", **of_hub(folder, hub, HF_HUB_OFFLINE="1")) as second:
        second.start()
        added = second.run("add", "hf://org/model")
        assert added.returncode == 0, added.stderr
        assert sum_of(second, "model") == truth(data)
        assert len(hub.requests) == asked
        assert _bytes_below(folder / "hf") == on_disk
        assert _bytes_below(folder / "two" / "state") < len(data) // 4
        missing = second.run("add", "hf://org/other")
        assert missing.returncode == 1
        assert "HF_HUB_OFFLINE" in missing.stderr


def test_a_damaged_blob_of_a_hubs_cache_is_never_served_as_what_its_hub_states(folder: Path, hub: StubHub) -> None:
    data = weights(3)
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": data})
    with serving_in(folder / "one", **of_hub(folder, hub)) as first:
        first.start()
        assert first.run("pull", "hf://org/model").returncode == 0
    (link,) = (folder / "hf").rglob("snapshots/*/model.safetensors")
    blob = link.resolve()
    with blob.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"\xff" * 1000)
    with serving_in(folder / "two", **of_hub(folder, hub)) as second:
        second.start()
        assert second.run("add", "hf://org/model", "--lazy").returncode == 0
        for _ in range(2):
            with pytest.raises(DigestMismatchError, match=str(blob)):
                sum_of(second, "model", "cpu")
            link.unlink(missing_ok=True)
            second.run("pull", "model")  # which makes the link again, to the same blob
        blob.unlink()
        assert second.run("pull", "model").returncode == 0
        assert sum_of(second, "model", "cpu") == truth(data)


def damage(folder: Path) -> Path:
    """Damage the blob of `org/model` in the hub's cache; return its path."""
    (link,) = (folder / "hf").rglob("snapshots/*/model.safetensors")
    blob = link.resolve()
    with blob.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"\xff" * 1000)
    return blob


def fetched_into_cache(folder: Path, hub: StubHub, data: bytes) -> Path:
    """Have another daemon fetch `org/model` into the hub's cache, and damage its blob; return the blob's path."""
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": data})
    with serving_in(folder / "one", **of_hub(folder, hub)) as first:
        first.start()
        assert first.run("pull", "hf://org/model").returncode == 0
    return damage(folder)


# fault (hub): a blob with other bytes than its name -> `digest_mismatch` once read, also after a restart; its first
# readers may get them unless `prove: first`
def test_a_damaged_blob_is_refused_after_a_restart_and_shown(folder: Path, hub: StubHub) -> None:
    data = weights(3)
    blob = fetched_into_cache(folder, hub, data)
    with serving_in(folder / "two", **of_hub(folder, hub)) as serving:
        process = serving.start()
        assert serving.run("pull", "hf://org/model").returncode == 0
        sum_of(serving, "model")  # whom it is served, as it is read behind this first reader
        wait_until(lambda: str(blob) in serving.run("ps").stdout)
        process.kill()
        process.wait()
        serving.start()
        with pytest.raises(DigestMismatchError, match=f"{blob}.*remove that file, and pull again"):
            sum_of(serving, "model")
        (shown,) = json.loads(serving.run("ps", "--json").stdout)["transfers"]
        assert (shown["what"], shown["address"]) == ("damaged", "hf://org/model")
        checked = serving.run("check")
        assert (checked.returncode, str(blob) in checked.stdout) == (1, True)
        refused = serving.run("pull", "--update", "model")
        assert (refused.returncode, str(blob) in refused.stderr) == (1, True)
        blob.unlink()
        assert serving.run("pull", "model").returncode == 0
        assert sum_of(serving, "model") == truth(data)
        assert serving.run("check").returncode == 0
        assert "damaged" not in serving.run("ps").stdout


@pytest.mark.parametrize("by", ["setting", "pull", "add"])
def test_a_damaged_blob_is_never_served_if_it_is_proven_first(by: str, folder: Path, hub: StubHub) -> None:
    data = weights(3)
    blob = fetched_into_cache(folder, hub, data)
    setting = {"TRIMS_PROVE": "first"} if by == "setting" else {}
    flag = [] if by == "setting" else ["--prove", "first"]
    with serving_in(folder / "two", **of_hub(folder, hub, **setting)) as serving:
        serving.start()
        words = ["add" if by == "add" else "pull", "hf://org/model", *flag]
        refused = serving.run(*words)
        assert (refused.returncode, str(blob) in refused.stderr) == (1, True)
        assert serving.run("list", "--names").stdout == ""
        blob.unlink()
        pulled = serving.run(*words)
        assert pulled.returncode == 0, pulled.stderr
        assert sum_of(serving, "model") == truth(data)


# fault (sources): a pull is interrupted or fails -> `interrupted:` and what is left; no name stays
@pytest.mark.parametrize("command", ["pull", "add"])
def test_an_interrupted_fetch_leaves_neither_a_name_nor_a_transfer(command: str, folder: Path, hub: StubHub) -> None:
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": weights(1, 24)})
    hub.faults.bytes_per_s = 2e6
    with serving_in(folder, **of_hub(folder, hub)) as serving:
        serving.start()
        fetching = subprocess.Popen([*COMMAND, command, "hf://org/model"], env=serving.environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        wait_until(lambda: sum(hub.sent.values()) > 1 << 20)
        fetching.send_signal(signal.SIGINT)
        _, said = fetching.communicate(timeout=_DEADLINE_S)
        assert fetching.returncode == 130
        assert b"interrupted: model is not registered" in said
        assert serving.run("list", "--names").stdout == ""
        wait_until(lambda: not json.loads(serving.run("ps", "--json").stdout)["transfers"])


def test_a_gguf_file_is_refused_before_a_byte_of_it_is_fetched(folder: Path, server: FileServer) -> None:
    server.serve("/m.gguf", b"GGUF" + bytes(1 << 20))
    with serving_in(folder) as serving:
        serving.start()
        refused = serving.run("pull", f"{server.url}/m.gguf")
        assert (refused.returncode, "GGUF" in refused.stderr) == (1, True)
        assert server.sent["/m.gguf"] <= 1  # which the look asks for
        assert serving.run("list", "--names").stdout == ""
        assert "hf://org/gpt2" in serving.run("pull", "hf://gpt2").stderr
        assert "hf://org/name" in serving.run("add", "org/name").stderr


def test_a_mistyped_address_leaves_no_model_behind(folder: Path, hub: StubHub) -> None:
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": weights(4, 1)})
    with serving_in(folder, **of_hub(folder, hub)) as serving:
        serving.start()
        for wrong in ("hf://org/other", "ftp://x/y", "file:///etc/passwd", "hf://org"):
            assert serving.run("pull", wrong, "--name", "model").returncode == 1
        assert serving.run("pull", "hf://org/model").returncode == 0
        assert serving.run("pull", "hf://org/model").returncode == 0
        listed = json.loads(serving.run("list", "--json").stdout)
        assert [each["name"] for each in listed] == ["model"]


def test_a_signature_in_an_address_is_not_shown_nor_locked_for_others(folder: Path, server: FileServer) -> None:
    server.serve("/m.safetensors", weights(5, 1))
    with serving_in(folder) as serving:
        serving.start()
        assert serving.run("pull", f"{server.url}/m.safetensors?sig=GEHEIM&x=1").returncode == 0
        for words in (("list", "--all"), ("lock",), ("lock", "m"), ("pull", "m"), ("ps",)):
            done = serving.run(*words)
            assert "GEHEIM" not in done.stdout + done.stderr, words
            assert done.returncode == (1 if words == ("lock", "m") else 0)


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_a_model_that_was_pushed_is_pulled_by_another_daemon_without_a_conversion(
    folder: Path, bucket: dict[str, str], checkpoint: Callable[..., Path]
) -> None:
    del checkpoint
    data, variables = weights(3), {**bucket, "TRIMS_CPU_CAPACITY_BYTES": "256MiB"}
    (folder / "m.safetensors").write_bytes(data)
    manifest = {"name": "m", "version": "7", "description": "ours", "artifact": {"path": str(folder / "m.safetensors")}}
    with serving_in(folder / "one", **variables) as first, serving_in(folder / "two", **variables) as second:
        first.start()
        second.start()
        with admin(first.folder / "run") as daemon:
            key = daemon.add(manifest).key
            assert "s3://models/team/m" in daemon.push("m", "s3://models/team/m").note
            assert "was there already" in daemon.push("m", "s3://models/team/m").note
            assert {each.place for each in daemon.show("m").replicas} >= {"disk", "cloud"}
        pulled = second.run("pull", "s3://models/team/m")
        assert pulled.returncode == 0, pulled.stderr
        assert "success" in pulled.stdout
        assert sum_of(second, "m", "cpu") == sum_of(first, "m", "cpu") == truth(data)
        with admin(second.folder / "run") as daemon:
            shown = daemon.show("m")
            assert (shown.version, shown.description) == ("7", "ours")
            assert shown.key != key  # which nothing here can prove: it stands for no model of this machine
            cpu = next(each for each in shown.replicas if each.place == "cpu")
            assert any("source cloud" in line for line in cpu.story)
            wait_until(lambda: {"cpu", "disk", "cloud"} == {each.place for each in daemon.show("m").replicas})
            wait_until(lambda: all(each.state == "sealed" for each in daemon.show("m").replicas))
            daemon.evict("m", None, drain=True)  # everywhere on this machine
            wait_until(lambda: len(daemon.show("m").replicas) == 1)
            assert [each.place for each in daemon.show("m").replicas] == ["cloud"]
        assert sum_of(second, "m") == truth(data)


def test_a_push_repairs_what_was_damaged_and_replaces_another_model_only_on_request(
    folder: Path, bucket: dict[str, str]
) -> None:
    variables = {**bucket, "TRIMS_CPU_CAPACITY_BYTES": "256MiB"}
    for name in ("large", "small"):
        (folder / f"{name}.safetensors").write_bytes(weights(len(name), 2))
    address = "s3://models/team/m?x#y"
    with serving_in(folder, **variables) as serving, s3_client(bucket["AWS_ENDPOINT_URL"]) as store:
        serving.start()
        for name in ("large", "small"):
            assert serving.run("add", str(folder / f"{name}.safetensors")).returncode == 0
        assert serving.run("push", "large", "S3://models/team/m?x#y").returncode == 0
        (image,) = (each for each in store.list_objects_v2(Bucket="models", Prefix="team/m?x#y/")["Contents"]
                    if each["Key"].endswith(".safetensors"))  # fmt: skip
        store.put_object(Bucket="models", Key=image["Key"], Body=bytes(image["Size"]))
        again = serving.run("push", "large", address)
        assert (again.returncode, "was there already" in again.stdout) == (0, False)
        assert any(store.get_object(Bucket="models", Key=image["Key"])["Body"].read())
        assert "was there already" in serving.run("push", "large", address).stdout
        refused = serving.run("push", "small", address)
        assert refused.returncode == 1
        assert all(word in refused.stderr for word in ("'large'", "'small'", "--replace"))
        assert serving.run("push", "small", address, "--replace").returncode == 0
        described = json.loads(store.get_object(Bucket="models", Key="team/m?x#y/trims.json")["Body"].read())
        assert described["name"] == "small"
        assert str(folder) not in json.dumps(described)
        pulled = serving.run("pull", "S3://models/team/m?x#y", "--name", "back")
        assert pulled.returncode == 0, pulled.stderr
        assert serving.run("pull", "S3://models/team/m?x#y", "--name", "back").returncode == 0


# fault (sources): a push is killed -> `lost_peer`; `trims prune` removes its parts
def test_parts_of_a_killed_push_are_taken_back_by_a_prune(folder: Path, bucket: dict[str, str]) -> None:
    variables = {**bucket, "TRIMS_CPU_CAPACITY_BYTES": "512MiB"}
    (folder / "m.safetensors").write_bytes(weights(6, 128))
    with serving_in(folder, **variables) as serving, s3_client(bucket["AWS_ENDPOINT_URL"]) as store:

        def uploads() -> list[str]:
            listed = store.list_multipart_uploads(Bucket="models").get("Uploads", ())
            return [each["Key"] for each in listed]

        daemon = serving.start()
        assert serving.run("add", str(folder / "m.safetensors")).returncode == 0
        push = subprocess.Popen([*COMMAND, "push", "m", "s3://models/killed"], env=serving.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        wait_until(lambda: bool(uploads()))
        daemon.kill()
        daemon.wait()
        push.communicate(timeout=_DEADLINE_S)
        (key,) = uploads()
        serving.start()
        assert f"s3://models/{key}" in serving.run("prune", "--dry-run").stderr
        assert uploads() == [key]
        assert json.loads(serving.run("prune", "--json").stdout)["uploads"] == [f"s3://models/{key}"]
        assert not uploads()
        assert json.loads(serving.run("prune", "--json").stdout)["uploads"] == []


def test_a_restarted_daemon_knows_its_images_in_the_cloud(folder: Path, bucket: dict[str, str]) -> None:
    data, variables = weights(4), {**bucket, "TRIMS_CPU_CAPACITY_BYTES": "256MiB"}
    (folder / "m.safetensors").write_bytes(data)
    with serving_in(folder, **variables) as serving:
        process = serving.start()
        with admin(serving.folder / "run") as daemon:
            daemon.add(folder / "m.safetensors")
            daemon.push("m", "s3://models/restarted")
        process.kill()
        process.wait()
        serving.start()
        with admin(serving.folder / "run") as daemon:
            assert "cloud" in {each.place for each in daemon.show("m").replicas}
            daemon.remove("m")
            wait_until(lambda: not daemon.residents().replicas)


def test_an_open_fetches_what_its_manifest_names_and_then_needs_no_network(folder: Path, server: FileServer) -> None:
    data = weights(5)
    server.serve("/m.safetensors", data)
    with serving_in(folder) as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            daemon.add({"name": "m", "artifact": {"uri": f"{server.url}/m.safetensors"}}, lazy=True)
        assert sum_of(serving, "m") == truth(data)
        asked = len(server.requests)
        server.files.clear()
        serving.running[0].kill()
        serving.running[0].wait()
        serving.start()
        assert sum_of(serving, "m") == truth(data)
        assert len(server.requests) == asked


def test_what_changed_since_it_was_first_seen_is_refused_and_accepted_on_request(
    folder: Path, server: FileServer
) -> None:
    old, new = weights(6), weights(7)
    server.serve("/m.safetensors", old)
    with serving_in(folder) as serving:
        serving.start()
        assert serving.run("pull", f"{server.url}/m.safetensors").returncode == 0
        with admin(serving.folder / "run") as daemon:
            server.serve("/m.safetensors", new, etag='"v2"')
            for path in (folder / "state" / "downloads").rglob("*.safetensors"):
                path.unlink()
            daemon.evict("m", None)
            with pytest.raises(DigestMismatchError, match="--update"):
                daemon.pull("m")
            daemon.pull("m", update=True)
        assert sum_of(serving, "m") == truth(new)


def test_a_manifest_from_elsewhere_names_what_lies_beside_it_and_nothing_else(folder: Path, server: FileServer) -> None:
    data = weights(8)
    server.serve("/models/m.safetensors", data)
    server.serve("/models/m.yaml", b"name: m\nversion: 1.2.3\nartifact: {path: m.safetensors}\n")
    server.serve("/models/passwd.yaml", b"name: p\nartifact: {uri: file:///etc/passwd}\n")
    server.serve("/models/outside.yaml", b"name: p\nartifact: {path: ../../secret}\n")
    server.serve("/models/code.yaml", b"name: p\nartifact: {builder: {call: 'os:system'}}\n")
    server.serve("/models/metadata.yaml", b"name: p\nartifact: {uri: 'http://169.254.169.254/latest'}\n")
    with serving_in(folder) as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            assert daemon.add(f"{server.url}/models/m.yaml").version == "1.2.3"
            for name in ("passwd", "outside", "code", "metadata"):
                with pytest.raises((AddressRefusedError, ManifestError)):
                    daemon.add(f"{server.url}/models/{name}.yaml")
            assert [model.name for model in daemon.models()] == ["m"]
        assert sum_of(serving, "m") == truth(data)


def test_a_source_that_is_away_fails_the_first_open_only(folder: Path, server: FileServer) -> None:
    with serving_in(folder) as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            daemon.add({"name": "m", "artifact": {"uri": "http://127.0.0.1:9/m.safetensors"}}, lazy=True)
            with pytest.raises(SourceUnavailableError):
                daemon.pull("m")
            data = weights(9)
            server.serve("/m.safetensors", data)
            daemon.add(f"{server.url}/m.safetensors", name="other")
        assert sum_of(serving, "other") == truth(data)


def test_what_is_fetched_is_shown_while_it_comes(folder: Path, server: FileServer) -> None:
    server.serve("/m.safetensors", weights(10), bytes_per_s=2e6)
    with serving_in(folder) as serving:
        serving.start()
        pull = subprocess.Popen([*COMMAND, "pull", f"{server.url}/m.safetensors"], env=serving.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        with admin(serving.folder / "run") as daemon:
            wait_until(lambda: any(each.done_bytes for each in daemon.transfers()))
            (found,) = [each for each in daemon.transfers() if each.what == "fetch"]
            assert 0 < found.done_bytes <= found.total_bytes
        assert "fetching" in serving.run("ps").stdout
        server.files["/m.safetensors"].bytes_per_s = None
        out, err = pull.communicate(timeout=_DEADLINE_S)
        assert pull.returncode == 0, err
        assert out.decode().splitlines()[-1] == "success"
        assert err == b""  # quiet when it is no terminal


def test_a_model_that_is_removed_takes_its_download_with_it(folder: Path, server: FileServer) -> None:
    server.serve("/m.safetensors", weights(11))
    with serving_in(folder) as serving:
        serving.start()
        assert serving.run("pull", f"{server.url}/m.safetensors").returncode == 0
        assert list((folder / "state" / "downloads").rglob("*.safetensors"))
        assert serving.run("rm", "m").returncode == 0
        assert not list((folder / "state" / "downloads").rglob("*.safetensors"))
        lock = json.loads((folder / "state" / "trims.lock").read_text())
        assert list(lock["addresses"]) == [f"{server.url}/m.safetensors"]  # what was seen there is not forgotten


def publish(server: FileServer, folder: Path, data: bytes) -> str:
    """Serve the image of a checkpoint as one that was pushed; return its address."""
    (folder / "source.safetensors").write_bytes(data)
    with serving_in(folder / "publisher", TRIMS_CPU_CAPACITY_BYTES="256MiB") as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            shown = daemon.add(folder / "source.safetensors")
            image = next(each for each in shown.replicas if each.place == "disk")
            written = Path(image.location).read_bytes()
    crc = checksums.combined("crc64nvme", [(checksums.of_piece("crc64nvme", memoryview(written)), len(written))])
    described = ImageDescription(
        "m", image.key, image.digest, len(written), {"crc64nvme": crc}, "image.safetensors", "safetensors", {}
    )
    server.serve("/bucket/m/image.safetensors", written)
    server.serve("/bucket/m/trims.json", described.written())
    return f"{server.url}/bucket/m"


def test_an_image_in_the_cloud_comes_to_a_device_through_the_host(
    folder: Path, server: FileServer, serve_gpu: Callable[..., Daemon]
) -> None:
    data = weights(12, 2)
    address = publish(server, folder, data)
    running = serve_gpu()
    with admin(running.config.runtime_dir) as daemon:
        daemon.add({"name": "m", "artifact": {"uri": address}}, lazy=True)
        replica = daemon.load("m", "gpu:0")
        assert replica.place == "gpu:0"
        stories = {each.place: "\n".join(each.story) for each in daemon.show("m").replicas}
        assert "source cpu" in stories["gpu:0"]
        assert "source cloud" in stories["cpu"]


def test_an_image_with_wrong_bytes_is_refused(folder: Path, server: FileServer) -> None:
    address = publish(server, folder, weights(13, 2))
    served = server.files["/bucket/m/image.safetensors"]
    served.data = served.data[:-1] + bytes([served.data[-1] ^ 1])
    with serving_in(folder, TRIMS_CPU_CAPACITY_BYTES="256MiB") as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            daemon.add({"name": "m", "artifact": {"uri": address}}, lazy=True)
            with pytest.raises(ImageError, match=r"image\.safetensors is not as it was described"):
                daemon.load("m", "cpu")
            assert not [each for each in daemon.show("m").replicas if each.place != "cloud"]


def test_a_cloud_that_is_away_fails_a_load_and_serves_what_is_here(folder: Path, server: FileServer) -> None:
    data = weights(14, 2)
    address = publish(server, folder, data)
    with serving_in(folder, TRIMS_FETCH_PATIENCE_S="0.5", TRIMS_CPU_CAPACITY_BYTES="256MiB") as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            daemon.add({"name": "m", "artifact": {"uri": address}}, lazy=True)
            daemon.pull("m")
            server.files["/bucket/m/image.safetensors"].statuses = [503] * 1000
            assert sum_of(serving, "m") == truth(data)
            wait_until(lambda: {"cpu", "disk"} <= {each.place for each in daemon.show("m").replicas})
            wait_until(lambda: all(each.state == "sealed" for each in daemon.show("m").replicas))
            daemon.evict("m", None, drain=True)
            wait_until(lambda: len(daemon.show("m").replicas) == 1)
            with pytest.raises(SourceUnavailableError, match="503"):
                daemon.load("m", "cpu")
            server.files["/bucket/m/image.safetensors"].statuses = []
        assert sum_of(serving, "m") == truth(data)


def test_nothing_in_the_cloud_is_read_there_or_removed(folder: Path, server: FileServer) -> None:
    address = publish(server, folder, weights(15, 2))
    with serving_in(folder, TRIMS_CPU_CAPACITY_BYTES="256MiB") as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            daemon.add({"name": "m", "artifact": {"uri": address}}, lazy=True)
            daemon.pull("m")
            with pytest.raises(NotSupportedError), trims.connect(serving.folder / "run") as session:
                session.open("m", place="cloud")
            with pytest.raises(NotSupportedError):
                daemon.evict("m", "cloud")
            assert "cloud" in {each.place for each in daemon.show("m").replicas}
            assert daemon.check(verify=True).findings == ()


def test_an_image_that_claims_another_models_key_serves_only_its_own_name(folder: Path, server: FileServer) -> None:
    own, other = weights(16, 2), weights(17, 2)
    (folder / "own.safetensors").write_bytes(own)
    address = publish(server, folder, other)
    with serving_in(folder, TRIMS_CPU_CAPACITY_BYTES="256MiB") as serving:
        serving.start()
        with admin(serving.folder / "run") as daemon:
            key = daemon.add(folder / "own.safetensors").key
            description = json.loads(server.files["/bucket/m/trims.json"].data)
            server.serve("/bucket/m/trims.json", json.dumps({**description, "key": key}).encode())
            daemon.add({"name": "claims", "artifact": {"uri": address}}, lazy=True)
            daemon.pull("claims")
            daemon.evict("own", None, drain=True)
            wait_until(lambda: not daemon.show("own").replicas)
            assert daemon.show("claims").key != key
        assert sum_of(serving, "own", "cpu") == truth(own)
        assert sum_of(serving, "claims", "cpu") == truth(other)


def test_a_signed_address_is_fetched_again_as_it_is_and_its_signature_shown_nowhere(
    folder: Path, server: FileServer
) -> None:
    data, address = weights(18), f"{server.url}/m.safetensors?X-Signature=hidden-from-all"
    server.serve("/m.safetensors", data)
    with serving_in(folder) as serving:
        serving.start()
        assert serving.run("pull", address).returncode == 0
        for path in (folder / "state" / "downloads").rglob("*.safetensors"):
            path.unlink()
        assert sum_of(serving, "m") == truth(data)
        assert all("hidden-from-all" in asked for asked in server.targets)
        server.files["/m.safetensors"].statuses = [403] * 9
        with admin(serving.folder / "run") as daemon, pytest.raises(SourceRefusedError) as raised:
            daemon.pull("m", update=True)
        shown = [str(raised.value), serving.run("ps").stdout, serving.run("show", "m").stdout]
        process = serving.running[0]
        process.terminate()
        shown.append(process.communicate(timeout=_DEADLINE_S)[1])
        assert not any("hidden-from-all" in text for text in shown)
