"""Benchmarks run, with tiny sizes and untimed, so that none of them rots. No time is held against anything.

Three run with all tests; the others with `make bench-smoke`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from trims_bench.bench import record
from trims_bench.repository import ClientsMissingError, MxnetMissingError, clients_python, mxnet_python
from trims_bench.scenarios import NAMES, scenario
from trims_bench.scenarios.base import Setup

from trims.cli.main import main
from trims.manifests.manifest import parse_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

NEEDS = {
    "arrival": ("safetensors",),
    "attach": ("safetensors", "torch"),
    "torch": ("torch",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "cold": ("onnxruntime", "onnx"),
    "unseen": ("onnxruntime", "onnx"),
    "memory": ("torch", "onnxruntime", "onnx"),
}


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """One folder for all, so that models are made once."""
    return Setup(tmp_path_factory.mktemp("bench"), quick=True)


#: Scenarios that ask by other makers' clients.
CLIENTS = ("endpoint", "throughput")
MARKS = {"mxnet": pytest.mark.mxnet, **dict.fromkeys(CLIENTS, pytest.mark.clients)}
#: Through the store's door, through a framework, and through the endpoint.
ALWAYS = ("fresh", "attach", "endpoint")
LONG = [pytest.mark.bench_smoke, pytest.mark.timeout(600)]


def with_mark(name: str) -> object:
    marks = [MARKS[name]] if name in MARKS else []
    return pytest.param(name, marks=marks if name in ALWAYS else [*marks, *LONG])


def skip_without_clients() -> None:
    try:
        clients_python()
    except ClientsMissingError as missing:
        pytest.skip(f"no clients: {missing}")


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_has_a_title_and_can_be_run(name: str) -> None:
    assert scenario(name).TITLE
    assert callable(scenario(name).run)


def test_the_models_of_the_scenarios_are_manifests(setup: Setup) -> None:
    for raw in (setup.vgg16, setup.resnet50_mxnet):
        assert parse_manifest(raw, "a scenario's manifest").name == raw["name"]


@pytest.mark.parametrize("name", [with_mark(name) for name in NAMES])
def test_a_scenario_gives_a_well_formed_figure(name: str, setup: Setup) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    if name == "mxnet":
        try:
            mxnet_python()
        except MxnetMissingError as missing:
            pytest.skip(f"no MXNet: {missing}")
    if name in CLIENTS:
        skip_without_clients()
    figure = scenario(name).run(setup)
    assert figure.name == name
    assert figure.title == scenario(name).TITLE
    assert any(compared.bar is not None for compared in figure.comparisons)
    for compared in figure.comparisons:
        # A ratio or a time is never nothing. A log may be empty, and a difference of two times may be below zero.
        assert compared.value > 0 or compared.unit == "bytes" or "more than" in compared.what
        assert all(value > 0 or compared.unit == "bytes" for side in compared.sides for value in side.values)
    kept = json.loads(json.dumps(record(figure, quick=True)))
    assert kept["figure"]["comparisons"][0]["sides"][0]["values"]
    assert not list(setup.work.glob("scratch-*"))


@pytest.mark.bench_smoke
def test_a_crowd_is_more_than_the_daemon_can_hold(setup: Setup) -> None:
    (note, _) = scenario("crowd").run(setup).notes
    served, refused = (int(count) for count in re.findall(r"(\d+) were", note))
    assert served
    assert refused
    assert served + refused == 60
    assert "anything else: none" in note


@pytest.mark.bench_smoke
def test_every_disturbance_of_the_door_has_disturbed(setup: Setup) -> None:
    *notes, _ = scenario("door").run(setup).notes
    for note in notes:
        what, _, did = note.partition(": ")
        done = [int(count) for count in re.findall(r"(\d+) (?:loads|checks|opens|evictions|cold opens)", did)]
        assert bool(done) == (what != "idle"), note
        assert all(done), note


def test_the_command_prints_a_table_and_keeps_raw_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["bench", "open", "--quick", "--repeat", "3", "--out", str(folder / "out"), "--work", str(folder)])
    assert status in (0, 3)  # 3: a bar was missed, which on a busy machine is not a defect
    assert "open 1 MB, p50" in capsys.readouterr().out
    (path,) = (folder / "out").glob("*-open.json")
    kept = json.loads(path.read_text())
    assert set(kept) == {"figure", "machine", "versions", "commit", "date", "quick"}
    assert kept["quick"] is True
    assert [len(side["values"]) for side in kept["figure"]["comparisons"][2]["sides"]] == [3, 3]
    assert kept["machine"]["cores"] >= 1
    assert str(folder) not in path.read_text()


def test_the_command_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(NAMES)


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "warp"]) == 1
    assert "there is no benchmark 'warp'; there are open, fresh" in capsys.readouterr().err


def test_an_open_says_whether_it_was_warm(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    from trims_client import connect

    path = checkpoint("warm")
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(path) as first:
            assert first.warm is False
        with session.open_file(path) as second:
            assert second.warm is True
