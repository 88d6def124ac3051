"""The check: tests marked `gpu`, experiments and figures, part by part, in stages that fit the clock.

Every part runs in a process of its own, which is ended at its limit with all that it has started. What a part finds is
in the file as soon as it is found. The file is whole at every moment, also if the check is killed: a part that has not
begun, or has not come to its end, says so.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.doctor_gpu import gpu_findings
from trims.core.units import format_seconds
from trims.daemon.config import build_config
from trims.process.python import run_module
from trims_bench.evaluation.stack import stack
from trims_bench.gpu import leavings, processes
from trims_bench.gpu.lines import UNAVAILABLE
from trims_bench.gpu.needs import missing
from trims_bench.gpu.part import rig_as_text
from trims_bench.gpu.parts import STAGE_S, STAGES, TESTS, Part, plan
from trims_bench.gpu.rig import TINY, Rig, Sizes
from trims_bench.gpu.summary import status, summary
from trims_bench.machine import commit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

_NOT_BEGUN = "the check ended before this part began"
_NOT_ENDED = "the check ended while this part ran"
_ASKED = "name,uuid,driver_version,persistence_mode,pcie.link.gen.current,pcie.link.width.current,memory.total"
_MOST_KEPT = 20_000
#: Seconds for questions to the machine before the parts: a sick driver may not answer.
_ASK_S = 10.0


class Record:
    """The JSON file, written again whenever something is found."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self.values: dict[str, Any] = {**about, "finished": False}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self) -> None:
        """Write all values at once: a reader finds the last whole state."""
        unfinished = self._path.with_suffix(".writing")
        unfinished.write_text(json.dumps(self.values, indent=1) + "\n")
        unfinished.rename(self._path)

    def begin(self, part: Part) -> dict[str, Any]:
        """Return the record of a part that has not run yet."""
        made: dict[str, Any] = {UNAVAILABLE: _NOT_BEGUN}
        if part.group == TESTS:
            made = {"tests": 0, "failures": 0, "skipped": 0, "results": [], **made}
            self.values[TESTS] = made
        else:
            self.values.setdefault(part.group, {})[part.name] = made
        return made


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if there are results, nothing failed and every bar that could be taken is met; 3 if one is missed; else 1."""
    began_s, options = time.monotonic(), _parse(arguments)
    parts = plan(options.stage, options.only.split(",") if options.only else (), tests=not options.no_tests)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    processes.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="trims-gpu-check-", dir=options.work) as work:
        kind = _fake(Path(work)) if options.fake else options.cuda
        rig = Rig(kind, _sizes(options), Path(work))
        record = Record(options.out, {"stage": options.stage, "cuda": rig.kind, "tiny": rig.sizes == TINY})
        known = [(part, record.begin(part)) for part in parts]
        record.write()  # at once: what an earlier run left there is not taken for this one's
        try:
            record.values.update(_about(rig))
            _run(rig, record, known, began_s + options.limit_s, options)
            record.values["finished"] = True
        except KeyboardInterrupt:
            record.values["interrupted"] = True
        finally:
            processes.end_descendants()
            leavings.remove(rig.work)
            record.write()
    print(f"\n{options.out}:", *summary(record.values), sep="\n")
    return status(record.values)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trims_bench.gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--stage", choices=STAGES, default="all", help="sound, flow, models: each below nine minutes")
    parser.add_argument("--cuda", default="driver", help="`driver`, or `fake:FOLDER`")
    parser.add_argument("--work", type=Path, help="folder on a real disk, with room for some 40 GB")
    parser.add_argument("--fake", action="store_true", help="a fake device of its own, with tiny sizes")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: to see that it works, not how fast")
    parser.add_argument("--most-bytes", type=int, help="largest allocation of the experiments")
    parser.add_argument("--limit-s", type=float, help=f"seconds for the whole run (default: {STAGE_S:g} a stage)")
    parser.add_argument("--part-s", type=float, help="seconds for one part (default: half as much again as expected)")
    parser.add_argument("--no-tests", action="store_true", help="experiments and figures only")
    parser.add_argument("--only", help="parts of the stage, with commas between: 1,3,a,tests")
    options = parser.parse_args(arguments)
    unknown = set(options.only.split(",")) - set(STAGES[options.stage]) if options.only else set()
    if unknown:
        parser.error(f"--only: stage {options.stage} has no part {', '.join(sorted(unknown))}; it has "
                     f"{', '.join(STAGES[options.stage])}")  # fmt: skip
    for name in ("limit_s", "part_s", "most_bytes"):
        value = getattr(options, name)
        if value is not None and not value >= 0:
            parser.error(f"--{name.replace('_', '-')} is {value}; it must not be negative")
    if options.limit_s is None:
        options.limit_s = STAGE_S * (len(STAGES) - 1 if options.stage == "all" else 1)
    return options


def _sizes(options: argparse.Namespace) -> Sizes:
    sizes = TINY if options.tiny or options.fake else Sizes()
    return sizes if options.most_bytes is None else replace(sizes, most_bytes=options.most_bytes)


def _fake(work: Path) -> str:
    from trims.memory.cuda.api import Device
    from trims.testing.fake_cuda import make_devices

    folder = work / "fake"
    folder.mkdir()
    return make_devices(folder, [Device("GPU-00000000-0000-0000-0000-000000000001", "Fake", 1 << 30)])


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


# -- parts ---------------------------------------------------------------------------------------------------------


def _run(
    rig: Rig, record: Record, known: Sequence[tuple[Part, dict[str, Any]]], end_s: float, options: argparse.Namespace
) -> None:
    record.write()
    whole = format_seconds(sum(part.expected_s for part, _ in known))
    print(f"{len(known)} parts, some {whole}; ended after {format_seconds(options.limit_s)}", flush=True)
    for part, found in known:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            found[UNAVAILABLE] = f"no time was left of --limit-s {options.limit_s:g}"
            record.values["out_of_time"] = True
            record.write()
            continue
        limit_s = min(left_s, part.limit_s if options.part_s is None else options.part_s)
        print(f"{part.name}: some {part.expected_s:g} s, at most {limit_s:.0f} s ...", flush=True)
        _take(part, rig, record, found, limit_s)
        leavings.remove(rig.work)


def _take(part: Part, rig: Rig, record: Record, found: dict[str, Any], limit_s: float) -> None:
    """Run one part; each of its reports is in the file at once."""
    del found[UNAVAILABLE]
    found["error"] = _NOT_ENDED
    record.write()
    began = time.monotonic()

    def hear(line: str) -> None:
        _note(found, json.loads(line))
        found["seconds"] = round(time.monotonic() - began, 3)
        record.write()

    command = run_module("trims_bench.gpu.part", part.key, rig_as_text(rig))
    ended = processes.run(command, limit_s, hear)
    if found.get("error") == _NOT_ENDED:
        found["error"] = f"it took longer than {limit_s:g} s" if ended is None else f"its process ended with {ended}"
    found["seconds"] = round(time.monotonic() - began, 3)
    record.write()


def _note(found: dict[str, Any], told: Mapping[str, Any]) -> None:
    if "line" in told:
        found.setdefault("lines", []).append(told["line"])
        print(f"  {told['line']['what']}: {told['line']['value']}", flush=True)
    elif "test" in told:
        test = told["test"]
        found["results"].append(test)
        found["tests"] += 1
        found["failures"] += test["outcome"] == "failed"
        found["skipped"] += test["outcome"] == "skipped"
        if test["outcome"] == "failed":
            print(f"  FAILED {test['test']}: {test.get('why', '')[-300:]}", flush=True)
    else:
        del found["error"]
        found.update(told["result"])


# -- the machine ---------------------------------------------------------------------------------------------------


def _about(rig: Rig) -> dict[str, Any]:
    return {
        "machine": stack(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "missing": {need.name: state for need, state in missing()},
        "doctor": _doctor(rig),
        "nvidia_smi": _said(["nvidia-smi", "-q"]),
        "link": _said(["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv"]),
        "bar1": _said(["nvidia-smi", "-q", "-d", "MEMORY"]),
        "xids": _said(["sh", "-c", "dmesg 2>&1 | grep -E 'Xid|dmesg:' | tail -50"]) or "none",
    }


def _doctor(rig: Rig) -> list[dict[str, str]] | str:
    """Return the findings of `trims doctor` on the device, where no daemon runs; a text if they cannot be had."""
    try:
        config = build_config({"cuda": rig.kind}, environment={})
        return [finding.as_json() for finding in gpu_findings(config, str(rig.work))]
    except Exception as error:  # noqa: BLE001 - the check goes on without it
        return f"{type(error).__name__}: {error}"


def _said(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ASK_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr)[-_MOST_KEPT:]
