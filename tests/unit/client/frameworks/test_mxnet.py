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
from trims.formats.mxnet.converter import MxnetConverter
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

#: Bytes of a weight: 16 MiB.
WEIGHT_BYTES = 1024 * 4096 * 4
#: Runs a dense layer over an image, and prints how much memory of its own the process has taken for that.
RUN_DENSE = """
import sys
from pathlib import Path
from trims_client.frameworks import mxnet as shared
import mxnet as mx
from trims_client.weights import Weights

def own_bytes():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10

with Weights.map_file(sys.argv[1]) as weights:
    bound = shared.executor(weights, {"data": (1, 4096)})
    before = own_bytes()
    answer = bound.forward(is_train=False, data=mx.nd.ones((1, 4096)))[0].asnumpy()
    assert (answer == 4096).all(), answer
    print(own_bytes() - before)
"""

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="no MXNet environment: make mxnet-env"),
]


def run(what: str, folder: Path, **environment: str) -> Any:
    """Run the program in MXNet's environment and return its last line; MXNet writes before it."""
    return json.loads(in_mxnet(SCRIPT, what, folder, **environment))


def in_mxnet(*arguments: str | Path, **environment: str) -> str:
    """Return the last line that Python of that environment prints."""
    paths = os.pathsep.join((os.fspath(ROOT), os.fspath(ROOT / "client")))
    done = subprocess.run(
        [MXNET_PYTHON, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def write_image(plan: ImagePlan, path: Path) -> None:
    with path.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, plan.nbytes)
        plan.write(file.fileno())


def ones(target: memoryview) -> None:
    target[:] = b"\x01" * len(target)


def write_in_place(plan: InPlacePlan, path: Path) -> None:
    """Write a file as a session maps it: arrays are aligned as the params file has them."""
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


@pytest.mark.parametrize(("switch", "copies"), [({}, 0), ({"MXNET_DISABLE_MKLDNN_FC_OPT": "0"}, 1)])
def test_a_dense_layer_copies_its_weights_only_if_the_environment_asks_for_it(
    tmp_path: Path, switch: dict[str, str], copies: int
) -> None:
    in_mxnet(SCRIPT, "dense", tmp_path)
    converter = MxnetConverter()
    write_image(converter.plan(Artifact("mxnet", converter.files(tmp_path / "d-symbol.json", {}))), tmp_path / "image")
    taken = int(in_mxnet("-c", RUN_DENSE, tmp_path / "image", **switch))
    assert abs(taken - copies * WEIGHT_BYTES) < WEIGHT_BYTES // 2
