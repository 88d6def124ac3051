"""`make gpu-check`: tests marked `gpu`, experiments and figures, part by part, in stages that fit the clock.

Every part runs in a process of its own, which is ended at its limit with all that it has started. What a part finds is
in the file as soon as it is found. The file is whole at every moment, also if the check is killed: a part that has not
begun, or has not come to its end, says so. With `--fake` it runs without a device, to see that it works.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.doctor_gpu import gpu_findings
from trims.core.units import format_seconds
from trims.daemon.config import build_config
from trims.daemon.main import shm_prefix
from trims.memory.shm import names, unlink
from trims.process import messages
from trims.process.child import Child, Ties, exit_words
from trims.process.python import run_module
from trims.process.subreaper import adopt, end_strays
from trims_bench.evaluation.stack import commit, stack
from trims_bench.gpu.lines import UNAVAILABLE
from trims_bench.gpu.needs import missing
from trims_bench.gpu.parts import STAGE_S, STAGES, TESTS, Part, plan
from trims_bench.gpu.rig import TINY, Rig, Sizes
from trims_bench.gpu.summary import status, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

_NOT_BEGUN = "the check ended before this part began"
_NOT_ENDED = "the check ended while this part ran"
_ASKED = "name,uuid,driver_version,persistence_mode,pcie.link.gen.current,pcie.link.width.current,memory.total"
_MOST_KEPT = 20_000
#: Seconds for questions to the machine before the parts: a sick driver may not answer.
_ASK_S = 10.0
#: Seconds for what a part has started to end; one that hangs in a driver is given up.
_END_S = 20.0
#: Bytes of one report, at most: a line may hold a trace.
_MOST_BYTES = 16 << 20


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
    adopt()
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
            _end_descendants()
            remove_leavings(rig.work)
            record.write()
    print(f"\n{options.out}:", *summary(record.values), sep="\n")
    return status(record.values)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trims_bench.gpu.check", description=__doc__.partition("\n")[0])
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
        remove_leavings(rig.work)


def _take(part: Part, rig: Rig, record: Record, found: dict[str, Any], limit_s: float) -> None:
    """Run one part; each of its reports is in the file at once."""
    del found[UNAVAILABLE]
    found["error"] = _NOT_ENDED
    record.write()
    began = time.monotonic()

    def hear(report: Mapping[str, Any]) -> None:
        _note(found, report)
        found["seconds"] = round(time.monotonic() - began, 3)
        record.write()

    given = (part.key, rig.kind, str(rig.work), json.dumps(asdict(rig.sizes)))
    if why := run(run_module("trims_bench.gpu.part", *given), limit_s, hear):
        found["error"] = why
    found["seconds"] = round(time.monotonic() - began, 3)
    record.write()


def run(command: Sequence[str], limit_s: float, hear: Callable[[dict[str, Any]], None]) -> str:
    """Run a command until it has sent its result, or to the limit; nothing that it has started is left after that.

    Args:
        command: Command to which its socket and its lifeline are added: the part ends with the check.
        limit_s: Seconds.
        hear: Called with each report, as it comes.

    Returns:
        Why there is no result; empty if there is one.
    """
    until_s, ties = time.monotonic() + limit_s, Ties()
    child = Child([*command, *map(str, ties.fds)], ties)
    try:
        while True:
            child.socket.settimeout(max(0.001, until_s - time.monotonic()))
            received = messages.receive(child.socket, long_bytes=_MOST_BYTES)
            if received is None:
                status = child.wait(max(0.0, until_s - time.monotonic()))
                return "its process hangs in its end" if status is None else f"its process {exit_words(status)}"
            hear(received[0])
            if "result" in received[0]:
                child.wait(max(0.0, until_s - time.monotonic()))
                return ""
    except TimeoutError:
        return f"it took longer than {limit_s:g} s"
    finally:
        child.kill()
        child.wait(_END_S)  # not for as long as it takes: no signal ends a process that hangs in a driver
        ties.close()
        _end_descendants()


def _end_descendants() -> None:
    """Kill what is left below this process, whose own each orphan becomes: a keeper is detached from its daemon.

    One that a failed part leaves would hold memory of the device, and the next part would count it.
    """
    until_s = time.monotonic() + _END_S
    while end_strays(()) and time.monotonic() < until_s:
        time.sleep(0.01)


def remove_leavings(work: Path) -> None:
    """Free the segments of every state folder under the check's work folder, and empty that folder of parts.

    A daemon that was killed with its part cannot, and no later one adopts what belongs to such a folder.
    """
    for catalog in work.rglob("catalog.db"):
        for name in list(names(shm_prefix(catalog.parent))):
            unlink(name)
    for part in work.glob("part-*"):
        shutil.rmtree(part, ignore_errors=True)


def _note(found: dict[str, Any], report: Mapping[str, Any]) -> None:
    if "line" in report:
        found.setdefault("lines", []).append(report["line"])
        print(f"  {report['line']['what']}: {report['line']['value']}", flush=True)
    elif "test" in report:
        test = report["test"]
        found["results"].append(test)
        found["tests"] += 1
        found["failures"] += test["outcome"] == "failed"
        found["skipped"] += test["outcome"] == "skipped"
        if test["outcome"] == "failed":
            print(f"  FAILED {test['test']}: {test.get('why', '')[-300:]}", flush=True)
    else:
        del found["error"]
        found.update(report["result"])


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


if __name__ == "__main__":
    sys.exit(main())
