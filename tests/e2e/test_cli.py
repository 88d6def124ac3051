"""The `trims` command against a live daemon: what it prints, what it returns, and what it says when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from safetensors.numpy import load_file
from trims_client import connect

from trims.cli.main import main
from trims.core.place import CPU
from trims.daemon.main import shm_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_client import Session

    from trims.daemon.main import Daemon


class Command:
    """`trims` with a daemon's runtime folder; returns (status, standard output, standard error)."""

    def __init__(self, runtime_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.runtime_dir = runtime_dir
        self.capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        self.capsys.readouterr()
        status = main(["--runtime-dir", str(self.runtime_dir), *map(str, words)])
        told = self.capsys.readouterr()
        return status, told.out, told.err

    def done(self, *words: object) -> str:
        """Return the output of a command, which must succeed."""
        status, out, err = self(*words)
        assert status == 0, err
        return out

    def json(self, *words: object) -> Any:
        """Return the one JSON document that a command prints, which must succeed."""
        return json.loads(self.done(*words, "--json"))

    def refused(self, *words: object) -> str:
        """Return the error of a command, which must fail with one sentence on standard error and nothing else."""
        status, out, err = self(*words)
        assert (status, out) == (1, "")
        assert err.startswith("trims: ")
        assert "Traceback" not in err
        return err


@pytest.fixture
def trims(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(daemon.config.runtime_dir, capsys)


@pytest.fixture
def manifest(folder: Path, checkpoint: Callable[..., Path]) -> Callable[..., Path]:
    """Write a manifest for a checkpoint beside it."""

    def write(name: str, of: str = "m", **more: object) -> Path:
        checkpoint(of, nbytes=100_000)
        path = folder / f"{name}.yaml"
        path.write_text(json.dumps({"name": name, "artifact": {"path": f"{of}.safetensors"}, **more}))
        return path

    return write


REPLICA = {
    "key": str, "place": str, "state": str, "nbytes": int, "leases": int, "waiters": int, "pinned": bool,
    "cost_s": float, "uses": int, "idle_s": float, "digest": str, "location": str, "generation": int,
    "names": list, "holders": list, "story": list,
}  # fmt: skip
MODEL = {
    "name": str, "version": str, "description": str, "framework": str, "format": str, "key": str, "replicas": list,
    "manifest_json": str, "image_bytes": int, "license": str,
}  # fmt: skip


def has(value: dict[str, Any], fields: dict[str, type]) -> dict[str, Any]:
    """Every field is there and of its type: numbers are numbers."""
    assert {name: type(value[name]) for name in fields} == fields
    return value


# -- registering ---------------------------------------------------------------------------------------------------


def test_add_converts_a_manifest_and_says_where_it_is(trims: Command, manifest: Callable[..., Path]) -> None:
    status, out, err = trims("add", manifest("small"))
    assert (status, out) == (0, "registered small\n")
    assert "on disk" in err
    model = has(trims.json("show", "small"), MODEL)
    assert model["image_bytes"] > 100_000
    assert [replica["place"] for replica in model["replicas"]] == ["disk"]


def test_add_again_while_the_last_image_is_read_leaves_its_conversion_to_a_load(
    trims: Command, manifest: Callable[..., Path], session: Session
) -> None:
    path = manifest("small")
    trims.done("add", path)
    with session.open("small", place="disk") as weights:
        trims.done("rm", "small")
        status, out, err = trims("add", path)
        assert (status, out) == (0, "registered small\n")
        assert "not converted yet, because its last image is still read" in err
        assert weights.nbytes
    trims.done("load", "small", "--place", "disk")
    assert [replica["place"] for replica in trims.json("show", "small")["replicas"]] == ["disk"]


def test_add_lazily_converts_nothing(trims: Command, manifest: Callable[..., Path], daemon: Daemon) -> None:
    assert has(trims.json("add", manifest("small"), "--lazy"), MODEL)["replicas"] == []
    assert daemon.store.counters["fills.disk"] == 0
    assert "not converted yet" in trims.done("show", "small")


def test_add_of_a_bare_artifact_takes_its_name_from_the_file_or_the_flag(
    trims: Command, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("My Net.v2")
    assert trims.json("add", path)["name"] == "my-net"
    assert trims.json("register", path, "--name", "other")["name"] == "other"
    assert [model["name"] for model in trims.json("list")] == ["my-net", "other"]


# fault (folders): tensors that nothing runs -> a note with what the manifest needs; sessions open them
def test_add_of_tensors_says_that_nothing_runs_them_and_what_would(
    trims: Command, checkpoint: Callable[..., Path], manifest: Callable[..., Path]
) -> None:
    status, out, err = trims("add", checkpoint("bare"))
    assert (status, out) == (0, "registered bare\n")
    assert "nothing says what runs 'bare': its manifest needs `framework: {name: torch}`" in err
    status, out, err = trims("add", manifest("called", predictor={"call": "package.module:Class"}))
    assert (status, "runs" in err) == (0, False)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tiny-bert/model.safetensors", "tiny-bert"),
        ("Org.Model_7B/pytorch_model.safetensors", "org.model_7b"),
        ("models--org--small/snapshots/0a1b2c/model.safetensors", "small"),
        ("tiny/encoder.safetensors", "encoder"),
    ],
)
def test_add_names_a_model_after_its_folder_where_the_file_is_called_as_all_are(
    trims: Command, folder: Path, checkpoint: Callable[..., Path], path: str, name: str
) -> None:
    file = folder / path
    file.parent.mkdir(parents=True)
    checkpoint("m", nbytes=1000).rename(file)
    assert trims.done("add", file, "--lazy") == f"registered {name}\n"


def test_add_of_a_folder_takes_the_weights_in_it(trims: Command, folder: Path, checkpoint: Callable[..., Path]) -> None:
    model = folder / "tiny"
    model.mkdir()
    assert "holds none of model.safetensors, " in trims.refused("add", model)
    (model / "config.json").write_text("{}")
    checkpoint("m", nbytes=1000).rename(model / "model.safetensors")
    assert trims.json("add", model)["name"] == "tiny"
    assert trims.json("show", "tiny")["image_bytes"] > 1000


def test_a_failed_add_leaves_nothing_behind_and_takes_nothing_away(
    trims: Command, folder: Path, manifest: Callable[..., Path]
) -> None:
    broken = folder / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    assert "broken.safetensors" in trims.refused("add", broken)
    assert trims.json("list") == []
    trims.done("add", manifest("a"))
    (folder / "m.safetensors").write_bytes(b"\xff" * 100)
    assert "m.safetensors" in trims.refused("add", folder / "a.yaml")
    assert [model["name"] for model in trims.json("list")] == ["a"]


def test_add_of_another_manifest_under_a_taken_name_needs_replace(
    trims: Command, manifest: Callable[..., Path]
) -> None:
    trims.done("add", manifest("small"))
    trims.done("add", manifest("small"))
    changed = manifest("small", of="another")
    assert "registered with another manifest" in trims.refused("add", changed)
    trims.done("add", changed, "--replace")
    with connect(trims.runtime_dir) as session, session.open("small") as weights:
        assert weights["step"] == int.from_bytes(b"another", "big") % (1 << 32) % 251


@pytest.mark.parametrize("lazy", [[], ["--lazy"]])
def test_add_takes_the_weights_of_a_checkpoint_by_their_key(trims: Command, folder: Path, lazy: list[str]) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"net": {"w": torch.ones(3)}, "acc": torch.ones(1)}, folder / "best.pt")
    assert "trims add --state-key net" in trims.refused("add", folder / "best.pt")
    trims.done("add", folder / "best.pt", "--state-key", "net", *lazy)
    with connect(trims.runtime_dir) as session, session.open("best") as weights:
        assert {name: view.tolist() for name, view in weights.items()} == {"w": [1.0, 1.0, 1.0]}


