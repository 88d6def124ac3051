"""Kineto's traces in Chrome's form, as `torch.profiler` exports them, read as what Kineto has in memory.

Chrome's form has no parents of operators. They are called one inside the other in their thread, as Kineto's own tree
has it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from repository import ROOT
from trims_predictors.frameworks.torch_profiler import Activity

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = ROOT / "tests" / "support" / "recorded_profiles"


def activities_in(path: Path) -> list[Activity]:
    trace = json.loads(path.read_text())
    base_ns = int(trace["baseTimeNanoseconds"])
    entries = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    parents = _parents(entries)
    return [_activity(each, base_ns, parents) for each in entries]


def _activity(entry: dict[str, Any], base_ns: int, parents: dict[int, int]) -> Activity:
    known = entry["args"]
    start_ns, external = base_ns + round(entry["ts"] * 1000), int(known.get("External id", 0))
    return Activity(
        entry["cat"], entry["name"], start_ns, start_ns + round(entry["dur"] * 1000), entry["tid"], external,
        int(known.get("correlation", 0)), parents.get(external, 0) if _is_operator(entry) else 0,
        tuple(known.get("Input Dims", ())), tuple(known.get("Input type", ())), int(known.get("bytes", 0)),
        int(known.get("device", 0)),
    )  # fmt: skip


def _is_operator(entry: dict[str, Any]) -> bool:
    return entry["cat"] in ("cpu_op", "user_annotation")


def _parents(entries: list[dict[str, Any]]) -> dict[int, int]:
    found: dict[int, int] = {}
    open_: list[dict[str, Any]] = []
    for each in sorted(filter(_is_operator, entries), key=lambda entry: entry["args"]["Ev Idx"]):
        while open_ and open_[-1]["ts"] + open_[-1]["dur"] < each["ts"]:
            open_.pop()
        if open_:
            found[each["args"]["External id"]] = open_[-1]["args"]["External id"]
        open_.append(each)
    return found
