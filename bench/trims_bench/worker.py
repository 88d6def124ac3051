"""One workload in one fresh process: `python -m trims_bench.worker --workload resnet50 --how trims:resnet50`.

Prints one JSON line:

    stages_s      stage -> seconds; `start` is from the process's start to the first line of this module's `main`
    total_s       from the process's start to the answer
    answer        see `trims_bench.answers.Answer.to_json`
    memory_bytes  resident, proportional and private memory of the process after the answer

Standard library only until the workload imports its framework, so that it runs in every environment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trims_bench.stages import Stages
from trims_bench.workloads import NAMES, workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_bench.answers import Answer
    from trims_bench.workloads import Workload


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    trace = Stages()
    options = _parser().parse_args(arguments)
    trace.seconds["start"] = _age_s(options.started_ns)
    answer = _run(workload(options.workload), options, trace)
    total_s = _age_s(options.started_ns)
    report = {
        "workload": options.workload,
        "how": options.how,
        "stages_s": trace.seconds,
        "total_s": total_s,
        "answer": answer.to_json(),
        "memory_bytes": memory_bytes(),
    }
    print(json.dumps(report), flush=True)
    if options.hold:
        sys.stdin.read()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trims_bench.worker", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", required=True, choices=NAMES)
    parser.add_argument(
        "--how",
        required=True,
        help="alone:ARTIFACT, file:IMAGE (no daemon) or trims:MODEL (through the daemon)",
    )
    parser.add_argument("--runtime-dir", type=Path, help="of the daemon; default as everywhere")
    parser.add_argument(
        "--started-ns",
        type=int,
        help="CLOCK_MONOTONIC when this process was started; else /proc tells, to 10 ms",
    )
    parser.add_argument("--hold", action="store_true", help="stay, weights attached, until stdin is closed")
    return parser


def _run(chosen: Workload, options: argparse.Namespace, trace: Stages) -> Answer:
    kind, _, name = options.how.partition(":")
    if not name:
        raise SystemExit(f"--how {options.how} names nothing; write {kind}:SOMETHING")
    if kind == "alone":
        return chosen.framework_alone(Path(name), trace)
    if kind == "file":
        return _from_file(chosen, name, trace)
    if kind == "trims":
        return _from_daemon(chosen, name, options.runtime_dir, trace)
    raise SystemExit(f"--how {options.how}: {kind} is none of alone, file and trims")


def _from_file(chosen: Workload, path: str, trace: Stages) -> Answer:
    from trims_client.weights import Weights

    chosen.prepare(trace)
    with trace.stage("open"):
        weights = Weights.map_file(path)
    return chosen.with_trims(weights, trace)


def _from_daemon(chosen: Workload, model: str, runtime_dir: Path | None, trace: Stages) -> Answer:
    """The daemon loads while the framework is imported."""
    with trace.stage("connect"):
        import trims

        session = trims.connect(runtime_dir)
        session.prefetch(model)
    chosen.prepare(trace)
    with trace.stage("open"):
        weights = session.open(model)
    return chosen.with_trims(weights, trace)


def _age_s(started_ns: int | None) -> float:
    """Seconds since this process was started."""
    if started_ns is not None:
        return (time.monotonic_ns() - started_ns) / 1e9
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int | str = "self") -> dict[str, int]:
    """Resident, proportional and private memory of a process, from /proc/PID/smaps_rollup."""
    names = {"Rss": "rss", "Pss": "pss", "Private_Dirty": "private_dirty", "Private_Clean": "private_clean"}
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in names:
            found[names[key]] = int(rest.split()[0]) * 1024
    return found


if __name__ == "__main__":
    sys.exit(main())