@pytest.mark.parametrize("named", ["m.safetensors", "m.bin", "m.onnx", "m.npz", "m.safetensors.index.json"])
def test_add_of_a_failed_download_says_what_it_is(trims: Command, folder: Path, named: str) -> None:
    for content, words in (
        (b"version https://git-lfs.github.com/spec/v1\nsize 12\n", "is a pointer of Git LFS to a file of 12 bytes"),
        (b"<!doctype html><title>Sign in</title>", "is an HTML or XML page"),
    ):
        (folder / named).write_bytes(content)
        assert f"{named} {words}" in trims.refused("add", folder / named)


def test_add_of_a_shard_or_a_stated_format_that_is_a_pointer_names_the_file(trims: Command, folder: Path) -> None:
    pytest.importorskip("torch")
    pointer = b"version https://git-lfs.github.com/spec/v1\nsize 12\n"
    (folder / "1.bin").write_bytes(pointer)
    (folder / "m.bin.index.json").write_text(json.dumps({"weight_map": {"w": "1.bin"}}))
    assert "1.bin is a pointer of Git LFS" in trims.refused("add", folder / "m.bin.index.json")
    for stated in ("safetensors", "torch", "onnx", "npz", "npy", "mxnet"):
        (folder / "m.yaml").write_text(json.dumps({"name": "m", "artifact": {"path": "1.bin", "format": stated}}))
        assert "1.bin is a pointer of Git LFS" in trims.refused("add", folder / "m.yaml")


