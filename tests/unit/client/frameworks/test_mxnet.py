"""MXNet over attached weights. MXNet lives in its own environment: what runs there is in `mxnet_side.py`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT, SUPPORT

from trims.formats.base import Artifact
from trims.formats.mxnet import MxnetConverter
from trims.image.in_place import InPlacePlan, plan_in_place
from trims.image.plan import ImagePlan, SourceTensor, plan_image
from trims.image.program import Program

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
SCRIPT = SUPPORT / "mxnet_side.py"
CHECKS = [
    line.removeprefix("def ").partition("(")[0]
    for line in SCRIPT.read_text().splitlines()
    if line.startswith("def check_")
]

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env"),
]


def run(what: str, folder: Path, **environment: str) -> Any:
    """Its last line; MXNet writes before it."""
    paths = os.pathsep.join((os.fspath(ROOT), os.fspath(ROOT / "client")))
    done = subprocess.run(
        [MXNET_PYTHON, SCRIPT, what, folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write_image(plan: ImagePlan, path: Path) -> None:
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, plan.nbytes)
        plan.write(file.fileno())


def ones(target: memoryview) -> None:
    target[:] = b"\x01" * len(target)


def write_in_place(plan: InPlacePlan, path: Path) -> None:
    """As a session maps it: arrays are aligned as the params file has them."""
    with path.open("wb") as file:
        file.write(plan.head)
        for part in plan.pages:
            file.seek(part.begin)
            file.write(part.file.read(part.nbytes, part.offset))


@pytest.fixture(scope="module", params=["copied", "in place"])
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A model saved by MXNet and its image; no program; all dtypes MXNet has; one it has not."""
    path = tmp_path_factory.mktemp("mxnet")
    run("model", path)
    artifact = Artifact("mxnet", MxnetConverter().files(path / "m-symbol.json", {}))
    if request.param == "copied":
        write_image(MxnetConverter().plan(artifact), path / "image")
    else:
        write_in_place(plan_in_place(MxnetConverter().contents(artifact)), path / "image")
    write_image(plan_image([SourceTensor("w", "F32", (4,))]), path / "plain")
    program = Program("mxnet-symbol", {"auxiliary": [], "inputs": []}, b"{}")
    dtypes = ("F32", "F64", "F16", "U8", "I8", "I32", "I64", "BOOL")
    write_image(plan_image([SourceTensor(d, d, (3, 5), ones) for d in dtypes], program=program), path / "dtypes")
    write_image(plan_image([SourceTensor("w", "U32", (4,))], program=program), path / "foreign")
    return path


@pytest.fixture(scope="module", params=["1", "0"], ids=["oneDNN", "without oneDNN"])
def outcome(folder: Path, request: pytest.FixtureRequest) -> dict[str, str | None]:
    return dict(run("check", folder, MXNET_MKLDNN_ENABLED=request.param))


@pytest.mark.parametrize("check", CHECKS, ids=[name.removeprefix("check_") for name in CHECKS])
def test_in_the_mxnet_environment(outcome: dict[str, str | None], check: str) -> None:
    assert outcome[check] is None, outcome[check]


def test_all_checks_were_run(outcome: dict[str, str | None]) -> None:
    assert sorted(outcome) == sorted(CHECKS)
    assert len(CHECKS) > 8
