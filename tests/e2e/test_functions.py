"""Functions over HTTP: registered by command, called with events, in real processes; good days and bad ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from endpoints import Endpoint
from fleets import SUPPORT, register
from looking import wait_until
from repository import ROOT

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from serving import Serving

pytestmark = pytest.mark.usefixtures("forked_starts")
HANDLERS = f"{SUPPORT}/own_handlers.py"
MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
EVENT = {"ce-id": "1", "ce-source": "/orders", "ce-type": "com.example.made", "ce-specversion": "1.0"}


class Reply(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


def call(
    endpoint: Endpoint, function: str, event: object = None, *, body: bytes | None = None, **headers: str
) -> Reply:
    """Call a function; names of headers have `_` in place of `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps(event).encode() if body is None else body
    url = f"http://127.0.0.1:{endpoint.port}/functions/{function}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, named), timeout=120) as answer:
            return Reply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, {name.lower(): value for name, value in error.headers.items()}, error.read())


def command(daemon: Serving, *words: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(daemon.config.runtime_dir)]
    return subprocess.run([*run, *words], check=False, capture_output=True, text=True, timeout=120)


def add(daemon: Serving, handler: str, *words: str, file: str = HANDLERS, model: str = "m") -> None:
    """Register a function of the handler's name."""
    done = command(daemon, "add", file, "--model", model, "--name", handler, "--handler", handler, *words)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def daemon(module_daemon: Serving) -> Serving:
    return module_daemon


@contextlib.contextmanager
def serving(daemon: Serving, *flags: str) -> Iterator[Endpoint]:
    environments = [f"--environments=mxnet={MXNET_PYTHON}"] * MXNET_PYTHON.exists()
    made = Endpoint(daemon.config.runtime_dir, "--isolation", "process", *environments, *flags)
    yield made
    made.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def endpoint(daemon: Serving) -> Iterator[Endpoint]:
    with serving(daemon) as made:
        yield made


@pytest.fixture(autouse=True)
def _models(daemon: Serving, module_checkpoint: Callable[..., Path]) -> None:
    """The daemon has the model `m` with the weight `factor` = 2, and no other."""
    with admin(daemon.config.runtime_dir) as control:
        for each in control.models():
            control.remove(each.name)
    register(daemon, module_checkpoint)


def test_a_function_answers_cold_and_warm_and_is_a_model_in_lists_and_metrics(
    daemon: Serving, endpoint: Endpoint
) -> None:
    add(daemon, "handler")
    first, second = (call(endpoint, "handler", {"x": 3}) for _ in range(2))
    assert (first.status, first.value["y"], first.headers["content-type"]) == (200, 6.0, "application/json")
    assert first.value["pid"] == second.value["pid"] != os.getpid()
    assert endpoint.ask("GET", "/functions")[1]["functions"] == [
        {"name": "handler", "model": "m", "as": "weights", "handler": "own_handlers.py:handler", "description": ""}
    ]
    assert command(daemon, "list").stdout.split("\n")[1].split()[0] == "handler"
    shown = command(daemon, "show", "handler").stdout
    assert f"function   {HANDLERS}:handler, with the model as weights" in shown
    metrics = endpoint.metrics()
    assert metrics['trims_requests_total{code="ok",model="handler",protocol="http"}'] == 2
    assert metrics['trims_answers_total{model="handler",start="cold"}'] == 1
    assert command(daemon, "rm", "handler").returncode == 0
    wait_until(lambda: call(endpoint, "handler", {"x": 3}).status == 404, "the function was removed")
    assert "m " in command(daemon, "list").stdout, "its model stays"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--handler", "later"], "'later' is `async def`; a handler is plain"),
        (["--handler", "missing"], "has no function 'missing'; it has handler, names"),
        (["--handler", "NUMBER", "--as", "tensorflow"], "--as is 'tensorflow'"),
        (["--model", "unknown"], "no model 'unknown' is registered"),
    ],
)
def test_add_refuses_what_is_no_function_of_a_model(
    daemon: Serving, endpoint: Endpoint, words: list[str], message: str
) -> None:
    done = command(daemon, "add", HANDLERS, "--model", "m", *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert endpoint.ask("GET", "/functions")[1] == {"functions": []}


def test_a_cloud_event_is_answered_by_one(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "names")
    sent = {**EVENT, "ce-subject": "caf%C3%A9"}
    reply = call(endpoint, "names", {"n": 1}, **sent, content_type="application/json; charset=utf-8")
    stated = {name.removeprefix("ce-"): value for name, value in EVENT.items()}
    taken = {**stated, "subject": "café", "datacontenttype": "application/json; charset=utf-8", "data": {"n": 1}}
    assert reply.value == ["factor", taken]
    answered = {name: value for name, value in reply.headers.items() if name.startswith("ce-")}
    assert answered.pop("ce-id") != "1"
    assert answered.pop("ce-time").endswith("Z")
    assert answered == {
        "ce-source": "/functions/names", "ce-type": "com.example.made.response", "ce-specversion": "1.0",
    }  # fmt: skip
    text = call(endpoint, "names", body=b"hello", **EVENT, content_type="text/plain")
    assert text.value[1]["data"] == "hello"
    assert call(endpoint, "names", body=b"{", **EVENT).status == 400
    add(daemon, "answer_nothing")
    nothing = call(endpoint, "answer_nothing", {}, **EVENT)
    assert (nothing.status, nothing.body) == (204, b"")
    assert call(endpoint, "answer_nothing", {}).value is None


def test_a_request_that_is_wrong_is_told_by_status_and_words(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "names")
    for function, sent, status, words in (
        ("names", {"body": b"{"}, 400, "the event is no JSON"),
        ("names", {"body": b"[" * 100_000}, 400, "the event is no JSON"),
        ("names", {"body": b"1", "ce_id": "1"}, 400, "no header ce-specversion"),
        ("names", {"body": b"1", "content_type": "application/cloudevents+json"}, 400, "in binary mode"),
        ("names", {"body": b"1", "trims_deadline": "soon"}, 400, "the header trims-deadline is 'soon'"),
        ("m", {"body": b"1"}, 400, "'m' is a model, and no function"),
        ("unknown", {"body": b"1"}, 404, "no model 'unknown' is registered"),
    ):
        reply = call(endpoint, function, **sent)
        assert (reply.status, words in reply.value["error"]) == (status, True), reply
    assert call(endpoint, "names", body=b"").value == ["factor", None]


def test_what_a_handler_raises_is_told_with_its_place_and_the_log_has_the_traceback(
    daemon: Serving, endpoint: Endpoint
) -> None:
    add(daemon, "fail")
    before = len(endpoint.said)
    reply = call(endpoint, "fail", 1)
    assert reply.status == 500
    line = Path(HANDLERS).read_text().split("\n").index('    raise ZeroDivisionError("by hand")') + 1
    assert reply.value["raised"] == {
        "type": "ZeroDivisionError", "message": "by hand", "file": "own_handlers.py", "line": line,
        "function": "_helper",
    }  # fmt: skip
    assert f"ZeroDivisionError: by hand (own_handlers.py:{line} in _helper)" in reply.value["error"]
    assert "Traceback" not in reply.value["error"]
    wait_until(lambda: any("Traceback" in each for each in endpoint.said[before:]), "the log has the traceback")
    add(daemon, "answer_bytes")
    assert "the handler returned what JSON cannot hold" in call(endpoint, "answer_bytes", 1).value["error"]
    add(daemon, "refuse")
    refused = call(endpoint, "refuse", 1)
    assert (refused.status, refused.value) == (400, {"error": "it takes none of these"})


def test_a_handler_that_hangs_or_ends_its_process_costs_itself_alone(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "handler")
    add(daemon, "die")
    add(daemon, "hang")
    with admin(daemon.config.runtime_dir) as control:
        hang = control.show("hang").manifest
        control.add({**hang, "predictor": {**hang["predictor"], "deadline_s": 1}}, replace=True, lazy=True)
    late = call(endpoint, "hang", 1)
    assert (late.status, "took more than 1 s" in late.value["error"]) == (504, True)
    died = call(endpoint, "die", 1)
    assert (died.status, "it exited with status 3" in died.value["error"]) == (500, True)
    assert call(endpoint, "handler", {"x": 1}).value["y"] == 2.0


def test_a_request_waits_no_longer_than_its_deadline_says(daemon: Serving) -> None:
    add(daemon, "hang")
    with serving(daemon, "--most-instances", "1") as endpoint:  # or the second request has a predictor of its own
        connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=120)
        connection.request("POST", "/functions/hang", "1")
        wait_until(lambda: any("hangs" in each for each in endpoint.said), "the handler runs")
        late = call(endpoint, "hang", 1, trims_deadline="0.1")
        assert (late.status, "was free within 0.1 s" in late.value["error"]) == (504, True)
        connection.close()


def test_a_handler_whose_client_hangs_up_is_ended_in_time_for_the_next(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "hang_once")
    before = len(endpoint.said)
    connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=120)
    connection.request("POST", "/functions/hang_once", json.dumps(str(daemon.config.runtime_dir / "seen")))
    wait_until(lambda: any("hangs" in each for each in endpoint.said[before:]), "the handler runs")
    connection.close()
    assert call(endpoint, "hang_once", str(daemon.config.runtime_dir / "seen")).value == "at once"


def test_twenty_events_at_once_are_all_answered(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "handler")
    with ThreadPoolExecutor(20) as threads:
        replies = list(threads.map(lambda x: call(endpoint, "handler", {"x": x}), range(20)))
    assert [reply.value["y"] for reply in replies] == [2.0 * x for x in range(20)]


def test_an_event_of_ten_megabytes_comes_back_whole(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "names")
    event = {"text": "x" * 10_000_000}
    assert call(endpoint, "names", event).value == ["factor", event]


def test_a_file_that_is_edited_is_run_as_it_is_now(daemon: Serving, endpoint: Endpoint, folder: Path) -> None:
    file = folder / "edited.py"
    file.write_text("def handler(model, event): return 1")
    add(daemon, "handler", file=str(file))
    assert call(endpoint, "handler").value == 1
    file.write_text("def handler(model, event): return 2")
    wait_until(lambda: call(endpoint, "handler").value == 2, "the file was edited")
    file.write_text("def handler(model, event) return 2")
    wait_until(lambda: call(endpoint, "handler").status == 500, "the edited file is no Python")
    assert call(endpoint, "handler").value["raised"]["type"] == "SyntaxError"
    file.unlink()
    wait_until(lambda: "No such file" in call(endpoint, "handler").value["error"], "the file is gone")
    file.write_text("def handler(model, event): return 3")
    wait_until(lambda: call(endpoint, "handler").status == 200, "the file is there again")
    assert call(endpoint, "handler").value == 3


def test_a_function_follows_its_model_when_that_is_replaced_or_removed(
    daemon: Serving, endpoint: Endpoint, checkpoint: Callable[..., Path]
) -> None:
    add(daemon, "handler")
    assert call(endpoint, "handler", {"x": 1}).value["y"] == 2.0
    replaced = checkpoint("n", {"factor": np.array(5.0)})
    done = command(daemon, "add", str(replaced), "--name", "m", "--replace")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: call(endpoint, "handler", {"x": 1}).value["y"] == 5.0, "the model was replaced")
    assert command(daemon, "rm", "m").returncode == 0
    wait_until(lambda: call(endpoint, "handler", {"x": 1}).status == 404, "the model was removed")
    assert "'handler' has the artifact of 'm', which is not registered" in call(endpoint, "handler").value["error"]
    register(daemon, checkpoint)
    wait_until(lambda: call(endpoint, "handler", {"x": 1}).status == 200, "the model is there again")


@pytest.mark.parametrize("form", ["torch", "onnxruntime", "mxnet"])
def test_a_handler_gets_its_model_in_the_form_that_add_names(
    daemon: Serving, endpoint: Endpoint, folder: Path, form: str
) -> None:
    if form == "mxnet" and not MXNET_PYTHON.exists():
        pytest.skip("no MXNet environment: make mxnet-env")
    manifest, name = _model(form, folder)
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": form, **manifest}, lazy=True)
    add(daemon, "name_form", "--as", form, model=form)
    assert call(endpoint, "name_form").value == name


def _model(form: str, folder: Path) -> tuple[dict[str, Any], str]:
    """The artifact of a small model, and the name of the type that a handler gets."""
    if form == "torch":
        import torch

        from trims.testing.torch_modules import conv_net

        torch.save(conv_net().state_dict(), folder / "plain.pt")
        options = {"module": "trims.testing.torch_modules:conv_net"}
        return {"artifact": {"path": str(folder / "plain.pt"), "options": options}}, type(conv_net()).__name__
    if form == "onnxruntime":
        from onnx_files import linear

        return {"artifact": {"path": str(linear(folder))}}, "SharedSession"
    import mxnet_files

    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {"op": "dot", "name": "y", "attrs": {}, "inputs": [[0, 0, 0], [1, 0, 0]]},
    ]
    symbol = {"nodes": nodes, "arg_nodes": [0, 1], "heads": [[2, 0, 0]]}
    path = mxnet_files.save(folder, {"arg:w": mxnet_files.array("F32", (2, 3))}, symbol)
    return {"artifact": {"path": str(path)}, "framework": {"name": "mxnet"}}, "SymbolBlock"


def test_orders_on_a_function_are_orders_on_its_model(daemon: Serving, endpoint: Endpoint) -> None:
    add(daemon, "handler")
    for words in (["load", "handler", "--place", "cpu"], ["pin", "handler"]):
        done = command(daemon, *words)
        assert done.returncode == 0, done.stderr
    (replica,) = (
        each for each in json.loads(command(daemon, "ps", "--json").stdout)["replicas"] if each["place"] == "cpu"
    )
    assert (replica["names"], replica["pinned"]) == (["m"], True)
    assert command(daemon, "rm", "handler").returncode == 0
    (replica,) = (
        each for each in json.loads(command(daemon, "ps", "--json").stdout)["replicas"] if each["place"] == "cpu"
    )
    assert replica["pinned"], "the pin is the model's"
    add(daemon, "handler")
    assert command(daemon, "unpin", "handler").returncode == 0
    assert command(daemon, "evict", "handler").stdout == "handler is freed at cpu\n"
    assert call(endpoint, "handler", {"x": 1}).value["y"] == 2.0


def test_a_model_that_becomes_a_function_of_another_gives_its_image_up(
    daemon: Serving, endpoint: Endpoint, checkpoint: Callable[..., Path]
) -> None:
    assert command(daemon, "add", str(checkpoint("own"))).returncode == 0
    before = json.loads(command(daemon, "show", "own", "--json").stdout)["key"]
    add(daemon, "handler", "--name", "own", "--replace")
    assert call(endpoint, "own", {"x": 1}).value["y"] == 2.0
    keys = {each["key"] for each in json.loads(command(daemon, "ps", "--json").stdout)["replicas"]}
    assert before not in keys
    assert command(daemon, "add", str(checkpoint("own")), "--replace").returncode == 0
    assert json.loads(command(daemon, "show", "own", "--json").stdout)["key"] == before
    wait_until(lambda: call(endpoint, "own", {"x": 1}).status == 400, "the name is a model again")
