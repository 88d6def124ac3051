"""Benchmarks run, with tiny sizes and untimed, so that none of them rots. No time is held against anything.

Three run with all tests; the others with `make bench-smoke`.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from looking import wait_until
from trims_bench.bench import keep, record
from trims_bench.repository import ClientsMissingError, MxnetMissingError, clients_python, mxnet_python
from trims_bench.scenarios import NAMES, chosen, parts, parts_of
from trims_bench.scenarios.base import Setup
from trims_bench.smaps import below

from trims.cli.main import main
from trims.process.python import run_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.daemon.main import Daemon

#: Figures that ask by other makers' clients.
CLIENTS = ("endpoint",)
#: Through the store's door, through a framework, and through the endpoint.
ALWAYS = ("fresh", "attach", "endpoint")
#: Figures that are recorded without a bar, the second one where its rival is not installed.
RECORDED = ("exported", "shared")
LONG = [pytest.mark.bench_smoke, pytest.mark.timeout(600)]
#: Starts of models whose way through the code another one's covers: no run of their own with tiny sizes.
ALIKE = ("minilm", "bert-base", "vit-b", "llama-300m", "resnet50-torch", "vgg16-mxnet")
PARTS = parts()


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """One folder for all, so that models are made once."""
    return Setup(tmp_path_factory.mktemp("bench"), quick=True)


def marked(name: str) -> object:
    marks = [pytest.mark.clients] if name in CLIENTS else [pytest.mark.mxnet] if name.endswith("mxnet") else []
    return pytest.param(name, marks=marks if name in ALWAYS else [*marks, *LONG])


def test_every_figure_has_a_scenario_a_title_and_a_name_of_its_own() -> None:
    assert sum(len(parts_of(scenario)) for scenario in NAMES) == len(PARTS)
    assert all(part.title and callable(part.run) for _, part in PARTS.values())
    assert not (set(NAMES) & set(PARTS)) - {name for name, (scenario, _) in PARTS.items() if name == scenario}


def test_names_of_scenarios_and_of_figures_choose_and_others_are_refused() -> None:
    assert list(chosen(["client", "disk"])) == ["open", "fresh", "arrival", "disk"]
    assert list(chosen(["all"])) == list(PARTS)
    with pytest.raises(ValueError, match="no benchmark 'warp'"):
        chosen(["warp"])


@pytest.mark.parametrize("name", [marked(name) for name in PARTS if name not in ALIKE])
def test_a_scenario_gives_a_well_formed_figure(name: str, setup: Setup) -> None:
    skip_without(name)
    _, part = PARTS[name]
    figure = part.run(setup)
    assert (figure.name, bool(figure.title)) == (name, True)
    assert figure.comparisons
    assert name in RECORDED or any(compared.bar is not None for compared in figure.comparisons)
    for compared in figure.comparisons:
        # A ratio or a time is never nothing. A log may be empty, and a difference of two times may be below zero.
        # What must not be there may be counted as nothing.
        none = compared.bar is not None and compared.bar.limit == 0
        assert compared.value > 0 or none or compared.unit in ("bytes", "%") or "more than" in compared.what
        assert all(value > 0 or none or compared.unit == "bytes" for side in compared.sides for value in side.values)
    kept = json.loads(json.dumps(record(figure, quick=True)))
    assert kept["figure"]["comparisons"][0]["sides"][0]["values"]
    assert len(kept["figure"]["comparisons"][0]["intervals"]) == len(kept["figure"]["comparisons"][0]["sides"])
    assert not list(setup.work.glob("scratch-*"))


def skip_without(name: str) -> None:
    for package in ("torch", "onnxruntime", "onnx", "safetensors", "transformers"):
        pytest.importorskip(package)
    try:
        if name in CLIENTS:
            clients_python()
        if name.endswith("mxnet"):
            mxnet_python()
    except (ClientsMissingError, MxnetMissingError) as missing:
        pytest.skip(str(missing))


@pytest.mark.bench_smoke
def test_an_evaluated_start_is_kept_with_its_samples_and_its_figure(setup: Setup) -> None:
    from trims_bench.evaluation.database.evaluations import Evaluations
    from trims_bench.evaluation.records import FIGURE

    figure = PARTS["numpy"][1].run(setup)
    keep(record(figure, quick=True), setup.database)
    with Evaluations(setup.database) as kept:
        found = kept.read(figure.evaluation)
    assert {each.way for each in found.samples} == {"alone", "fresh", "template", "hot"}
    assert found.documents[FIGURE][0]["figure"]["name"] == "numpy"


@pytest.mark.bench_smoke
def test_a_crowd_is_more_than_the_daemon_can_hold(setup: Setup) -> None:
    (note, _) = PARTS["crowd"][1].run(setup).notes
    served, refused = (int(count) for count in re.findall(r"(\d+) were", note))
    assert served
    assert refused
    assert served + refused == 60
    assert "anything else: none" in note


@pytest.mark.bench_smoke
def test_every_disturbance_of_the_door_has_disturbed(setup: Setup) -> None:
    *notes, _ = PARTS["door"][1].run(setup).notes
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
    assert set(kept) == {"figure", "machine", "commit", "date", "quick"}
    assert kept["quick"] is True
    assert [len(side["values"]) for side in kept["figure"]["comparisons"][2]["sides"]] == [3, 3]
    assert kept["machine"]["processors"] >= 1
    assert str(folder) not in path.read_text()
    assert main(["report", "--database", f"sqlite:///{folder / 'out' / 'evaluations.db'}"]) == 0
    listed = capsys.readouterr().out
    assert "bench open" in listed
    assert main(["report", listed.split()[0], "--database", f"sqlite:///{folder / 'out' / 'evaluations.db'}"]) == 0
    assert "open 4 GB, p50" in capsys.readouterr().out


def test_the_command_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert listed == [[scenario, name] for name, (scenario, _) in PARTS.items()]


def test_an_unknown_benchmark_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "warp"]) == 1
    assert "there is no benchmark 'warp'; there are client, bytes" in capsys.readouterr().err


def test_an_open_says_whether_it_was_warm(daemon: Daemon, checkpoint: Callable[..., Path]) -> None:
    from trims_client import connect

    path = checkpoint("warm")
    with connect(daemon.config.runtime_dir) as session:
        with session.open_file(path) as first:
            assert first.warm is False
        with session.open_file(path) as second:
            assert second.warm is True


def test_a_benchmark_that_is_ended_leaves_no_daemon(folder: Path) -> None:
    command = run_module("trims.cli.main", "bench", "open", "--quick", "--repeat", "100000", "--work", folder / "work")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: any("serve" in words_of(pid) for pid in below(process.pid)), "it starts no daemon")
    started = below(process.pid)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(words_of, started)), "a process that it started goes on")


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
