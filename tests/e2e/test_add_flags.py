"""Flags of `trims add` that state fields of the manifest: a real daemon and endpoint honour each, or refuse it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import yaml
from endpoints import Endpoint
from fleets import SUPPORT, register
from tiny_models import named, save

import trims
from trims.control import aadmin
from trims.core.errors import CallerError, ManifestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
HANDLERS = f"{SUPPORT}/own_handlers.py"
#: All flags with numbers, and the fields that `trims show` has then.
NUMBERS = {
    "instances": 2, "threads": 3, "hot": 1, "deadline_s": 1.5, "keep_alive_s": 20, "max_batch_size": 8,
    "batch_delay_s": 0.01,
}  # fmt: skip
FLAGS = [f"--{field.removesuffix('_s').replace('_', '-')}={value}" for field, value in NUMBERS.items()]


def command(daemon: Daemon, *words: str | Path) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir)]
    return subprocess.run([*run, *map(str, words)], check=False, capture_output=True, text=True, timeout=120)


def add(daemon: Daemon, *words: str | Path) -> None:
    done = command(daemon, "add", *words)
    assert done.returncode == 0, done.stderr


def shown(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return the manifest that `trims show` prints."""
    done = command(daemon, "show", name, "--manifest")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def call(endpoint: Endpoint, function: str, event: object) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{endpoint.port}/functions/{function}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(event).encode()), timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture
def endpoint(daemon: Daemon, checkpoint: Callable[..., Path]) -> Iterator[Endpoint]:
    """An endpoint, and the model `m` with the weight `factor` = 2."""
    register(daemon, checkpoint)
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process")
    yield made
    made.end(signal.SIGKILL)


