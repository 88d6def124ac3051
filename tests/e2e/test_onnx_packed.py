"""ONNX models with packed weights through a real daemon: every place, several processes, a predictor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from fleets import arrays, drive
from in_namespaces import namespaces
from onnx_models import attention, feeds, own_answer
from trims_predictors.sandbox.sandbox import NAMESPACES, choose

import trims

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fleets import Driver
    from trims_client import Session

    from trims.daemon.main import Daemon


pytestmark = pytest.mark.usefixtures("own_files")


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(trust="identity")


@pytest.fixture
def model(daemon: Daemon, folder: Path) -> Path:
    main = attention(folder)
    artifact = {"path": str(main), "options": {"prepack": "shared"}}
    daemon.registry.put({"name": "m", "artifact": artifact, "framework": {"name": "onnxruntime"}}, "")
    return main


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_weights_are_packed_once_and_mapped_wherever_they_lie(session: Session, model: Path, place: str) -> None:
    with session.open("m", place=place) as weights:
        runtime = trims.onnxruntime.session(weights)
        np.testing.assert_array_equal(runtime.run(None, feeds(model))[0], own_answer(model))
        assert runtime.pack() == "packed", runtime.why_plain
        np.testing.assert_array_equal(runtime.run(None, feeds(model))[0], own_answer(model, prepack=True))


def test_a_session_before_the_conversion_is_plain_and_has_no_block(session: Session, model: Path) -> None:
    with session.open("m", place="file") as weights:
        runtime = trims.onnxruntime.session(weights)
        assert (runtime.stage, runtime.pack()) == ("plain", "plain")
        assert not any("prepacked" in name for name in weights)


_PROGRAM = """
import sys, trims, json
with trims.connect(sys.argv[1]) as session, session.open("m", place="cpu") as weights:
    runtime = trims.onnxruntime.session(weights)
    stage = runtime.pack()
    mapped = [line.split()[1] for line in open("/proc/self/maps") if sys.argv[2] in line]
    print(json.dumps([stage, sorted(set(mapped))]))
"""


def test_every_process_maps_the_same_packed_weights_read_only(daemon: Daemon, session: Session, model: Path) -> None:
    with session.open("m", place="cpu"):
        (segment,) = [name for name in os.listdir("/dev/shm") if name in _mapped()]
        for _ in range(2):
            command = [sys.executable, "-c", _PROGRAM, str(daemon.config.runtime_dir), segment]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            assert found[0] == "packed"
            assert all("w" not in access or access.endswith("p") for access in found[1]), (
                "shared writes are not possible"
            )


def _mapped() -> str:
    with open("/proc/self/maps") as file:
        return file.read()


def test_a_predictor_goes_over_to_packed_weights_behind_its_first_answer(daemon: Daemon, model: Path) -> None:
    async def work(driver: Driver) -> list[Any]:
        return [arrays(await driver.ask(**feeds(model)))["y"] for _ in range(30)]

    answers = drive(daemon, work)
    np.testing.assert_array_equal(answers[0], own_answer(model))
    for answer in answers:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("level", "stage"), [("process", b"packed"), pytest.param(NAMESPACES, b"private", marks=namespaces)]
)
def test_predictors_share_packed_weights_unless_a_namespace_hides_the_file(
    daemon: Daemon, folder: Path, level: str, stage: bytes
) -> None:
    main = attention(folder)
    artifact = {"path": str(main), "options": {"prepack": "shared"}}
    predictor = {"call": "own_predictors:Packs"}
    daemon.registry.put(
        {"name": "m", "artifact": artifact, "framework": {"name": "onnxruntime"}, "predictor": predictor}, ""
    )

    async def work(driver: Driver) -> Any:
        return arrays(await driver.ask(**feeds(main)))

    daemon.store.load("m").result(60)  # a session before the conversion has no packed weights to go over to
    answer = drive(daemon, work, isolation=choose(level))
    assert answer["stage"].tolist() == [stage]
    np.testing.assert_array_equal(answer["y"], own_answer(main, prepack=True))


def test_over_sealed_memory_each_process_packs_for_itself(serve: Callable[..., Daemon], folder: Path) -> None:
    main = attention(folder)
    daemon = serve(trust="identity", cpu_memory="memfd")
    daemon.registry.put({"name": "m", "artifact": {"path": str(main), "options": {"prepack": "shared"}}}, "")
    with trims.connect(daemon.config.runtime_dir) as session, session.open("m", place="cpu") as weights:
        runtime = trims.onnxruntime.session(weights)
        assert runtime.pack() == "private"
        np.testing.assert_array_equal(runtime.run(None, feeds(main))[0], own_answer(main, prepack=True))
