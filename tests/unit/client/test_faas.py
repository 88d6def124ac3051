"""Handlers on platforms for functions: the model is opened once, and what goes wrong has the status it deserves."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import own_handlers
import pytest
from looking import wait_until
from own_handlers import answer_bytes, answer_nothing, fail, handler, name_form, names, refuse
from trims_client.faas import Function, answer_text, check_form, lambda_handler, model_as, wsgi

from trims.control import admin
from trims.core.errors import CallerError, DaemonAwayError, ModelNotFoundError, PredictorError
from trims.core.functions import FORMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

    Ask = Callable[..., tuple[str, dict[str, str], Any]]


@pytest.fixture
def path(daemon: Daemon, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of the model `m`, whose daemon is the default one."""
    monkeypatch.setenv("TRIMS_RUNTIME_DIR", str(daemon.config.runtime_dir))
    made = checkpoint("m", {"factor": np.array(2.0)})
    with admin(daemon.config.runtime_dir) as control:
        control.add(made)
    return made


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Function]]:
    """Functions that the adapters make; closed after the test, as they otherwise are at the end of the process."""
    made: list[Function] = []
    create = Function.__init__

    def note(self: Function, *given: Any, **settings: Any) -> None:
        create(self, *given, **settings)
        made.append(self)

    monkeypatch.setattr(Function, "__init__", note)
    yield made
    for each in made:
        each.close()


def leases(daemon: Daemon) -> int:
    with admin(daemon.config.runtime_dir) as control:
        return control.status().stats.leases


def test_a_handler_gets_the_model_which_is_opened_once_and_closed(daemon: Daemon, path: Path) -> None:
    function = Function(handler, "m")
    assert leases(daemon) == 0
    assert [function({"x": x})["y"] for x in (1, 2)] == [2.0, 4.0]
    assert leases(daemon) == 1
    function.close()
    function.close()
    wait_until(lambda: leases(daemon) == 0, "the lease is given back")
    assert function({"x": 3})["y"] == 6.0, "it is opened again"
    function.close()


def test_a_path_is_opened_as_a_file(daemon: Daemon, path: Path) -> None:
    function = Function(names, path)
    assert function("?") == ["factor", "?"]
    function.close()


def test_threads_that_begin_together_open_the_model_once(daemon: Daemon, path: Path) -> None:
    function, together = Function(handler, "m"), threading.Barrier(8)
    answers: list[float] = []

    def ask() -> None:
        together.wait()
        answers.append(function({"x": 1})["y"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [2.0] * 8
    assert leases(daemon) == 1
    function.close()


#: A server that answers, forks, and answers in the child; then it prints the child's answer and the leases of both.
FORKING = """
import os, trims
from own_handlers import handler
function = trims.faas.Function(handler, "m")
function({"x": 1})
def leases():
    with trims.admin() as control:
        return control.status().stats.leases
read, write = os.pipe()
end, held = os.pipe()
if not os.fork():
    os.close(held)
    os.write(write, repr(function({"x": 4})["y"]).encode())
    os.read(end, 1)  # until the parent ends
    os._exit(0)
print(os.read(read, 100).decode(), leases())
"""


def test_a_forked_child_opens_the_model_for_itself(daemon: Daemon, path: Path) -> None:
    from fleets import SUPPORT

    paths = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["8.0 2"], 0), done.stderr


def test_an_open_that_fails_leaves_nothing_and_is_tried_again(daemon: Daemon, path: Path) -> None:
    function = Function(handler, "later")
    with pytest.raises(ModelNotFoundError):
        function.open()
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": "later", "artifact": {"path": str(path)}})
    assert function({"x": 1})["y"] == 2.0
    function.close()


def test_lambda_opens_at_once_and_is_called_with_event_and_context(
    daemon: Daemon, path: Path, closing: list[Function]
) -> None:
    function = lambda_handler(handler, "m")
    assert leases(daemon) == 1
    assert function({"x": 5}, object())["y"] == 10.0
    assert function({"x": 5})["y"] == 10.0
    with pytest.raises(ModelNotFoundError):
        lambda_handler(handler, "unknown")


@pytest.fixture
def ask(path: Path, closing: list[Function]) -> Ask:
    """Send one request to a handler as a WSGI server does; returns status, headers and answer."""

    def send(
        body: bytes = b"", function: Any = handler, model: str = "m", log: io.StringIO | None = None, **environ: str
    ) -> tuple[str, dict[str, str], Any]:
        told: list[Any] = []
        given = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(len(body)), **environ}
        streams = {"wsgi.input": io.BytesIO(body), "wsgi.errors": log or io.StringIO()}
        answer = b"".join(wsgi(function, model)({**given, **streams}, lambda *head: told.extend(head)))
        status, headers = told
        if status != "204 No Content":
            assert dict(headers)["Content-Length"] == str(len(answer))
        return status, dict(headers), json.loads(answer) if answer else None

    return send


