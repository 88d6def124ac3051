"""The whole check: tests marked `gpu`, experiments, figures; each part's result is on disk before the next begins.

A part that cannot run says why in the file, and so does one that fails, takes too long, or was interrupted: the file
is there in any case.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.doctor_gpu import gpu_findings
from trims.daemon.config import build_config
from trims_bench.gpu import copying, frameworks, loading, resident, sharing
from trims_bench.gpu.lines import UNAVAILABLE
from trims_bench.gpu.needs import missing
from trims_bench.gpu.rig import TINY, Rig, Sizes, UnavailableError
from trims_bench.machine import commit, machine, versions
from trims_bench.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

Part = tuple[str, "Callable[[Rig], Any]"]
#: By the numbers of the design notes.
EXPERIMENTS: Sequence[Part] = (
    ("1 interior pointer", sharing.interior_pointer),
    ("2 exporter killed", sharing.exporter_killed),
    ("3 open cost", sharing.open_cost),
    ("4 write to a read-only mapping", sharing.write_to_read_only),
    ("5 parked descriptor", sharing.parked_descriptor),
    ("6 ONNX Runtime in place", frameworks.onnxruntime_in_place),
    ("7 PyTorch readers", frameworks.torch_readers),
    ("8 host to device", copying.host_to_device),
    ("9 process-id namespaces", sharing.pid_namespaces),
)
FIGURES: Sequence[Part] = (
    ("a open of a resident model", resident.open_resident),
    ("b host to device", resident.host_to_device_rate),
    ("c disk to device", loading.disk_to_device),
    ("d predictors", resident.predictors_share),
    ("f the keeper itself", resident.keeper_itself),
    ("e PyTorch modules", loading.modules_ready),  # takes longest
)
_TESTS_S = 180.0
_SHOWN = 4000


class TooLongError(Exception):
    """A part has used up its time."""


class Record:
    """The JSON file, written again after every part.

    Args:
        path: Of the file.
        about: What it begins with.
    """

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self.values: dict[str, Any] = {**about, "finished": False}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self) -> None:
        """All at once: who reads it meanwhile reads the last state."""
        unfinished = self._path.with_suffix(".writing")
        unfinished.write_text(json.dumps(self.values, indent=1) + "\n")
        unfinished.rename(self._path)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if there are results, nothing failed and every bar that could be taken is met; 3 if one is missed; else 1."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="trims-gpu-check-", dir=options.work) as work:
        kind = _fake(Path(work)) if options.fake else options.cuda
        rig = Rig(kind, _sizes(options), Path(work))
        record = Record(options.out, _about(rig))
        try:
            _run(rig, record, options)
            record.values["finished"] = True
        except KeyboardInterrupt:
            record.values["interrupted"] = True
        finally:
            record.write()
    return _conclude(record.values, options.out)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trims_bench.gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--cuda", default="driver", help="`driver`, or `fake:FOLDER`")
    parser.add_argument("--work", type=Path, help="folder on a real disk, with room for some 40 GB")
    parser.add_argument("--fake", action="store_true", help="a fake device of its own, with tiny sizes")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: to see that it works, not how fast")
    parser.add_argument("--most-bytes", type=int, help="largest allocation of the experiments")
    parser.add_argument("--limit-s", type=float, default=480.0, help="begin no part after this")
    parser.add_argument("--part-s", type=float, default=240.0, help="seconds for one part")
    parser.add_argument("--no-tests", action="store_true", help="experiments and figures only")
    parser.add_argument("--only", help="parts whose name begins with one of these, with commas between: 1,3,a")
    return parser.parse_args(arguments)


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = TINY if options.tiny or options.fake else Sizes()
    return sizes if options.most_bytes is None else replace(sizes, most_bytes=options.most_bytes)


def _fake(work: Path) -> str:
    from trims.memory.cuda.api import Device
    from trims.testing.fake_cuda import make_devices

    folder = work / "fake"
    folder.mkdir()
    return make_devices(folder, [Device("GPU-00000000-0000-0000-0000-000000000001", "Fake", 1 << 30)])


def _about(rig: Rig) -> dict[str, Any]:
    return {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cuda": rig.kind,
        "tiny": rig.sizes == TINY,
        "missing": {need.name: state for need, state in missing()},
        "doctor": _doctor(rig),
        "nvidia_smi": _nvidia_smi(),
    }


def _doctor(rig: Rig) -> list[dict[str, str]] | str:
    """What `trims doctor` says of the device, where no daemon runs."""
    try:
        config = build_config({"cuda": rig.kind}, environment={})
        return [finding.as_json() for finding in gpu_findings(config, str(rig.work))]
    except Exception as error:  # noqa: BLE001 - the check goes on without it
        return f"{type(error).__name__}: {error}"


def _run(rig: Rig, record: Record, options: argparse.Namespace) -> None:
    end_s = time.monotonic() + options.limit_s
    chosen = tuple(options.only.split(",")) if options.only else ("",)
    if not options.no_tests:
        print("tests ...", flush=True)
        tests = record.values["tests"] = _tests()
        record.write()
        told = f"{tests['failures']} failed, {tests.get('skipped', 0)} skipped; their output is in the file"
        print(f"  {tests.get('tests', 'no')} tests, {told}")
    for group, parts in (("experiments", EXPERIMENTS), ("figures", FIGURES)):
        found = record.values.setdefault(group, {})
        for name, run in parts:
            if not name.startswith(chosen):
                continue
            print(f"{name} ...", flush=True)
            left_s = end_s - time.monotonic()
            found[name] = _part(rig, run, min(options.part_s, left_s)) if left_s > 0 else {
                UNAVAILABLE: f"no time was left of --limit-s {options.limit_s:g}"}  # fmt: skip
            record.write()
            _say_part(name, found[name])


def _part(rig: Rig, run: Callable[[Rig], Any], limit_s: float) -> dict[str, Any]:
    """A part's result, and how long it took. Processes that a part starts end with its blocks, however it ends."""
    began = time.monotonic()
    result: dict[str, Any] = {}
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        found = run(rig)
        if isinstance(found, dict):
            result.update(found)
        else:
            result["lines"] = []
            for line in found:  # one that fails leaves those before it
                result["lines"].append(line)
    except UnavailableError as error:
        result[UNAVAILABLE] = str(error)
    except TooLongError:
        result["error"] = f"it took longer than {limit_s:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
        result["error"] = f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return {**result, "seconds": round(time.monotonic() - began, 3)}


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TooLongError


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _conclude(values: Mapping[str, Any], out: Path) -> int:
    """Say what it all comes to; the exit status."""
    parts = {**values.get("experiments", {}), **values.get("figures", {})}
    failed = [name for name, part in parts.items() if "error" in part]
    tests = values.get("tests", {})
    lines = [line for part in parts.values() for line in part.get("lines", ())]
    missed = [line for line in lines if line["met"] is False]
    taken = sum(_has_result(part) for part in parts.values())
    print(f"{out}: {taken} of {len(parts)} parts have results, {len(missed)} bars missed")
    if not taken or failed or tests.get("failures") or not values["finished"]:
        return 1
    return 3 if missed else 0