def test_add_of_one_shard_is_refused_and_of_the_folder_serves_all(trims: Command, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    model = folder / "large"
    model.mkdir()
    names = {name: f"pytorch_model-0000{number}-of-00002.bin" for number, name in ((1, "a"), (2, "b"))}
    for name, shard in names.items():
        torch.save({name: torch.ones(2)}, model / shard)
    (model / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": names}))
    assert "add the index of all: " in trims.refused("add", model / names["a"], "--name", "half")
    assert trims.json("add", model)["format"] == "torch"
    with connect(trims.runtime_dir) as session, session.open("large") as weights:
        assert {name: view.tolist() for name, view in weights.items()} == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_add_of_a_path_that_is_no_utf_8_is_refused_by_name(trims: Command, folder: Path) -> None:
    odd = Path(os.fsdecode(bytes(folder) + b"/m\xff"))
    odd.mkdir()
    (odd / "m.npz").write_bytes(b"x")
    (odd / "m.yaml").write_text("{name: m, artifact: {path: m.npz}}")
    for path in (odd, odd / "m.npz", odd / "m.yaml"):
        assert "is not UTF-8" in trims.refused("add", path)


def test_add_says_what_is_wrong_with_its_source(trims: Command, folder: Path, manifest: Callable[..., Path]) -> None:
    (folder / "bad.yaml").write_text("name: [")
    (folder / "odd.yaml").write_text("{name: odd, artifact: {path: m.npz}, colour: red}")
    (folder / "notes.txt").write_text("not a model")
    assert "bad.yaml: is not YAML" in trims.refused("add", folder / "bad.yaml")
    assert "unknown field 'colour'" in trims.refused("add", folder / "odd.yaml")
    assert "does not exist" in trims.refused("add", folder / "absent.npz")
    assert "safetensors" in trims.refused("add", folder / "notes.txt")
    assert "cannot be read" in trims.refused("add", folder / "absent.yaml")
    assert "--name is for artifacts" in trims.refused("add", manifest("small"), "--name", "x")


def test_rm_forgets_the_model_and_says_of_an_unknown_one_which_are_near(
    trims: Command, manifest: Callable[..., Path]
) -> None:
    trims.done("add", manifest("small"))
    assert "did you mean small" in trims.refused("rm", "smal")
    assert "small is forgotten" in trims.done("rm", "small")
    assert trims.json("list") == []
    assert "no models are registered" in trims.done("list")
    assert "no model 'small'" in trims.refused("show", "small")


# -- looking -------------------------------------------------------------------------------------------------------


def test_status_tells_the_tiers_and_which_daemon_answers(trims: Command) -> None:
    status = trims.json("status")
    health = has(status["health"], {"status": str, "version": str, "pid": int, "protocol": int, "state_dir": str})
    assert (health["status"], health["pid"]) == ("serving", os.getpid())
    stats = has(status["stats"], {"counters": dict, "tiers": list, "sessions": int, "leases": int, "uptime_s": float})
    for tier in stats["tiers"]:
        has(tier, {"place": str, "capacity_bytes": int, "charged_bytes": int, "replicas": int, "policy": str})
    out = trims.done("status")
    assert f"serving: process {os.getpid()}" in out
    assert "256.0 MiB" in out


def test_ps_shows_what_is_resident_and_which_process_holds_it(trims: Command, manifest: Callable[..., Path]) -> None:
    assert "nothing is resident" in trims.done("ps")
    trims.done("add", manifest("small"))
    with connect(trims.runtime_dir, agent="reader") as session, session.open("small", place="cpu"):
        on_cpu, on_disk = (has(replica, REPLICA) for replica in trims.json("ps")["replicas"])
        assert (on_cpu["place"], on_disk["place"]) == ("cpu", "disk")
        assert on_cpu["names"] == ["small"]
        (holder,) = on_cpu["holders"]
        assert has(holder, {"session": int, "pid": int, "uid": int, "agent": str, "leases": int})["agent"] == "reader"
        out = trims.done("ps")
        assert str(os.getpid()) in out
        assert "leases close" in out
    assert "room is needed" in trims.done("ps")


def test_list_and_show_agree(trims: Command, manifest: Callable[..., Path]) -> None:
    trims.done("add", manifest("small", version="1.2.3", description="a small one", license="MIT"))
    (listed,) = trims.json("list")
    shown = has(trims.json("show", "small"), MODEL)
    assert listed["key"] == shown["key"]
    assert json.loads(shown["manifest_json"])["version"] == "1.2.3"
    assert has(shown["replicas"][0], REPLICA)["story"], "show tells the story of each replica"
    out = trims.done("show", "small")
    for text in ("small 1.2.3", "a small one", "MIT", "safetensors", "at disk: sealed", "absent -> queued"):
        assert text in out
    assert "small" in trims.done("list")


def test_check_finds_nothing_in_a_healthy_daemon_and_the_flipped_bit_in_another(
    trims: Command, manifest: Callable[..., Path], daemon: Daemon
) -> None:
    trims.done("add", manifest("small"))
    trims.done("load", "small")
    report = has(trims.json("check", "--verify"), {"findings": list, "replicas": int, "verified_bytes": int})
    assert (report["findings"], report["replicas"]) == ([], 2)
    assert "all is well: 2 replicas" in trims.done("check")
    assert "verified" in trims.done("check", "--verify")
    path = Path(trims.json("show", "small")["replicas"][1]["location"])
    path.chmod(0o600)
    with path.open("r+b") as image:
        image.seek(-99, os.SEEK_END)
        image.write(b"\xff\x00\xff")
    status, out, _ = trims("check", "--verify")
    assert status == 1
    assert "at disk: its bytes hash to" in out


def test_doctor_examines_also_where_no_daemon_is(trims: Command, folder: Path) -> None:
    _, out, _ = trims("doctor", "--json")
    findings = json.loads(out)
    assert all(set(finding) == {"verdict", "what", "advice"} for finding in findings)
    assert any("daemon serving" in finding["what"] for finding in findings)
    lonely = Command(folder / "nowhere", trims.capsys)
    _, out, _ = lonely("doctor", "--json")
    (away,) = [finding for finding in json.loads(out) if "no daemon answers" in finding["what"]]
    assert (away["verdict"], away["advice"]) == ("note", "trims serve")
    assert "Python" in lonely("doctor")[1]


def test_doctor_names_segments_of_a_folder_whose_daemon_is_gone(
    capsys: pytest.CaptureFixture[str],
    start_process: Callable[..., subprocess.Popen[bytes]],
    folder: Path,
    checkpoint: Callable[..., Path],
) -> None:
    trims = Command(folder / "run", capsys)
    process = start_process()
    with connect(folder / "run") as session:
        session.open_file(checkpoint("m", nbytes=300_000)).close()
    prefix = shm_prefix(folder / "state")
    there = f"rm /dev/shm/{prefix}.*"
    assert there not in trims("doctor", "--json")[1], "its daemon runs"
    process.kill()
    process.wait()
    findings = json.loads(trims("doctor", "--json")[1])
    (orphans,) = [finding for finding in findings if there in finding["advice"]]
    assert "300.0 KiB (1 images)" in orphans["what"]
    for segment in Path("/dev/shm").glob(f"{prefix}.*"):
        segment.unlink()
    assert there not in trims("doctor", "--json")[1]


def test_doctor_ends_by_what_to_type_next(trims: Command, folder: Path) -> None:
    assert trims("doctor")[1].splitlines()[-1] == "no problems; next: `trims add MODEL`"
    lonely = Command(folder / "nowhere", trims.capsys)
    assert lonely("doctor")[1].splitlines()[-1] == "no problems; next: `trims serve`"


def test_a_table_shows_square_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    from trims.cli import output

    with output.console().capture() as captured:
        output.table(["remedy"], [["pip install 'trims[gpu]'"]], empty="nothing")
    assert "pip install 'trims[gpu]'" in captured.get()
    assert capsys.readouterr().out == ""


def test_a_path_is_never_broken_though_the_terminal_is_narrow() -> None:
    from trims.cli.output import REPLICA_COLUMNS, table_lines

    path = f"/{'long-name/' * 12}model.safetensors"
    row = [path, "gpu:0", "draining", "1023.9 MiB", "12", "1234567, 1234568 +12", "last lease closes"]
    wide = table_lines(REPLICA_COLUMNS, [row], None)
    narrow = table_lines(REPLICA_COLUMNS, [row], 80)
    assert len(wide) == 2, "one line for each row, for programs that read lines"
    assert narrow[2] == path
    assert all(len(line) <= 80 for line in narrow if line != path)
    assert [line.split() for line in (f"{narrow[0]} {narrow[1]}", f"{narrow[2]} {narrow[3]}")] == [
        line.split() for line in wide
    ]


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    script = tmp_path / "trims.bash"
    script.write_text(subprocess.run(
        [sys.executable, "-m", "trims.cli.main", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout)  # fmt: skip
    typed = (
        f'source {script}; COMP_WORDS=(trims evi); COMP_CWORD=1; _shtab_trims trims evi trims; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True)
    assert done.stdout == "evict\n"


def test_watch_prints_a_line_for_every_step(trims: Command, manifest: Callable[..., Path], daemon: Daemon) -> None:
    """In a process of its own: it ends when its reader does."""
    trims.done("add", manifest("small"), "--lazy")
    command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(trims.runtime_dir), "watch"]
    with (
        subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as second,
    ):
        assert first.stdout is not None
        assert second.stdout is not None
        stop = threading.Event()
        thread = threading.Thread(target=keep_busy, args=(daemon, stop))
        thread.start()
        change = json.loads(first.stdout.readline())
        line = second.stdout.readline()
        stop.set()
        thread.join()
        first.terminate()
        second.terminate()
    fields = {"key": str, "place": str, "old": str, "new": str, "why": str, "generation": int, "names": list}
    has(change, fields)
    assert change["names"] == ["small"]
    assert line.startswith("small at cpu: ")
    assert " -> " in line


def keep_busy(daemon: Daemon, stop: threading.Event) -> None:
    """Load and evict until the watcher has seen it."""
    while not stop.is_set():
        daemon.store.load("small", CPU).result(60)
        daemon.store.evict("small")


# -- orders --------------------------------------------------------------------------------------------------------


def test_load_evict_and_load_again(trims: Command, manifest: Callable[..., Path]) -> None:
    trims.done("add", manifest("small"), "--lazy")
    assert has(trims.json("load", "small"), REPLICA)["place"] == "cpu"
    assert "small is at disk" in trims.done("load", "small", "--place", "disk", "--deadline-s", "60")
    assert trims.json("evict", "small") == {"freed": ["cpu"], "draining": []}
    assert "small is not resident at cpu" in trims.done("evict", "small")
    assert "small is at cpu" in trims.done("load", "small")
    assert trims.json("evict", "small", "--all-tiers")["freed"] == ["cpu", "disk"]
    assert trims.json("ps")["replicas"] == []


def test_an_image_without_a_name_is_evicted_by_the_beginning_of_its_key(
    trims: Command, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("m", nbytes=1000)
    with connect(daemon.config.runtime_dir) as session, session.open_file(path):
        checkpoint("m", nbytes=2000)
        daemon.store.resolver.looked_stale(f"file:{path}")
        session.open_file(path).close()
        (nameless,) = [each for each in trims.json("ps")["replicas"] if not each["names"]]
        shown = nameless["key"][:16]
        assert shown in trims.done("ps")
        assert "0" * 8 in trims.refused("evict", "0" * 8)
        assert trims.json("evict", shown, "--drain") == {"freed": [], "draining": ["cpu"]}
    wait_until(lambda: len(trims.json("ps")["replicas"]) == 1, "it goes with its last reader")
    assert [each["names"] for each in trims.json("ps")["replicas"]] == [[f"file:{path}"]]
    assert trims.json("evict", str(path)) == {"freed": ["cpu"], "draining": []}


def test_evict_spares_readers_unless_it_drains(trims: Command, manifest: Callable[..., Path]) -> None:
    trims.done("add", manifest("small"))
    with connect(trims.runtime_dir) as session, session.open("small", place="cpu") as weights:
        assert "1 lease" in trims.refused("evict", "small")
        assert trims.json("evict", "small", "--drain") == {"freed": [], "draining": ["cpu"]}
        assert "last lease closes" in trims.done("ps")
        assert weights["weight"].size
    trims.done("add", manifest("small"))
    with connect(trims.runtime_dir) as session, session.open("small", place="cpu", deadline_s=60.0):
        assert "goes from cpu when its last lease closes" in trims.done("evict", "small", "--drain")


def test_pin_loads_and_keeps_until_unpin(trims: Command, manifest: Callable[..., Path]) -> None:
    trims.done("add", manifest("small"))
    assert "small is pinned at cpu" in trims.done("pin", "small")
    assert "unpinned" in trims.done("ps")
    assert "unpin it first" in trims.refused("evict", "small")
    assert "not pinned at cpu any more" in trims.done("unpin", "small")
    assert "small is freed at cpu" in trims.done("evict", "small")
    trims.done("pin", "small", "--place", "disk")
    assert [replica["pinned"] for replica in trims.json("ps")["replicas"]] == [True]


@pytest.mark.parametrize("command", ["show", "load", "evict", "pin", "unpin", "rm"])
def test_an_unknown_model_is_an_error_that_says_how_to_register_one(trims: Command, command: str) -> None:
    assert "no model 'nobody' is registered; `trims list` shows what is" in trims.refused(command, "nobody")


def test_places_that_are_none_are_refused_by_name(trims: Command, manifest: Callable[..., Path]) -> None:
    trims.done("add", manifest("small"), "--lazy")
    assert "'moon' is not a place" in trims.refused("load", "small", "--place", "moon")
    assert "this daemon has no tier gpu:0; it has cpu, disk" in trims.refused("load", "small", "--place", "gpu")


def test_a_load_that_fails_says_why(trims: Command, manifest: Callable[..., Path], folder: Path) -> None:
    trims.done("add", manifest("small"), "--lazy")
    (folder / "m.safetensors").write_bytes(b"\xff" * 5000)
    assert "m.safetensors" in trims.refused("load", "small")


def test_drain_refuses_opens_from_then_on(trims: Command, manifest: Callable[..., Path]) -> None:
    from trims.core.errors import DrainingError

    trims.done("add", manifest("small"))
    assert "new opens are refused" in trims("drain")[2]
    assert trims.json("status")["health"]["status"] == "draining"
    with connect(trims.runtime_dir) as session, pytest.raises(DrainingError):
        session.open("small")


# -- converting without a daemon -----------------------------------------------------------------------------------


@pytest.fixture
def alone(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`trims` where no daemon is, with its state in the folder."""
    monkeypatch.setenv("TRIMS_STATE_DIR", str(folder / "state"))
    return Command(folder / "nowhere", capsys)


def test_convert_writes_an_image_any_safetensors_reader_reads(
    alone: Command, manifest: Callable[..., Path], folder: Path
) -> None:
    source = manifest("small")
    for number, words in enumerate((folder / "m.safetensors", source)):
        target = folder / f"image-{number}.safetensors"
        assert f"{target}: image of" in alone.done("convert", words, "-o", target)
        np.testing.assert_array_equal(load_file(target)["weight"], load_file(folder / "m.safetensors")["weight"])


def test_convert_overwrites_nothing_and_leaves_nothing_of_a_failure(
    alone: Command, checkpoint: Callable[..., Path], folder: Path
) -> None:
    target = folder / "image.safetensors"
    (folder / "broken.safetensors").write_bytes(b"\xff" * 100)
    assert "broken.safetensors" in alone.refused("convert", folder / "broken.safetensors", "-o", target)
    assert not target.exists()
    assert "no model 'absent'" in alone.refused("convert", "absent", "-o", target)
    assert not target.exists()
    target.write_text("mine")
    assert "exists; remove it" in alone.refused("convert", checkpoint("m"), "-o", target)
    assert target.read_text() == "mine"
    assert "no/such" in alone.refused("convert", checkpoint("m"), "-o", folder / "no/such/folder")


# -- the command itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("list",),
        ("ps",),
        ("show", "m"),
        ("load", "m"),
        ("evict", "m"),
        ("pin", "m"),
        ("unpin", "m"),
        ("rm", "m"),
        ("watch",),
        ("check",),
        ("drain",),
        ("shutdown",),
    ],
)
def test_without_a_daemon_every_command_names_address_and_remedy(alone: Command, words: tuple[str, ...]) -> None:
    assert f"no daemon answers at {alone.runtime_dir}/control.sock; start one with `trims serve`" in alone.refused(
        *words
    )


@pytest.mark.parametrize("words", [("explode",), ("show",), ("load", "m", "--deadline-s", "soon"), ("convert", "m")])
def test_a_wrong_command_line_is_status_two(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    assert "usage: trims" in capsys.readouterr().err


def test_version_and_help_are_status_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    for words in (["--runtime-dir", "x", "--version"], ["--help"], ["serve", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code
    assert "--cpu-capacity-bytes" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("list", "--json"), ("list",), ("ps", "--json")])
def test_a_reader_that_has_enough_ends_the_command_quietly(trims: Command, words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(trims.runtime_dir), *words]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_runtime_folder_may_be_said_before_the_command_or_after_it(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIMS_RUNTIME_DIR", raising=False)
    folder = str(daemon.config.runtime_dir)
    for arguments in (["--runtime-dir", folder, "status"], ["status", "--runtime-dir", folder]):
        assert main(arguments) == 0
        assert capsys.readouterr().out.startswith("serving: process")
