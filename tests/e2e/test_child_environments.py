"""Secrets in the environment of a daemon and an endpoint: no template, predictor or converter has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from endpoints import Endpoint
from fleets import SUPPORT, register
from in_namespaces import namespaces

from trims.formats.base import Limits
from trims.formats.conversion.child_process import LimitedChild

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon

SECRET = "a-secret-of-the-operator"
SECRETS = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_KEY", "HF_TOKEN", "GOOGLE_SERVICE_ACCOUNT_KEY",
    "DATABASE_PASSWORD", "HTTPS_PROXY", "TRIMS_EVALUATIONS", "NVIDIA_API_KEY",
    "OTEL_EXPORTER_OTLP_HEADERS",
)  # fmt: skip
LEVELS = ("process", pytest.param("namespaces", marks=namespaces))
PREDICTORS: dict[str, dict[str, Any]] = {
    "class": {"call": "own_environments:Reader"},
    "function": {"function": "own_environments:read"},
    "handler": {"handler": f"{SUPPORT}/own_environments.py:answer"},
}


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"https://user:{SECRET}@host")
    monkeypatch.setenv("MY_LICENSE", "the licence")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("HF_HOME", "/nonexistent/hub")


def seen(endpoint: Endpoint, name: str, kind: str) -> dict[str, Any]:
    """Return what a model's code found in its environment and in that of every process that it can read."""
    if kind == "handler":
        status, answer = endpoint.ask("POST", f"/functions/{name}", {})
        text = answer
    else:
        status, answer = endpoint.infer(name, [1.0])
        text = answer["outputs"][0]["data"][0] if status == 200 else ""
    assert status == 200, answer
    found: dict[str, Any] = json.loads(text) if isinstance(text, str) else text
    return found


# fault (code): it reads environments for credentials -> only listed and allowed variables
@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("level", LEVELS)
def test_code_of_a_model_finds_no_secret_and_what_frameworks_need(
    level: str, daemon: Daemon, checkpoint: Callable[..., Path]
) -> None:
    for kind, predictor in PREDICTORS.items():
        register(daemon, checkpoint, kind, predictor=predictor)
    named = {**PREDICTORS["class"], "variables": ["MY_LICENSE"]}
    register(daemon, checkpoint, "named", predictor=named)
    register(daemon, checkpoint, "greedy", predictor={**named, "variables": ["AWS_SECRET_ACCESS_KEY"]})
    endpoint = Endpoint(daemon.config.runtime_dir, "--isolation", level, "--model-variables", "MY_LICENSE,NOT_SET")
    try:
        for kind in PREDICTORS:
            found = seen(endpoint, kind, kind)
            assert SECRET not in json.dumps(found)
            assert found["environ"]["OMP_WAIT_POLICY"] == "passive"
            assert found["environ"]["HF_HOME"] == "/nonexistent/hub"
            assert "MY_LICENSE" not in found["environ"]
        assert seen(endpoint, "named", "class")["environ"]["MY_LICENSE"] == "the licence"
        status, answer = endpoint.infer("greedy", [1.0])
        assert status != 200
        assert "AWS_SECRET_ACCESS_KEY, which the operator has not listed" in answer["error"]
        started = descendants(endpoint.process.pid)
        assert len(started) > 1
        for pid in started:
            assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes(), pid
    finally:
        endpoint.end()


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    return children + [found for child in children for found in descendants(child)]


@pytest.mark.usefixtures("secrets")
def test_a_converter_is_started_without_secrets() -> None:
    child = LimitedChild("an artifact", python=None, limits=Limits(time_s=60.0))
    try:
        assert SECRET.encode() not in Path(f"/proc/{child._child.pid}/environ").read_bytes()
    finally:
        child.close()
