"""The release before the code was moved into rooms, and this one: each over the other's state, and each other's client.

The older release is made from the repository's history; a clone without history fails here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from repository import ROOT
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
#: The last commit with the modules of `trims.formats`, `trims_predictors` and others in one folder each.
_OLDER = "821b82b"
_OPEN = """\
import json, sys, trims
with trims.connect() as session, session.open(sys.argv[1]) as weights:
    print(json.dumps({name: float(weights[name].sum()) for name in sorted(weights)}))
"""
_SUM = """\
class Sum:
    def load(self, weights, context):
        self.sum = float(weights["a"].sum())
    def predict(self, inputs):
        return {"y": inputs["x"] + self.sum + ADDED}
    def unload(self):
        pass
"""
_MANIFEST = """\
name: sums
version: 1.0.0
artifact: {path: m.safetensors}
predictor: {call: "summing:Sum"}
inputs: [{name: x, dtype: FP64, shape: [-1]}]
"""


class Release:
    """One version of trims, and a daemon of it at a time.

    Args:
        path: Where its packages are; empty for the version under test.
        folder: Of runtime and state.
    """

    def __init__(self, path: str, folder: Path) -> None:
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            "TRIMS_RUNTIME_DIR": str(folder / "run"),
            "TRIMS_STATE_DIR": str(folder / "state"),
        }
        self._folder = folder

    def run(self, *line: str) -> str:
        """Run Python, and return what it prints."""
        ended = subprocess.run(
            [sys.executable, *line], env=self._environment, cwd=self._folder, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def trims(self, *arguments: str) -> str:
        """Run the command of this version."""
        return self.run("-m", "trims.cli.main", *arguments)

    def sums(self, name: str) -> dict[str, float]:
        """Open a model by this version's client, and return the sum of each tensor."""
        found: dict[str, float] = json.loads(self.run("-c", _OPEN, name))
        return found

    @contextlib.contextmanager
    def started(self, *arguments: str) -> Iterator[Path]:
        """Run a command of this version until the end of the block; its log."""
        log = self._folder / f"{arguments[0]}.log"
        line = [sys.executable, "-m", "trims.cli.main", *arguments]
        with log.open("wb") as opened:
            child = subprocess.Popen(line, env=self._environment, cwd=self._folder, stdout=opened, stderr=opened)
        try:
            wait_until(lambda: "serv" in log.read_text(), f"{arguments[0]} does not serve: {log.read_text()}")
            yield log
        finally:
            child.terminate()
            assert child.wait(60) == 0, log.read_text()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Install the older release into a folder of its own."""
    source, packages = tmp_path_factory.mktemp("older"), tmp_path_factory.mktemp("packages")
    packed = subprocess.run(["git", "archive", _OLDER], cwd=ROOT, capture_output=True, timeout=60, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(source, filter="data")
    line = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), str(source)]
    subprocess.run([sys.executable, *line], timeout=240, check=True)
    return str(packages)


@pytest.fixture(params=["upgrade", "downgrade"])
def two(request: pytest.FixtureRequest, older: str, tmp_path: Path) -> tuple[Release, Release]:
    """Both releases on one folder with a model, the one to be replaced first."""
    rng = np.random.default_rng(1)
    save_file({"a": rng.random((64, 64)), "b": rng.random(1000)}, tmp_path / "m.safetensors")
    (tmp_path / "m.yaml").write_text(_MANIFEST)
    (tmp_path / "summing.py").write_text(f"ADDED = 0\n{_SUM}")
    both = [Release(older, tmp_path), Release("", tmp_path)]
    return (both[0], both[1]) if request.param == "upgrade" else (both[1], both[0])


def test_the_releases_are_two(older: str, tmp_path: Path) -> None:
    where = "import trims, sys; print(trims.__file__)"
    assert Release(older, tmp_path).run("-c", where).startswith(older)
    assert not Release("", tmp_path).run("-c", where).startswith(older)


def test_state_of_the_one_release_serves_the_other(two: tuple[Release, Release]) -> None:
    first, second = two
    with first.started("serve", "--gpus", "none"):
        first.trims("add", "m.yaml")
        first.trims("load", "sums")
        first.trims("pin", "sums")
        before, listed = first.sums("sums"), first.trims("list", "--json")
    with second.started("serve", "--gpus", "none") as log:
        assert second.sums("sums") == before
        second.trims("check", "--verify")
        assert json.loads(second.trims("list", "--json"))[0]["key"] == json.loads(listed)[0]["key"]
        shown = json.loads(second.trims("ps", "--json"))
        resident = shown["replicas"] if isinstance(shown, dict) else shown  # of an older release it is a list
        assert [each["pinned"] for each in resident if each["place"] == "cpu"] == [True]
        assert not [line for line in log.read_text().splitlines() if "WARN" in line or "ERROR" in line]


def test_a_client_of_the_one_release_talks_to_a_daemon_of_the_other(two: tuple[Release, Release]) -> None:
    daemon, client = two
    with daemon.started("serve", "--gpus", "none"):
        client.trims("add", "m.yaml")
        assert client.sums("sums") == daemon.sums("sums")
        assert client.trims("show", "sums", "--json")
        client.trims("evict", "sums")
        client.trims("check", "--verify")


def test_an_endpoint_of_the_one_release_serves_models_of_the_other_as_they_change(
    two: tuple[Release, Release], tmp_path: Path
) -> None:
    daemon, endpoint = two
    with daemon.started("serve", "--gpus", "none"):
        daemon.trims("add", "m.yaml")
        total = daemon.sums("sums")["a"]
        with endpoint.started("endpoint", "--port", "0", "--grpc-port", "none"):
            url = json.loads((tmp_path / "run" / "endpoint.json").read_text())["url"]
            assert _answer(url) == pytest.approx(total)
            (tmp_path / "m.yaml").write_text(_MANIFEST.replace("1.0.0", "2.0.0"))
            daemon.trims("add", "--replace", "m.yaml")
            wait_until(lambda: _version(url) == "2.0.0", "the endpoint has not noticed")
            (tmp_path / "summing.py").write_text(f"ADDED = 1\n{_SUM}")
            wait_until(lambda: _answer(url) == pytest.approx(total + 1), "the endpoint has the old code")


@pytest.fixture
def several(older: str, tmp_path: Path) -> tuple[Release, Release]:
    """Return both releases, the older one first, on a folder with two versions of a model that this one registered."""
    old, new = Release(older, tmp_path), Release("", tmp_path)
    for version in ("1", "2"):
        save_file({"a": np.full(8, float(version))}, tmp_path / f"m{version}.safetensors")
        text = _MANIFEST.replace("1.0.0", version).replace("m.safetensors", f"m{version}.safetensors")
        (tmp_path / f"m{version}.yaml").write_text(text)
    return old, new


def test_an_older_client_has_of_several_versions_what_the_name_leads_to(several: tuple[Release, Release]) -> None:
    old, new = several
    with new.started("serve", "--gpus", "none"):
        new.trims("add", "m1.yaml", "m2.yaml")
        new.trims("alias", "sums", "2")
        assert old.sums("sums") == {"a": 16.0}
        assert old.sums("sums@1") == {"a": 8.0}, "the daemon knows the name"
        assert json.loads(old.trims("show", "sums", "--json"))["version"] == "2"
        assert [each["version"] for each in json.loads(old.trims("list", "--json"))] == ["2", "1"]
        old.trims("evict", "sums@1")
        with pytest.raises(AssertionError, match="has the versions 1, 2"):
            old.trims("rm", "sums")
        old.trims("add", "--replace", "m2.yaml")
        assert new.sums("sums@1") == {"a": 8.0}


def test_a_newer_client_of_an_older_daemon_is_told_that_it_has_no_versions(several: tuple[Release, Release]) -> None:
    old, new = several
    with old.started("serve", "--gpus", "none"):
        new.trims("add", "m1.yaml")
        with pytest.raises(AssertionError, match="replace"):
            new.trims("add", "m2.yaml")
        with pytest.raises(AssertionError, match="trims: "):
            new.trims("alias", "sums", "1")
        assert new.trims("list", "--names").split() == ["sums"]
        new.trims("rm", "sums")


# fault (daemon): an older daemon on a registry with several versions -> `ConfigError`; the registry is untouched
def test_an_older_daemon_refuses_several_versions_and_leaves_them_as_they_are(
    several: tuple[Release, Release], tmp_path: Path
) -> None:
    old, new = several
    with new.started("serve", "--gpus", "none"):
        new.trims("add", "m1.yaml", "m2.yaml")
        new.trims("alias", "sums", "2")
    with pytest.raises(AssertionError, match="was written by another trims"):
        old.run("-m", "trims.cli.main", "serve", "--gpus", "none")
    with new.started("serve", "--gpus", "none"):
        assert new.sums("sums") == {"a": 16.0}
        new.trims("alias", "sums", "--back")
        assert new.sums("sums") == {"a": 8.0}
        new.trims("rm", "sums@2")
    with old.started("serve", "--gpus", "none"):
        assert old.sums("sums") == {"a": 8.0}, "with one version of each model, it reads the state again"


def _answer(url: str) -> float:
    body = {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [0.0]}]}
    found: float = _asked(f"{url}/v2/models/sums/infer", json.dumps(body).encode())["outputs"][0]["data"][0]
    return found


def _version(url: str) -> str:
    found: str = _asked(f"{url}/v2/models/sums")["versions"][0]
    return found


def _asked(url: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(url, body, timeout=60) as answer:
        return json.load(answer)