def _has_result(part: Mapping[str, Any]) -> bool:
    """Not of a figure of which nothing could be taken."""
    if "error" in part or UNAVAILABLE in part:
        return False
    return "lines" not in part or any(line["met"] != UNAVAILABLE for line in part["lines"])


def _say_part(name: str, part: Mapping[str, Any]) -> None:
    for line in part.get("lines", ()):
        _say_line(line)
    if "error" in part:
        print(f"  {name}: failed: {part['error']}")
    if UNAVAILABLE in part:
        print(f"  {name}: {UNAVAILABLE}: {part[UNAVAILABLE]}")


def _say_line(line: Mapping[str, Any]) -> None:
    if line["met"] == UNAVAILABLE:
        print(f"  {line['what']}: {UNAVAILABLE}: {line[UNAVAILABLE]}")
        return
    verdict = {None: "", True: ", met", False: ", MISSED"}[line["met"]]
    bar = f" (bar {line['bar']}{verdict})" if line["bar"] else ""
    print(f"  {line['what']}: {line['value']:.4g} {line['unit']}{bar}", flush=True)


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout[:20_000]


def _tests() -> dict[str, Any]:
    """The tests marked `gpu`; a device that is not there is a failure here, not a skip.

    Only files that have such tests are collected: others may import what a bare machine lacks.
    """
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # Warnings of whatever else is installed on a machine that is not ours must not fail a test.
        command += ["-W", "default::DeprecationWarning", "-W", "default::FutureWarning", *files]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, "TRIMS_REQUIRE": "gpu"}, capture_output=True, text=True,
                check=False, timeout=_TESTS_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return {"failures": 1, "output": f"{error}: {str(error.stdout)[-_SHOWN:]}"}
        if not report.exists():
            return {"failures": 1, "output": (done.stdout + done.stderr)[-_SHOWN:]}
        suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 - written by the line above
        assert suite is not None, "pytest writes one suite"
        counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        counts["failures"] += counts["errors"]
        return {**counts, "output": done.stdout[-_SHOWN:]}
