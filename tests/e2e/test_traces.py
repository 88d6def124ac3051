"""Requests as spans of OpenTelemetry: an endpoint in a process of its own, and a collector in the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from endpoints import Endpoint
from fleets import register
from looking import wait_until

from trims.control import admin
from trims.trace.reader import read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from collectors import Collector, Span

    from trims.daemon.main import Daemon
    from trims.trace.reader import Record

pytestmark = pytest.mark.usefixtures("forked_starts")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "mine=1"}
INPUTS = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}
SERVER, ERROR = 2, 2
START, RUN = {"process", "connect", "open", "import", "load"}, {"input", "predict", "output"}
ROUTE = "POST /v2/models/{model}/infer"


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
    from collectors import Collector

    made = Collector()
    yield made
    made.close()


@pytest.fixture
def start(
    daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Endpoint]]:
    """Start an endpoint with such variables, for the model `m`, which doubles, and for functions with their names."""
    made: list[Endpoint] = []
    register(daemon, checkpoint, predictor={"function": "own_functions:scale"}, **INPUTS)
    for name in ("make_span", "tell_context", "fail_at_once"):
        register(daemon, checkpoint, name=name, predictor={"function": f"own_functions:{name}"}, **INPUTS)

    def begin(url: str, **variables: str) -> Endpoint:
        for name in [each for each in os.environ if each.startswith("OTEL_")]:
            monkeypatch.delenv(name)
        for name, value in {"EXPORTER_OTLP_ENDPOINT": url, "BSP_SCHEDULE_DELAY": "50", **variables}.items():
            monkeypatch.setenv(f"OTEL_{name}", value)
        made.append(Endpoint(daemon.config.runtime_dir, "--isolation", "process"))  # functions send spans themselves
        return made[-1]

    yield begin
    for each in made:
        if each.process.returncode is None:
            each.end()


def ask(endpoint: Endpoint, headers: Mapping[str, str], model: str = "m", x: float = 1.5) -> Any:
    """One request over HTTP with headers: its answer."""
    body = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [x]}]}
    url = f"http://127.0.0.1:{endpoint.port}/v2/models/{model}/infer"
    request = urllib.request.Request(url, json.dumps(body).encode(), dict(headers))
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert "traceresponse" not in answer.headers
        return json.loads(answer.read())


def check_tree(spans: Mapping[str, Span], name: str, starts: set[str]) -> Span:
    """One tree below the client's span, each span within its parent; returns the server's."""
    server = spans[name]
    assert (server.parent, server.kind) == (PARENT, SERVER)
    assert spans.keys() == {name, "queue", "run", *starts, *RUN}
    parents = {"queue": name, "run": name, **dict.fromkeys(starts, "queue"), **dict.fromkeys(RUN, "run")}
    for child, parent in parents.items():
        assert spans[child].parent == spans[parent].own, child
        assert spans[child].begin_ns <= spans[child].end_ns
        # The parents' ends were measured by another clock than the stages' lengths.
        assert spans[parent].begin_ns - 10_000_000 <= spans[child].begin_ns, child
        assert spans[child].end_ns <= spans[parent].end_ns + 10_000_000, child
    return server


def test_a_request_is_one_tree_from_the_client_s_span_to_the_stages(
    start: Callable[..., Endpoint], collector: Collector
) -> None:
    endpoint = start(collector.url)
    assert ask(endpoint, CONTEXT)["outputs"][0]["data"] == [3.0]
    server = check_tree(collector.trace(TRACE, ROUTE), ROUTE, START)
    assert server.state == "mine=1"
    told = server.attributes
    assert (told["faas.coldstart"], told["trims.predictor"] != "running") == (True, True)
    assert (told["http.request.method"], told["http.response.status_code"]) == ("POST", 200)
    assert (told["server.address"], told["server.port"]) == ("127.0.0.1", endpoint.port)
    assert (told["trims.model.name"], told["trims.model.version"], told["trims.place"]) == ("m", "0.0.0", "cpu")
    assert (told["url.path"], told["http.route"]) == ("/v2/models/m/infer", "/v2/models/{model}/infer")
    again = TRACE.replace("0", "9")
    ask(endpoint, {"traceparent": f"00-{again}-{PARENT}-01"})
    server = check_tree(collector.trace(again, ROUTE), ROUTE, set())
    assert (server.attributes["faas.coldstart"], server.attributes["trims.predictor"]) == (False, "running")
    assert collector.services == {"trims-endpoint"}


def test_a_request_that_is_recorded_in_files_too_is_the_same_trace_there(
    start: Callable[..., Endpoint], collector: Collector, daemon: Daemon
) -> None:
    endpoint = start(collector.url)
    ask(endpoint, {})  # from here on it knows where files are
    ask(endpoint, {**CONTEXT, "tracestate": "trims=1"})
    sent = collector.trace(TRACE, ROUTE)
    check_tree(sent, ROUTE, set())
    assert endpoint.end() == 0
    (trace,) = read_traces(daemon.config.state_dir / "trace")
    written = {each.name: each for each in trace.spans}
    assert (trace.trace_id, written.keys()) == (TRACE, sent.keys())
    for name in (ROUTE, "queue", "run"):
        assert (written[name].span_id, written[name].parent_id) == (sent[name].own, sent[name].parent)
    assert {written[name].process.role for name in RUN} == {"predictor"}


def test_a_request_over_grpc_is_a_tree_too(start: Callable[..., Endpoint], collector: Collector) -> None:
    import grpc
    from trims_predictors.endpoint.grpc import inference_pb2 as pb
    from trims_predictors.endpoint.grpc import inference_pb2_grpc

    endpoint = start(collector.url, SERVICE_NAME="mine")
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype="FP64", shape=[1])
    tensor.contents.fp64_contents.append(1.5)
    with grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}") as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
        stub.ModelInfer(request, metadata=tuple(CONTEXT.items()), timeout=120)
        name = "inference.GRPCInferenceService/ModelInfer"
        told = check_tree(collector.trace(TRACE, name), name, START).attributes
        assert (told["rpc.system"], told["rpc.grpc.status_code"], told["faas.coldstart"]) == ("grpc", 0, True)
        assert told["server.port"] == endpoint.grpc_port
        streamed = TRACE.replace("0", "8")
        context = (("traceparent", f"00-{streamed}-{PARENT}-01"),)
        assert len(list(stub.ModelStreamInfer(iter([request]), metadata=context, timeout=120))) == 1
        check_tree(collector.trace(streamed, f"{name[:-10]}ModelStreamInfer"), f"{name[:-10]}ModelStreamInfer", set())
    assert collector.services == {"mine"}


def test_the_context_of_the_run_reaches_the_function_which_can_make_spans(
    start: Callable[..., Endpoint], collector: Collector
) -> None:
    endpoint = start(collector.url)
    told = [output["data"] for output in ask(endpoint, CONTEXT, "tell_context")["outputs"]]
    spans = collector.trace(TRACE, ROUTE)
    assert told == [[f"00-{TRACE}-{spans['run'].own}-01"], ["mine=1"]]
    again = TRACE.replace("0", "9")
    for _ in range(2):  # the first has imported the SDK, so the context is the current one from the second on
        ask(endpoint, {"traceparent": f"00-{again}-{PARENT}-01"}, "make_span")
        spans = collector.trace(again, ROUTE)
        again = again.replace("9", "8")
    assert spans["mine"].parent == spans["run"].own


def test_errors_are_told_and_only_the_server_s_own_are_failures(
    start: Callable[..., Endpoint], collector: Collector
) -> None:
    endpoint = start(collector.url)
    with pytest.raises(urllib.error.HTTPError) as raised:
        ask(endpoint, CONTEXT, "unknown")
    raised.value.close()
    server = collector.trace(TRACE, ROUTE)[ROUTE]
    assert (server.status, server.attributes["http.response.status_code"]) == (0, 404)
    assert server.attributes["error.type"] == "model_not_found"
    again = TRACE.replace("0", "9")
    with pytest.raises(urllib.error.HTTPError) as raised:
        ask(endpoint, {"traceparent": f"00-{again}-{PARENT}-01"}, "fail_at_once")
    raised.value.close()
    spans = collector.trace(again, ROUTE)
    assert (spans[ROUTE].status, spans["run"].status, spans[ROUTE].attributes["error.type"]) == (
        ERROR,
        ERROR,
        "predictor",
    )
    (event,) = spans[ROUTE].events
    assert (event["name"], "ZeroDivisionError: by hand" in event["exception.message"]) == ("exception", True)


@pytest.mark.parametrize("context", [{}, {"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{PARENT}-01"}])
def test_a_request_without_a_context_begins_a_trace(
    start: Callable[..., Endpoint], collector: Collector, context: dict[str, str]
) -> None:
    ask(start(collector.url), context)
    wait_until(lambda: any(span.name == ROUTE for span in collector.spans), "the span was sent")
    (server,) = (span for span in collector.spans if span.name == ROUTE)
    assert server.parent == ""
    assert {span.trace for span in collector.spans} == {server.trace}


def test_a_client_that_is_not_sampled_gets_an_answer_and_no_spans(
    start: Callable[..., Endpoint], collector: Collector
) -> None:
    endpoint = start(collector.url)
    (told,) = ask(endpoint, {"traceparent": f"00-{TRACE}-{PARENT}-00"}, "tell_context")["outputs"][0]["data"]
    assert told.startswith(f"00-{TRACE}-")
    assert told.endswith("-00")
    assert endpoint.end() == 0
    assert collector.spans == []


@pytest.mark.parametrize("flags", ["00", "01", "02", "03"])
def test_the_predictor_s_code_finds_the_caller_s_state_and_flags(
    start: Callable[..., Endpoint], collector: Collector, flags: str
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "trims=1,foo=bar"}
    told = [output["data"][0] for output in ask(start(collector.url), headers, "tell_context")["outputs"]]
    assert (told[0][:36], told[0][-3:], told[1]) == (f"00-{TRACE}-", f"-{flags}", "trims=1,foo=bar")


def test_the_level_application_is_one_span_in_files_and_a_collector_has_all(
    start: Callable[..., Endpoint], collector: Collector, daemon: Daemon
) -> None:
    endpoint = start(collector.url)
    ask(endpoint, {}, "tell_context")
    ask(endpoint, {**CONTEXT, "tracestate": "trims=application"})
    check_tree(collector.trace(TRACE, ROUTE), ROUTE, START)
    assert endpoint.end() == 0
    (trace,) = read_traces(daemon.config.state_dir / "trace")
    assert [each.name for each in trace.spans] == [ROUTE]


def test_a_batch_that_fails_is_a_run_with_the_error_and_the_runs_after_it_are_others(
    start: Callable[..., Endpoint], collector: Collector, checkpoint: Callable[..., Path], daemon: Daemon
) -> None:
    batched = {"call": "own_predictors:Picky", "max_batch_size": 4, "batch_delay_s": 60.0}
    register(daemon, checkpoint, name="picky", predictor=batched, **INPUTS)
    endpoint = start(collector.url)
    ask(endpoint, {})
    traces = {f"{number:032x}": x for number, x in enumerate((1.0, -1.0, 2.0, 3.0), 1)}

    def answer(trace: str) -> int:
        context = {"traceparent": f"00-{trace}-{PARENT}-01", "tracestate": "trims=1"}
        try:
            return len(ask(endpoint, context, "picky", traces[trace])["outputs"])
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(answer, traces)) == [1, 400, 1, 1]
    assert endpoint.end() == 0
    runs = [each for each in collector.spans if each.name == "run" and each.trace in traces]
    together, alone = ([each for each in runs if each.attributes["batch_size"] == size] for size in (4, 1))
    assert {each.trace for each in together} == {each.trace for each in alone} == traces.keys()
    assert [(each.status, each.attributes["error.type"]) for each in together] == [(ERROR, "bad_request")] * 4
    assert {each.trace for each in alone if "error.type" in each.attributes} == {f"{2:032x}"}
    assert max(each.end_ns for each in together) <= min(each.begin_ns for each in alone)
    written = [each for trace in read_traces(daemon.config.state_dir / "trace") for each in trace.spans]
    errors = {each.span_id: each.attributes.get("error.type") for each in written if each.name == "run"}
    assert errors == {each.own: each.attributes.get("error.type") for each in runs}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_whose_client_leaves_is_marked_in_files_and_at_a_collector(
    start: Callable[..., Endpoint], collector: Collector, checkpoint: Callable[..., Path], daemon: Daemon, protocol: str
) -> None:
    register(daemon, checkpoint, name="slow", predictor={"call": "own_predictors:Slow"}, **INPUTS)
    endpoint = start(collector.url)
    ask(endpoint, {})
    context = {**CONTEXT, "tracestate": "trims=1"}
    leave, name = (_over_http if protocol == "http" else _over_grpc)(endpoint, context)
    wait_until(lambda: endpoint.metrics().get('trims_predictors{model="slow",state="busy"}') == 1, "it runs")
    leave()
    sent = collector.trace(TRACE, name)

    def written() -> Mapping[str, Record]:
        spans = [each for trace in read_traces(daemon.config.state_dir / "trace") for each in trace.spans]
        return {each.name: each for each in spans if each.is_finished}

    wait_until(lambda: {name, "run"} <= written().keys(), "both spans are in files")
    endpoint.end(signal.SIGKILL)
    for each in (name, "run"):
        assert written()[each].attributes["error.type"] == sent[each].attributes["error.type"] == "CancelledError"
    status = ("http.response.status_code", 499) if protocol == "http" else ("rpc.grpc.status_code", 1)
    assert status in sent[name].attributes.items()
    assert sent[name].status == 0, "the server is not to blame"


def _over_http(endpoint: Endpoint, context: Mapping[str, str]) -> tuple[Callable[[], object], str]:
    """Ask for what takes long; return what hangs up, and the name of the request's span."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [30.0]}]})
    head = ["POST /v2/models/slow/infer HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    sock = socket.create_connection(("127.0.0.1", endpoint.port), timeout=60)
    sock.sendall("\r\n".join([*head, *map(": ".join, context.items()), "", body]).encode())
    return sock.close, ROUTE


def _over_grpc(endpoint: Endpoint, context: Mapping[str, str]) -> tuple[Callable[[], object], str]:
    """Ask for what takes long; return what hangs up, and the name of the request's span."""
    import grpc
    from trims_predictors.endpoint.grpc import inference_pb2 as pb
    from trims_predictors.endpoint.grpc import inference_pb2_grpc

    request = pb.ModelInferRequest(model_name="slow")
    request.inputs.add(name="x", datatype="FP64", shape=[1]).contents.fp64_contents.append(30.0)
    channel = grpc.insecure_channel(f"127.0.0.1:{endpoint.grpc_port}")
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
    asking = stub.ModelInfer.future(request, metadata=tuple(context.items()))
    return lambda: (asking.cancel(), channel.close()), "inference.GRPCInferenceService/ModelInfer"


def test_the_last_spans_are_sent_when_the_endpoint_ends(start: Callable[..., Endpoint], collector: Collector) -> None:
    endpoint = start(collector.url, BSP_SCHEDULE_DELAY="3600000")
    ask(endpoint, CONTEXT)
    assert endpoint.end() == 0
    assert ROUTE in {span.name for span in collector.spans}


def test_a_collector_that_is_down_changes_nothing_and_costs_one_line(start: Callable[..., Endpoint]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
    endpoint = start("http://127.0.0.1:1", BSP_SCHEDULE_DELAY="5")
    for _ in range(20):
        assert ask(endpoint, CONTEXT)["outputs"][0]["data"] == [3.0]
    assert endpoint.end() == 0
    assert len([line for line in endpoint.said if "traces: " in line]) == 1, endpoint.said
    assert not [line for line in endpoint.said if "Traceback" in line]


def test_a_collector_that_never_answers_does_not_hold_the_end_up(start: Callable[..., Endpoint]) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="no SDK: pip install 'trims[otel]'")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        variables = {"BSP_SCHEDULE_DELAY": "5", "EXPORTER_OTLP_TIMEOUT": "600"}
        endpoint = start(f"http://127.0.0.1:{sock.getsockname()[1]}", **variables)
        assert ask(endpoint, CONTEXT)["outputs"][0]["data"] == [3.0]
        assert endpoint.end() == 0
    assert any("spans that were not sent within 5 s are lost" in line for line in endpoint.said)


def test_without_the_variables_requests_are_answered_and_nothing_is_handed_on(
    start: Callable[..., Endpoint], daemon: Daemon
) -> None:
    endpoint = start("", TRACES_EXPORTER="none")
    assert ask(endpoint, CONTEXT, "tell_context")["outputs"][0]["data"] == [""]
    with admin(daemon.config.runtime_dir) as control:
        assert control.status().health.status == "serving"
