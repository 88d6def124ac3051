"""`trims run` against a daemon: through an endpoint, without one, and where something is in its way."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from endpoints import Endpoint
from fleets import SUPPORT, register

from trims.cli.main import main
from trims.wire.endpoint_file import EndpointAddress, leave_address, read_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
INPUTS = {"inputs": [{"name": "x", "dtype": "FP64", "shape": [-1]}]}


@pytest.fixture
def run(
    daemon: Daemon, capsys: pytest.CaptureFixture[str], checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """`trims run` for the model `m`, which doubles `x`; returns (status, standard output, standard error)."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH")))))
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, **INPUTS)

    def once(*words: str, model: str = "m") -> tuple[int, str, str]:
        status = main(["--runtime-dir", str(daemon.config.runtime_dir), "run", model, *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    return once


@pytest.fixture
def endpoint(daemon: Daemon) -> Iterator[Endpoint]:
    made = Endpoint(daemon.config.runtime_dir)
    yield made
    made.end()


def test_a_model_answers_through_the_endpoint_first_cold_and_then_warm(
    run: Callable[..., tuple[int, str, str]], endpoint: Endpoint
) -> None:
    status, out, err = run("[1, 2.5]")
    assert (status, err) == (0, "")
    assert out.startswith("y: FP64 [2]\n  [2. 5.]\ncold: a predictor was started (")
    assert "(process " in out
    status, out, err = run("x=[3]")
    assert "\nwarm: a predictor was running; weights at cpu\nqueue " in out


def test_a_model_answers_without_an_endpoint_and_nothing_is_left(run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run("[1, 2.5]", "--json")
    assert (status, err) == (0, "there is no endpoint: m runs in a process that ends with this command\n")
    answer: Any = json.loads(out)
    assert answer["outputs"][0]["data"] == [2.0, 5.0]
    assert answer["parameters"]["cold"] is True


def test_a_file_with_a_request_and_one_of_numpys_are_answered_alike(
    run: Callable[..., tuple[int, str, str]], endpoint: Endpoint, folder: Path
) -> None:
    request = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [2], "data": [1, 2]}]}
    (folder / "request.json").write_text(json.dumps(request))
    np.save(folder / "x.npy", np.array([1.0, 2.0]))
    for name in ("request.json", "x.npy"):
        status, out, err = run(str(folder / name), "--json")
        assert (status, err) == (0, "")
        assert json.loads(out)["outputs"][0]["data"] == [2.0, 4.0]


def test_what_is_wrong_is_told_in_one_line_with_and_without_an_endpoint(
    run: Callable[..., tuple[int, str, str]], endpoint: Endpoint
) -> None:
    for more in ((), ("--endpoint", "none")):
        for words, model, message in (
            (("[1]",), "unknown", "no model 'unknown' is registered"),
            (("hello",), "m", "the input 'x' is FP64 of shape [-1]; write numbers"),
            (("[[1]]",), "m", "the input 'x' of 'm' is FP64 of shape [-1] (-1: any); the request brings"),
            (("z=[1]",), "m", "'m' needs the input 'x'"),
        ):
            status, out, err = run(*words, *more, model=model)
            assert (status, out) == (1, "")
            assert message in err
            assert "Traceback" not in err


def test_an_endpoint_that_has_gone_is_told_and_the_model_answers_all_the_same(
    run: Callable[..., tuple[int, str, str]], daemon: Daemon
) -> None:
    gone = Endpoint(daemon.config.runtime_dir)
    gone.end(signal.SIGKILL)
    assert read_address(str(daemon.config.runtime_dir)) is not None, "it could not take its word back"
    status, out, err = run("[1]")
    assert (status, out.splitlines()[1]) == (0, "  [2.]")
    assert err.startswith(f"no endpoint answers at http://127.0.0.1:{gone.port}: ")
    status, out, err = run("[1]", "--endpoint", f"http://127.0.0.1:{gone.port}")
    assert (status, out) == (1, "")
    assert "leave --endpoint out" in err


def test_a_token_is_asked_for_and_taken_from_a_file(
    run: Callable[..., tuple[int, str, str]], daemon: Daemon, folder: Path
) -> None:
    token = folder / "token"
    token.write_text("secret")
    token.chmod(0o600)
    endpoint = Endpoint(daemon.config.runtime_dir, "--token-file", str(token))
    try:
        assert "--token-file" in run("[1]")[2]
        assert run("[1]", "--token-file", str(token))[0] == 0
    finally:
        endpoint.end()


def test_without_a_daemon_the_error_says_how_to_start_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runtime-dir", str(folder / "nowhere"), "run", "m", "[1]"]) == 1
    assert "start one with `trims serve`" in capsys.readouterr().err
    leave_address(str(folder), EndpointAddress(1, "nonsense"))
    assert main(["--runtime-dir", str(folder), "run", "m", "[1]"]) == 1
    assert "'nonsense' is no URL" in capsys.readouterr().err
