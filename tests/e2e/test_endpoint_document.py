"""The endpoint against its own OpenAPI document, by schemathesis: requests that it allows, and others.

Routes that start a process for each request are left to `make soak`, which asks all of them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest
from endpoints import Endpoint
from fleets import register
from repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon

SCHEMATHESIS = Path(os.environ.get("TRIMS_CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python")).with_name("st")
INPUTS = [{"name": "x", "dtype": "FP64", "shape": [-1]}]
#: A schema cannot say that the length of `data` follows from `shape`, and that the names of the inputs are the model's:
#: what fits the document may still be wrong.
NOT_CHECKED = "positive_data_acceptance"
#: Routes each request to which starts a process: hundreds of them are for `make soak`.
STARTS_A_PROCESS = "^/v1/(evaluations|traces)"


@pytest.mark.clients
@pytest.mark.timeout(300)
@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="no environment of clients: make clients-env")
# Each value of a parameter by itself, for a model that there is; any names and values at random.
@pytest.mark.parametrize(
    ("model", "phases", "left_out"),
    [
        ("m", "examples,coverage", STARTS_A_PROCESS),
        (None, "fuzzing", STARTS_A_PROCESS),
        pytest.param("m", "examples,coverage,fuzzing", "^$", marks=pytest.mark.soak),
    ],
)
def test_the_endpoint_does_what_its_document_says(
    daemon: Daemon,
    checkpoint: Callable[..., Path],
    folder: Path,
    model: str | None,
    phases: str,
    left_out: str,
) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=INPUTS)
    settings = '[parameters]\nmodel = "m"\nversion = "0.0.0"\n' if model else ""
    (folder / "schemathesis.toml").write_text(settings)
    endpoint = Endpoint(daemon.config.runtime_dir)
    try:
        done = subprocess.run(
            [
                SCHEMATHESIS, "--config-file", folder / "schemathesis.toml", "--no-color", "run",
                f"http://127.0.0.1:{endpoint.port}/openapi.json", "--generation-deterministic",
                "--max-examples", "5", "--phases", phases, "--checks", "all",
                "--exclude-checks", NOT_CHECKED, "--exclude-path-regex", left_out, "--warnings", "off",
            ],
            capture_output=True, text=True, cwd=folder, check=False,
        )  # fmt: skip
    finally:
        endpoint.end()
    assert done.returncode == 0, done.stdout + done.stderr


def test_answers_have_the_shape_that_the_document_states(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    register(daemon, checkpoint, predictor={"call": "own_predictors:Scaler"}, inputs=INPUTS)
    endpoint = Endpoint(daemon.config.runtime_dir)
    try:
        stated = endpoint.ask("GET", "/openapi.json")[1]
        answers = {
            "InferAnswer": endpoint.infer("m", [1.0])[1],
            "Error": endpoint.infer("unknown", [1.0])[1],
            "Model": endpoint.ask("GET", "/v2/models/m")[1],
            "Statistics": endpoint.ask("GET", "/v2/models/m/stats")[1],
            "Configuration": endpoint.ask("GET", "/v2/models/m/config")[1],
            "Index": endpoint.ask("POST", "/v2/repository/index", {})[1],
            "State": endpoint.ask("GET", "/state")[1],
            "Overview": endpoint.ask("GET", "/ui/state")[1],
            "Brought": endpoint.ask("POST", "/ui/models/m/load", {"place": "cpu"})[1],
            "Evicted": endpoint.ask("POST", "/ui/models/m/evict", {"place": "cpu"})[1],
        }
    finally:
        endpoint.end()
    for name, answer in answers.items():
        jsonschema.validate(answer, {**stated["components"]["schemas"][name], "components": stated["components"]})