def test_every_number_is_in_the_manifest_that_show_prints(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    add(daemon, checkpoint("a"), *FLAGS, "--place", "disk", "--lazy")
    assert shown(daemon, "a")["predictor"] == NUMBERS
    with trims.connect(daemon.config.runtime_dir) as session, session.open("a") as weights:
        assert weights.place == "disk"


def test_a_version_lies_beside_and_is_opened_by_its_name(
    daemon: Daemon, checkpoint: Callable[..., Path], folder: Path
) -> None:
    add(daemon, checkpoint("a", {"n": np.array(1)}), "--version", "1")
    checkpoint("b", {"n": np.array(2)})
    add(daemon, folder / "b.safetensors", "--name", "a", "--version", "1.10")
    assert shown(daemon, "a@1.10")["version"] == "1.10"
    with trims.connect(daemon.config.runtime_dir) as session:
        for name, value in (("a", 1), ("a@1", 1), ("a@1.10", 2)):
            with session.open(name) as weights:
                assert int(weights["n"]) == value


def test_functions_have_their_deadline_instances_and_keep_alive(
    daemon: Daemon, endpoint: Endpoint, tmp_path: Path
) -> None:
    function = (HANDLERS, "--model", "m")
    add(daemon, *function, "--name", "hang", "--handler", "hang", "--deadline", "1")
    status, answer = call(endpoint, "hang", 1)
    assert (status, "took more than 1 s" in answer["error"]) == (504, True)
    add(daemon, *function, "--name", "meet", "--handler", "meet", "--instances", "2")
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(lambda _: call(endpoint, "meet", str(tmp_path)), range(2)))
    assert answers == [(200, answers[0][1])] * 2
    assert len(answers[0][1]) == 2, "two processes answered at once"
    add(daemon, *function, "--name", "brief", "--keep-alive", "0")
    first, second = (call(endpoint, "brief", {"x": 1})[1]["pid"] for _ in range(2))
    assert first != second, "an idle predictor does not stay"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_folder_has_its_options_and_cuts_texts_if_it_says_so(
    daemon: Daemon, endpoint: Endpoint, folder: Path
) -> None:
    whole = save(named("BertForSequenceClassification"), folder / "whole")
    add(daemon, whole, "--name", "whole")
    add(daemon, whole, "--name", "cut", "--truncate", "--option", "top_k=2")
    assert shown(daemon, "cut")["predictor"] == {"options": {"top_k": 2, "truncation": True}}
    (status, answer), (_, refused) = (endpoint.infer_bytes(name, "text", b"cat " * 100) for name in ("cut", "whole"))
    assert status == 200, answer
    shapes = {each["name"]: each["shape"] for each in answer["outputs"]}
    assert shapes["label"] == [1, 2]
    assert "truncation" in refused["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m.yaml", "--deadline", "3"], "--deadline is for artifacts and functions; m.yaml is a manifest: write"),
        (["m.yaml", "--version", "3"], "--version is for artifacts and functions; m.yaml is a manifest: write version"),
        (["m.yaml", "--truncate"], "write predictor.options.truncation there"),
        (["a.safetensors", "--deadline", "soon"], "--deadline: a: predictor.deadline_s: is 'soon'; write a number of"),
        (
            ["a.safetensors", "--instances", "0"],
            "--instances: a: predictor.instances: is 0; write a whole number from 1",
        ),
        (["a.safetensors", "--hot", "-1"], "--hot: a: predictor.hot: is -1"),
        (["a.safetensors", "--place", "moon"], "--place: a: residency.place: 'moon' is not a place"),
        (["a.safetensors", "--version", ""], "--version: a: version: is empty"),
        (["a.safetensors", "--batch-delay", "0.1"], "--batch-delay: a: predictor: 'batch_delay_s' has requests wait"),
        (["a.safetensors", "--prove", "first"], "--prove is for what is fetched from an address"),
        (["m.yaml", "--prove", "first"], "--prove is for what is fetched from an address"),
        (["hf://a/b", "--lazy", "--prove", "first"], "--prove is for what is fetched now, and a lazy"),
        (["a.safetensors", "--truncate"], "--truncate is for folders of Hugging Face models"),
        ([HANDLERS, "--model", "m", "--place", "cpu"], "--place: own_handlers: has 'residency', which the model 'm'"),
        (
            [HANDLERS, "--model", "m", "--max-batch-size", "2"],
            "--max-batch-size: own_handlers: predictor: 'max_batch_si",
        ),
        (
            [HANDLERS, "--model", "m", "--artifact-option", "a=1"],
            "--artifact-option a: own_handlers: artifact: has 'mod",
        ),
    ],
)
def test_a_flag_that_says_nothing_or_too_much_is_refused_by_its_name(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    register(daemon, checkpoint)
    path = checkpoint("a")
    (path.parent / "m.yaml").write_text(json.dumps({"name": "a", "artifact": {"path": path.name}}))
    monkeypatch.chdir(path.parent)
    done = command(daemon, "add", *words)
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert command(daemon, "list", "--names").stdout.split() == ["m"]


def test_both_clients_in_python_refuse_to_prove_what_lies_here(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    path = checkpoint("a")

    async def add() -> None:
        async with aadmin(daemon.config.runtime_dir) as control:
            await control.add(path, prove=True)

    with trims.admin(daemon.config.runtime_dir) as control:
        for order in (lambda: control.add(path, prove=True), lambda: asyncio.run(add())):
            with pytest.raises(CallerError, match=r"^prove is for what is fetched from an address"):
                order()
        assert not control.models()


def test_both_clients_in_python_take_fields(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    path, fields = checkpoint("a"), {"version": "2", "predictor": {"deadline_s": 3}}
    with trims.admin(daemon.config.runtime_dir) as control:
        made = control.add(path, fields=fields)
        assert (made.version, made.manifest["predictor"]) == ("2", {"deadline_s": 3})
        for none in ([1], [], "", 0):
            with pytest.raises(CallerError, match=r"fields is .*; state a mapping"):
                control.add(path, name="b", fields=cast("Any", none))
        with pytest.raises(ManifestError, match=r"^b: predictor\.deadline_s: is -1"):
            control.add(path, name="b", fields={"predictor": {"deadline_s": -1}})

    async def add_there() -> Any:
        async with aadmin(daemon.config.runtime_dir) as there:
            with pytest.raises(CallerError, match=r"fields is \[1\]; state a mapping"):
                await there.add(path, name="b", fields=cast("Any", [1]))
            with pytest.raises(CallerError, match=r"^version is for artifacts"):
                await there.add({"name": "b", "artifact": {"path": str(path)}}, fields=fields)
            return await there.add(path, name="b", fields=fields)

    assert asyncio.run(add_there()).manifest["predictor"] == {"deadline_s": 3}
