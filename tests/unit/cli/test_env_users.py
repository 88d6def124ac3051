"""Which models use an environment, and which of them need it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from made_environments import put
from operators import MODEL, Operator

from trims import control
from trims.cli.env_users import refuse_if_needed, users_of
from trims.core.errors import DaemonAwayError, InUseError
from trims.environments.environment_store import EnvironmentStore

if TYPE_CHECKING:
    from trims.control import Model


@pytest.fixture
def env_store(tmp_path: Path) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "environments")


def model(name: str, framework: dict[str, str] | None) -> Model:
    manifest: dict[str, Any] = {"name": name, "artifact": {"path": "/m"}}
    return replace(
        MODEL, name=name, manifest_json=json.dumps(manifest | ({"framework": framework} if framework else {}))
    )


@pytest.fixture(autouse=True)
def _daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemon with models for a framework that is not here, for one that is, and for none."""
    models = [
        model("any", {"name": "mxnet"}),
        model("old", {"name": "mxnet", "version": "<2"}),
        model("here", {"name": "numpy", "version": f"=={np.__version__}"}),
        model("absent", {"name": "mxnet", "version": ">=77"}),
        model("plain", None),
    ]
    monkeypatch.setattr(control, "admin", Operator(models=models).admin)


def test_each_environment_is_told_with_the_models_that_run_in_it(env_store: EnvironmentStore) -> None:
    old, new = put(env_store.folder, 1.0, mxnet="1.0"), put(env_store.folder, 2.0, mxnet="2.0")
    unused = put(env_store.folder, 3.0, numpy="900.0")
    assert users_of(env_store.all(), env_store, None) == {old.name: ["old"], new.name: ["any"]}
    with pytest.raises(InUseError, match=f"{old.name} is the only one for old; remove these models"):
        refuse_if_needed(old.name, env_store, None)
    assert refuse_if_needed(new.name, env_store, None)  # the other one would do
    assert refuse_if_needed(unused.name, env_store, None)


def test_the_last_environment_of_a_framework_is_needed_by_all_its_models(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, mxnet="1.0")
    with pytest.raises(InUseError, match="is the only one for any, old; remove"):
        refuse_if_needed(made.name, env_store, None)


def test_a_configured_interpreter_takes_models_from_a_made_environment(
    env_store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured, made = (
        put(env_store.folder.parent / "other", mxnet="1.5"),
        put(env_store.folder, mxnet="1.0"),
    )
    monkeypatch.setenv("TRIMS_ENVIRONMENTS", f"mxnet={configured.python}")
    assert users_of([made], env_store, None) == {}
    assert refuse_if_needed(made.name, env_store, None)


def test_without_a_daemon_the_users_are_not_known(env_store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made = put(env_store.folder, mxnet="1.0")
    monkeypatch.setattr(control, "admin", Operator(models=DaemonAwayError("none")).admin)
    assert users_of([made], env_store, None) is None
    assert not refuse_if_needed(made.name, env_store, None)


def test_a_model_that_cannot_be_read_is_no_user_and_may_need_the_environment(
    env_store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put(env_store.folder, mxnet="1.0")
    broken = replace(MODEL, name="odd", manifest_json="", problem="/srv/odd.yaml: is not YAML")
    monkeypatch.setattr(control, "admin", Operator(models=[broken, model("any", {"name": "mxnet"})]).admin)
    assert users_of([made], env_store, None) == {made.name: ["any"]}
    with pytest.raises(
        InUseError, match=r"what odd needs is not known, .*/srv/odd\.yaml: is not YAML\); correct it, or"
    ):
        refuse_if_needed(made.name, env_store, None)


def test_an_environment_whose_record_cannot_be_read_is_needed_by_none(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, mxnet="1.0")
    (Path(made.folder) / "environment.json").write_text("{}")
    assert refuse_if_needed(made.name, env_store, None)