def test_wsgi_answers_json_with_json(ask: Ask) -> None:
    status, headers, answer = ask(b'{"x": 1.5}')
    assert (status, headers["Content-Type"], answer["y"]) == ("200 OK", "application/json", 3.0)
    assert ask(b"", names)[2] == ["factor", None], "no body is no event"


@pytest.mark.parametrize(
    ("body", "function", "environ", "status", "message"),
    [
        (b"{", handler, {}, "400", "the event is no JSON"),
        (b"[" * 100_000, handler, {}, "400", "the event is no JSON"),
        (b"1", handler, {"CONTENT_LENGTH": "many"}, "400", "the event has 'many' bytes"),
        (b"1", handler, {"CONTENT_LENGTH": "-1"}, "400", "the event has '-1' bytes"),
        (b"1", handler, {"CONTENT_LENGTH": "99999999999"}, "400", "33554432 are the most"),
        (b"1", handler, {"REQUEST_METHOD": "GET"}, "405", "send the event as JSON, by POST"),
        (b"1", refuse, {}, "400", "it takes none of these"),
        (b"1", answer_bytes, {}, "500", "the handler returned what JSON cannot hold: Object of type bytes"),
        (b"1", fail, {}, "500", "the handler raised ZeroDivisionError: by hand (own_handlers.py:"),
    ],
)
def test_wsgi_tells_what_is_wrong(
    ask: Ask, body: bytes, function: Any, environ: dict[str, str], status: str, message: str
) -> None:
    told, headers, answer = ask(body, function, **environ)
    assert told.startswith(status)
    assert message in answer["error"]
    assert headers["Allow"] == "POST"


EVENT = {"HTTP_CE_ID": "1", "HTTP_CE_SOURCE": "/a", "HTTP_CE_TYPE": "t", "HTTP_CE_SPECVERSION": "1.0"}


def test_wsgi_answers_a_cloud_event_by_one_or_by_nothing(ask: Ask) -> None:
    status, headers, (_, seen) = ask(b"hi", names, CONTENT_TYPE="text/plain", **EVENT)
    assert (status, headers["ce-type"], headers["ce-source"]) == ("200 OK", "t.response", "/functions/names")
    assert seen == {
        "id": "1", "source": "/a", "type": "t", "specversion": "1.0", "datacontenttype": "text/plain", "data": "hi",
    }  # fmt: skip
    assert ask(b"1", answer_nothing, **EVENT)[::2] == ("204 No Content", None)
    assert ask(b"1", answer_nothing)[::2] == ("200 OK", None)
    assert ask(b"1", names, HTTP_CE_ID="1")[0] == "400 Bad Request"


def test_the_traceback_of_a_handler_goes_to_the_log_and_not_to_the_client(ask: Ask) -> None:
    log = io.StringIO()
    _, _, answer = ask(b"1", fail, log=log)
    assert "in _helper" in log.getvalue()
    assert answer["raised"]["function"] == "_helper"
    assert "Traceback" not in json.dumps(answer)
    assert os.path.dirname(own_handlers.__file__) not in json.dumps(answer)


def test_a_model_that_cannot_be_opened_is_no_fault_of_the_request(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, answer = ask(b"1", model="unknown")
    assert (status[:3], "no model 'unknown' is registered" in answer["error"]) == ("500", True)

    def away(*given: Any, **settings: Any) -> None:
        raise DaemonAwayError("no daemon answers")

    monkeypatch.setattr("trims_client.faas.connect", away)
    assert ask(b"1")[0] == "503 Service Unavailable"


def test_a_form_that_there_is_not_is_told_with_those_that_there_are() -> None:
    assert [check_form(each) for each in FORMS] == list(FORMS)
    with pytest.raises(CallerError, match="as_ is 'tensorflow'; a handler gets its model as weights, torch, "):
        Function(handler, "m", as_="tensorflow")


def test_a_torch_model_is_a_module_in_eval_mode(daemon: Daemon, folder: Path, path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trims.testing.torch_modules import conv_net

    torch.save(conv_net().state_dict(), folder / "plain.pt")
    options = {"module": "trims.testing.torch_modules:conv_net"}
    with admin(daemon.config.runtime_dir) as control:
        control.add({"name": "t", "artifact": {"path": str(folder / "plain.pt"), "options": options}})
    function = Function(lambda model, event: (name_form(model, event), model.training), "t", as_="torch")
    assert function(None) == (type(conv_net()).__name__, False)
    function.close()


def test_weights_are_what_they_are(daemon: Daemon, path: Path) -> None:
    weights: Any = {"factor": 1}
    assert model_as(weights, "weights") is weights


def test_an_answer_that_json_cannot_hold_is_told_with_the_remedy() -> None:
    assert answer_text({"a": [1, "b", None]}) == '{"a": [1, "b", null]}'
    for answer in (np.zeros(3), {1.5: {2}}, float("nan")):
        with pytest.raises(PredictorError, match=r"what JSON cannot hold: .* `array\.tolist\(\)`"):
            answer_text(answer)
