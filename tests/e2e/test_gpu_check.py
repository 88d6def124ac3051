"""`make gpu-check` on the fake: it must work on the day when there is a device. No time is held against anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trims_bench.gpu import needs
from trims_bench.gpu.check import remove_leavings
from trims_bench.gpu.needs import Need
from trims_bench.gpu.parts import PARTS, STAGE_S, STAGES, plan
from trims_bench.gpu.summary import status as summary_status
from trims_bench.gpu.summary import summary

from trims.daemon.main import shm_prefix
from trims.memory import shm
from trims.memory.cuda.api import Device
from trims.testing.fake_cuda import CONTEXT_BYTES, make_devices

if TYPE_CHECKING:
    from collections.abc import Callable

UUID = "GPU-00000000-0000-0000-0000-000000000001"
EXPERIMENTS = {"1", "2", "3", "4", "5", "6", "7", "8", "9"}
FIGURES = {"a", "b", "c", "d", "e", "f", "g", "h"}
MIB = 1 << 20


def of_the_whole_run(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.soak(pytest.mark.timeout(600)(test))


def command(folder: Path, kind: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "trims_bench.gpu.check", "--out", str(folder / "gpu.json"), "--cuda", kind,
            "--work", str(folder), "--tiny", *words]  # fmt: skip


def check(folder: Path, *words: str, **device: bool) -> tuple[int, str, dict[str, Any]]:
    """Status, what it printed, and the file."""
    (folder / "cuda").mkdir()
    kind = make_devices(folder / "cuda", [Device(UUID, "Fake", 1 << 30, **device)])
    done = subprocess.run(command(folder, kind, *words), capture_output=True, text=True, check=False)
    assert not done.stderr.count("Traceback"), done.stderr
    return done.returncode, done.stdout, json.loads((folder / "gpu.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, Any]]:
    """One run of everything but the tests."""
    out = tmp_path_factory.mktemp("gpu") / "gpu.json"
    words = [sys.executable, "-m", "trims_bench.gpu.check", "--out", str(out), "--fake", "--no-tests"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, json.loads(out.read_text())


@pytest.fixture(scope="module")
def record(whole: tuple[int, str, dict[str, Any]]) -> dict[str, Any]:
    return whole[2]


def by_number(parts: dict[str, Any]) -> dict[str, Any]:
    return {name.partition(" ")[0]: part for name, part in parts.items()}


@of_the_whole_run
def test_every_part_has_a_result_or_says_why_it_has_none(record: dict[str, Any]) -> None:
    experiments, figures = by_number(record["experiments"]), by_number(record["figures"])
    assert (set(experiments), set(figures)) == (EXPERIMENTS, FIGURES)
    parts = {**experiments, **figures}
    assert {name: part["error"] for name, part in parts.items() if "error" in part} == {}
    assert {name for name, part in parts.items() if "unavailable" in part} == {"6", "7"}
    assert all("real device" in parts[name]["unavailable"] for name in ("6", "7"))
    assert record["finished"] is True
    assert {"machine", "commit", "date", "doctor", "missing", "nvidia_smi"} <= record.keys()


@of_the_whole_run
def test_a_handle_stands_for_the_whole_allocation(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["1"]
    assert found["raw"]["opens_at_the_beginning"] is True
    assert "unavailable" in found["torch"]
    assert "unavailable" in found["cupy"]


@of_the_whole_run
def test_the_death_of_an_exporter_is_told_for_both_ways(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["2"]
    assert found["vmm"]["importer_reads_on"] is True
    assert (found["vmm"]["charged_bytes"], found["ipc"]["charged_bytes"]) == (8 * MIB, 0)
    assert "exporter has freed it or is dead" in found["ipc"]["opens_after_its_death"]


@of_the_whole_run
def test_opening_is_timed_apart_from_the_context(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["3"]
    for driver in ("vmm", "ipc"):
        (taken,) = found[driver].values()
        assert taken.keys() == {"first_ns", "again_ns", "context_ns"}
        assert len(taken["again_ns"]) == 4


@of_the_whole_run
def test_the_offender_and_the_bytes_of_others_are_told_apart(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["4"]
    for way in ("copy", "kernel"):
        assert found["vmm"][way]["offender"] == "the borrower ended with status -11"
        assert (found["vmm"][way]["other_reads"], found["vmm"][way]["owner_intact"]) == (True, True)
        assert found["ipc"][way]["offender"] == "it was not stopped"
        assert found["ipc"][way]["owner_intact"] is False
    assert "real device" in found["torch add_"]["unavailable"]


@of_the_whole_run
def test_a_parked_descriptor_keeps_the_bytes_and_the_charge(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["5"]
    assert found["bytes_intact"] is True
    assert (found["charged_while_parked_bytes"], found["charged_after_bytes"]) == (4 * MIB, 0)


@of_the_whole_run
def test_every_way_to_the_device_has_a_rate(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["8"]["bytes_per_s"]
    assert found.keys() == {"staged", "registered", "unregistered", "O_DIRECT into a pinned pool", "pinned copy"}
    assert all(rates for rates in found.values())


@of_the_whole_run
def test_process_id_namespaces_are_told_for_both_ways(record: dict[str, Any]) -> None:
    found = by_number(record["experiments"])["9"]
    assert (found["vmm"]["opens"], found["ipc"]["opens"]) == (True, False)


def lines(record: dict[str, Any], figure: str) -> dict[str, dict[str, Any]]:
    return {line["what"]: line for line in by_number(record["figures"])[figure]["lines"]}


@of_the_whole_run
def test_every_line_has_its_bar_beside_it_and_whether_it_is_met(record: dict[str, Any]) -> None:
    every = [line for figure in FIGURES for line in lines(record, figure).values()]
    assert {line["met"] for line in every} <= {True, False, None, "unavailable"}
    for line in every:
        assert (line["met"] is None) == (line["bar"] is None) or line["met"] == "unavailable"
        assert line["raw"] if line["met"] != "unavailable" else line["unavailable"]
    bars = {line["bar"] for line in every}
    assert {"<= 1.5", "<= 0.3", "<= 1.2", ">= 0.9", "<= 1.05", ">= 24", ">= 210", "<= 3.35544e+07"} <= bars


@of_the_whole_run
def test_opens_are_timed_by_each_way_to_share(record: dict[str, Any]) -> None:
    found = lines(record, "a")
    for driver in ("vmm", "ipc"):
        assert found[f"{driver}: 1346 layers / 30 layers"]["value"] > 0
    assert len(found) == 12
    split = found["vmm: an open less its driver calls from a bare interpreter"]["raw"]
    assert {"open", "bare", "vmm_import", "vmm_map"} <= set(split)


@of_the_whole_run
def test_the_weights_of_all_predictors_are_one_copy(record: dict[str, Any]) -> None:
    found = lines(record, "d")
    assert found["2 processes, 4194304 bytes: weights / one copy"]["met"] is True
    assert found["context of a process"]["value"] == CONTEXT_BYTES


@of_the_whole_run
def test_a_keeper_takes_nothing_but_weights_while_it_rests(record: dict[str, Any]) -> None:
    found = {what: line["value"] for what, line in lines(record, "f").items()}
    assert found == {
        "keeper without weights": 0,
        "keeper with its context, at work": CONTEXT_BYTES,
        "keeper at rest, beyond its weights": 0,
        "bytes_intact_across_rest": 1,
    }


@of_the_whole_run
def test_what_needs_a_framework_on_the_device_is_unavailable_and_not_left_out(record: dict[str, Any]) -> None:
    assert [line["met"] for line in lines(record, "e").values()] == ["unavailable"] * 4
    found = lines(record, "c")
    assert found["faster than safetensors"]["met"] == "unavailable"
    assert found["disk image to the device, p50"]["value"] > 0


@of_the_whole_run
def test_the_end_of_the_run_says_what_was_missed(whole: tuple[int, str, dict[str, Any]]) -> None:
    status, out, record = whole
    missed = [line for figure in FIGURES for line in lines(record, figure).values() if line["met"] is False]
    assert status == (3 if missed else 0)
    assert out.count("MISSED") == len(missed)
    assert f"14 of 17 parts have results, {len(missed)} bars missed" in out
    lines_of_summary = out[out.index("gpu.json:\n") :].splitlines()
    assert 30 < len(lines_of_summary) <= 61, "what was not shown is said, too, and it can be read at one look"
    assert sum("not shown: " in line for line in lines_of_summary) == 9


def test_a_device_without_descriptors_is_examined_by_what_it_has(folder: Path) -> None:
    status, out, record = check(folder, "--no-tests", "--only", "3,5", vmm=False)
    assert status == 0
    assert "unavailable" in record["experiments"]["3 open cost"]["vmm"]
    assert "5 parked descriptor: not shown: Fake cannot share memory as descriptors" in out


@pytest.mark.soak
def test_without_a_device_every_part_and_the_tests_say_so(folder: Path) -> None:
    out = folder / "gpu.json"
    words = command(folder, "fake:/nowhere", "--only", "1,f,tests")
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    record = json.loads(out.read_text())
    assert done.returncode == 1
    assert "/nowhere holds no fake devices" in record["experiments"]["1 interior pointer"]["unavailable"]
    assert "/nowhere holds no fake devices" in record["figures"]["f the keeper itself"]["unavailable"]
    assert record["tests"]["failures"] > 0, "tests marked gpu fail without a device, they are not skipped"
    assert record["tests"]["skipped"] == 0


def test_a_part_that_takes_too_long_is_named_and_the_others_go_on(folder: Path) -> None:
    status, out, record = check(folder, "--no-tests", "--only", "3,5", "--part-s", "0.01")
    assert status == 1
    assert record["experiments"].keys() == {"3 open cost", "5 parked descriptor"}
    assert all("it took longer than" in part["error"] for part in record["experiments"].values())
    assert "3 open cost: FAILED: it took longer than 0.01 s" in out


def test_a_run_that_is_out_of_time_leaves_the_rest_out_and_says_so(folder: Path) -> None:
    status, _, record = check(folder, "--no-tests", "--only", "3,f", "--limit-s", "0")
    assert status == 1, "nothing has a result"
    assert "no time was left" in record["figures"]["f the keeper itself"]["unavailable"]


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_what_it_has(folder: Path, number: int) -> None:
    (folder / "cuda").mkdir()
    kind = make_devices(folder / "cuda", [Device(UUID, "Fake", 1 << 30)])
    words = command(folder, kind, "--no-tests")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("5 parked descriptor: some"):
            assert process.poll() is None
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode == 1
    record = json.loads((folder / "gpu.json").read_text())
    assert record["interrupted"] is True
    assert record["finished"] is False
    assert "vmm" in record["experiments"]["3 open cost"]


@pytest.mark.soak
@pytest.mark.parametrize("after", [0, 1, 3, 8, 14])
def test_a_check_that_is_killed_leaves_a_whole_file(folder: Path, after: int) -> None:
    """Kill the check after so many lines of its output; parts that had not ended or begun say so."""
    (folder / "cuda").mkdir()
    kind = make_devices(folder / "cuda", [Device(UUID, "Fake", 1 << 30)])
    words = command(folder, kind, "--no-tests", "--stage", "sound")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(after + 1):
            process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
    record = json.loads((folder / "gpu.json").read_text())
    parts = {**by_number(record["experiments"]), **by_number(record["figures"])}
    assert set(parts) == {"f", "2", "3", "4", "5", "9", "8", "b", "d", "1"}
    assert record["finished"] is False
    told = [part.get("error", part.get("unavailable")) for part in parts.values()]
    assert "the check ended before this part began" in told
    assert sum(each == "the check ended while this part ran" for each in told) <= 1


@pytest.mark.parametrize("ends", [False, True])
def test_a_part_leaves_no_process_behind_not_even_a_detached_one(ends: bool) -> None:
    script = (
        "import json, os, subprocess, sys, time;"
        "started = subprocess.Popen(['sleep', '1000'], start_new_session=True);"
        f"os.write(int(sys.argv[1]), json.dumps({{'pid': started.pid}}).encode()); time.sleep({0 if ends else 1000})"
    )
    code = (
        "import sys; from trims.process.subreaper import adopt; from trims_bench.gpu.check import run; adopt();"
        f"print(run([sys.executable, '-c', {script!r}], 5.0, lambda report: print(report['pid'])), flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    detached, why = done.stdout.splitlines()
    assert why == ("its process exited with status 0" if ends else "it took longer than 5 s")
    assert not Path(f"/proc/{detached}").exists()


def test_every_stage_fits_nine_minutes_and_every_part_is_in_one() -> None:
    stages = {name: plan(name) for name in STAGES if name != "all"}
    assert {part.key for parts in stages.values() for part in parts} == set(PARTS)
    assert sum(map(len, stages.values())) == len(PARTS)
    assert STAGE_S < 540
    assert all(sum(part.expected_s for part in parts) < STAGE_S for parts in stages.values())
    assert stages["sound"][0].key == "f", "whether sealed bytes survive a rest decides most"


@pytest.mark.soak
def test_each_test_is_in_the_file_as_soon_as_it_has_ended(folder: Path) -> None:
    status, out, record = check(folder, "--only", "tests")
    results = record["tests"]["results"]
    assert record["tests"]["tests"] == len(results) > 10
    assert {each["outcome"] for each in results} == {"failed"}, "there is no device, and none of them may be skipped"
    assert all(each["why"] and each["seconds"] >= 0 for each in results)
    assert status == 1
    assert "FAILED" in out


def values(**found: Any) -> dict[str, Any]:
    return {"finished": True, "cuda": "driver", "experiments": {"2 x": {"seconds": 1}}, **found}


def part_of_tests(failures: int, **found: Any) -> dict[str, Any]:
    results = [{"test": f"tests/t.py::t{n}", "outcome": "failed", "why": "E  no"} for n in range(failures)]
    return {"tests": failures + 3, "failures": failures, "skipped": 0, "results": results, **found}


def test_tests_that_hung_or_never_began_are_no_success() -> None:
    assert summary_status(values(tests=part_of_tests(0))) == 0
    assert summary_status(values(tests=part_of_tests(0, error="it took longer than 240 s"))) == 1
    assert summary_status(values(tests={**part_of_tests(0), "tests": 0, "unavailable": "no time was left"})) == 1
    assert summary_status({"finished": True, "tests": part_of_tests(0)}) == 0, "tests alone are a result"
    assert summary_status({**values(), "out_of_time": True}) == 1


def test_an_experiment_that_failed_by_one_way_of_sharing_is_said_and_is_no_success() -> None:
    found = values(experiments={"3 open cost": {"vmm": {"error": "LostPeerError: ended"}, "ipc": {"1": {}}}})
    assert summary_status(found) == 1
    assert "3 open cost: FAILED by vmm: LostPeerError: ended" in summary(found)


def test_many_failed_tests_hide_no_bar_and_not_the_last_line() -> None:
    line = {"what": "w", "value": 2.0, "unit": "x", "bar": "<= 1", "met": False, "raw": {}}
    found = values(tests=part_of_tests(60), figures={"a figure": {"lines": [line] * 20}})
    lines = summary(found)
    assert len(lines) <= 60
    assert sum("MISSED" in each for each in lines) == 20
    assert lines[-1] == "2 of 2 parts have results, 20 bars missed"
    assert sum("FAILED" in each for each in lines) >= 5


def test_a_run_on_a_stand_in_says_that_nothing_was_shown_on_a_device() -> None:
    assert "nothing below was shown on a device" in summary({**values(), "cuda": "fake:/x", "tiny": True})[0]


def test_the_segments_of_a_daemon_that_was_killed_with_its_part_are_freed(folder: Path) -> None:
    """No later daemon adopts them: their state folder goes with the check."""
    ours, theirs = folder / "work" / "part-1" / "state", folder / "elsewhere"
    for state in (ours, theirs):
        state.mkdir(parents=True)
        (state / "catalog.db").touch()
        segment = shm.PosixShm(shm_prefix(state)).create("label", 4096)
        os.close(segment.fd)
    remove_leavings(folder / "work")
    assert list(shm.names(shm_prefix(ours))) == []
    assert not (folder / "work" / "part-1").exists()
    (left,) = shm.names(shm_prefix(theirs))
    shm.unlink(left)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "3,nonsense"], "stage all has no part nonsense; it has f, 2, 3"),
        (["--stage", "flow", "--only", "f"], "stage flow has no part f; it has c, 7, a, 6"),
        (["--limit-s", "nan"], "--limit-s is nan; it must not be negative"),
        (["--most-bytes", "-5"], "--most-bytes is -5; it must not be negative"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(folder: Path, words: list[str], said: str) -> None:
    done = subprocess.run(command(folder, "fake:/x", *words), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not (folder / "gpu.json").exists()


# -- what it needs -------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [
        Need("pytest"), Need("numpy", "99"), Need("no-such-wheel"), Need("no-such-framework", "", "figure z", False),
    ]  # fmt: skip
    monkeypatch.setattr(needs, "needs", lambda: wanted)
    assert needs.say_missing() is False
    told = capsys.readouterr().err
    assert (
        "no-such-wheel is not installed, and nothing works without it; run `make gpu-wheels` where the internet is"
        in told
    )
    assert ", 99 is needed" in told
    assert "no-such-framework is not installed; left out: figure z" in told
    assert "pytest" not in told
    monkeypatch.setattr(needs, "needs", lambda: [wanted[0], wanted[3]])
    assert needs.say_missing() is True


@pytest.mark.parametrize(
    ("asked", "distribution"),
    [("onnxruntime", "onnxruntime-gpu"), ("cupy", "cupy-cuda13x"), ("cupy", "cupy_cuda12x"), ("cupy", "cupy-rocm-5-0")],
)
def test_a_distribution_for_cuda_counts_as_the_package_it_holds(
    asked: str, distribution: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = folder / f"{distribution}-7.8.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 7.8\n")
    monkeypatch.setattr(sys, "path", [str(folder)])
    assert needs.missing([Need(asked, "7")]) == []
    ((_, said),) = needs.missing([Need(asked, "7.9")])
    assert said == "is 7.8, 7.9 is needed"


def test_what_trims_itself_needs_is_taken_from_its_project_file() -> None:
    found = {need.name: need for need in needs.needs()}
    assert found["blake3"].carried
    assert not found["numpy"].carried
    assert found["cuda-bindings"].carried
    assert found["torch"].why


@pytest.fixture
def wheel(folder: Path) -> Callable[..., Path]:
    def make(name: str, files: dict[str, str]) -> Path:
        path = folder / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
        return path

    return make


def test_only_wheels_of_what_is_missing_are_unpacked_and_plugins_are_found(
    folder: Path, wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel("no_such_wheel", {"no_such/x.py": "1", "no_such_wheel-1.0.data/purelib/more/y.py": "2",
                            "no_such_wheel-1.0.data/scripts/z": "3"})  # fmt: skip
    wheel("pytest", {"pytest/older.py": "1"})
    monkeypatch.setattr(needs, "needs", lambda: [Need("no-such-wheel"), Need("pytest")])
    monkeypatch.setattr(sys, "path", list(sys.path))
    site = folder / "site"
    needs.bring(folder, site)
    found = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert {name for name in found if not name.startswith("trims-")} == {"no_such/x.py", "more/y.py"}
    code = "import importlib.metadata as m; print(m.version('trims'), len(m.entry_points(group='trims.policies')))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(site)})  # fmt: skip
    assert told.stdout == "0.1.0 4\n"


def test_wheels_are_asked_for_by_name_for_the_other_python(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(needs.subprocess, "run", lambda words, check: asked.append(words))
    (folder / "old.whl").touch()
    assert needs.main(["fetch", str(folder), "--python", "3.12", "--machine", "aarch64"]) == 0
    assert not (folder / "old.whl").exists()
    names = [words[-1] for words in asked]
    assert "grpcio==1.85.1" in names, "as constraints.txt has it"
    assert "posix-ipc>=1.2" in names
    assert not [name for name in names if name.startswith(("torch", "numpy"))]
    assert "manylinux_2_28_aarch64" in asked[0]
    assert asked[0][asked[0].index("--python-version") + 1] == "3.12"

    def refuse(words: list[str], check: bool) -> None:
        raise subprocess.CalledProcessError(1, words)

    monkeypatch.setattr(needs.subprocess, "run", refuse)
    assert needs.main(["fetch", str(folder)]) == 1
    assert "was not to be had" in capsys.readouterr().err


def test_other_pythons_are_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(needs.sys, "version_info", (3, 14, 0))
    assert needs.bring(folder, folder / "site") is False
    assert "trims needs Python 3.10 to 3.12" in capsys.readouterr().err
