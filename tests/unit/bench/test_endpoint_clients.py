"""Clients that ask an endpoint for many models: right, wrong and refused answers are counted apart, with a stand-in."""

from __future__ import annotations

import json
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from trims_bench.endpoint_clients import take
from trims_bench.zoo import Load, Model, chosen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Output of the model `right`; the stand-in gives the same for every model.
HIDDEN = (1.0, -3.0)


@contextmanager
def endpoint() -> Iterator[int]:
    """Answers as an endpoint does: the first request of a model cold, a model `refused` with 503."""
    asked: set[str] = set()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            model = self.path.split("/")[3]
            content = struct.pack("<f", 9.0) + struct.pack("<2f", *HIDDEN)
            outputs = [
                {"name": "pooler_output", "parameters": {"binary_data_size": 4}},
                {"name": "last_hidden_state", "parameters": {"binary_data_size": 8}},
            ]
            with lock:
                cold = model not in asked
                asked.add(model)
            header = json.dumps({"parameters": {"cold": cold}, "outputs": outputs}).encode()
            self.send_response(503 if model == "refused" else 200)
            self.send_header("Content-Length", str(len(header) + len(content)))
            self.send_header("Inference-Header-Content-Length", str(len(header)))
            self.end_headers()
            self.wfile.write(header + content)

        def log_message(self, *_: object) -> None:
            """Log nothing on standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asked_of(folder: Path, name: str, answer: float) -> dict[str, list[Any]]:
    with endpoint() as port:
        return take(port, [Model(name, folder, answer, 1)], Load(zipf=1.0, clients=2, seconds=0.05))


def test_right_answers_are_counted_as_cold_and_warm(tmp_path: Path) -> None:
    told = asked_of(tmp_path, "right", 2.0)
    assert len(told["cold"]) == 1
    assert len(told["warm"]) >= 1
    assert min(told["cold"] + told["warm"]) > 0
    assert told["failed"] == []


def test_a_wrong_answer_is_a_failed_request_with_its_words(tmp_path: Path) -> None:
    told = asked_of(tmp_path, "wrong", 2.5)
    assert told["cold"] + told["warm"] == []
    assert set(told["failed"]) == {"wrong gave 2.0, not 2.5"}


def test_a_refusal_is_a_failed_request_with_its_words_and_the_clients_go_on(tmp_path: Path) -> None:
    told = asked_of(tmp_path, "refused", 2.0)
    assert told["cold"] + told["warm"] == []
    assert len(told["failed"]) > 2
    assert "refused: refused: 503" in told["failed"][0]


def test_models_are_chosen_as_often_as_their_rank_says_and_the_same_by_one_seed() -> None:
    models = [{"name": str(rank)} for rank in range(3)]
    following, again = chosen(models, 1.0, seed=5), chosen(models, 1.0, seed=5)
    names = [next(following)["name"] for _ in range(1000)]
    assert [next(again)["name"] for _ in range(1000)] == names
    assert names.count("0") > names.count("1") > names.count("2") > 100
