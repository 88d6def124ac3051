"""What a run comes to, in at most forty lines: each bar reached, missed, or not shown and why; and the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims_bench.gpu.lines import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_LINES = 40
_WIDTH = 118
_VERDICTS = {None: "taken", True: "reached", False: "MISSED"}


def summary(values: Mapping[str, Any]) -> list[str]:
    """The lines. What does not fit is counted in the last one."""
    lines = list(_lines(values))
    more = len(lines) - _MOST_LINES
    if more > 0:
        lines = [*lines[: _MOST_LINES - 1], f"... and {more + 1} lines more in the file"]
    return [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines]


def status(values: Mapping[str, Any]) -> int:
    """0 if there are results, nothing failed and every bar that could be taken is met; 3 if one is missed; else 1."""
    parts = _parts(values)
    failed = [name for name, part in parts.items() if "error" in part] or values.get("tests", {}).get("failures")
    if not any(map(_has_result, parts.values())) or failed or not values["finished"]:
        return 1
    return 3 if _missed(parts) else 0


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    parts = _parts(values)
    tests = values.get("tests")
    if tests:
        counted = f"{tests['tests']} run, {tests['failures']} failed, {tests['skipped']} skipped"
        yield f"tests: {counted}{_why(tests)}"
        for test in tests.get("results", ()):
            if test["outcome"] == "failed":
                yield f"  FAILED {test['test'].rpartition('/')[2]}: {test.get('why', '').strip().splitlines()[-1:]}"
    whole = [name.partition(" ")[0] for name, part in parts.items() if not part.get("lines") and not _why(part)]
    if whole:
        yield f"{', '.join(whole)}: taken; their results are in the file"
    for name, part in parts.items():
        lines = part.get("lines", ())
        if not lines and _why(part):
            yield f"{name}:{_why(part)}"
        for line in lines:
            yield f"{name}: {_said(line)}"
        if lines and _why(part):
            yield f"{name}:{_why(part)}"
    taken = sum(map(_has_result, parts.values()))
    ended = "" if values["finished"] else "; THE RUN WAS ENDED BEFORE ITS END"
    yield f"{taken} of {len(parts)} parts have results, {len(_missed(parts))} bars missed{ended}"


def _said(line: Mapping[str, Any]) -> str:
    if line["met"] == UNAVAILABLE:
        return f"{line['what']}: not shown: {line[UNAVAILABLE]}"
    bar = f" (bar {line['bar']})" if line["bar"] else ""
    return f"{line['what']}: {line['value']:.4g} {line['unit']}{bar}, {_VERDICTS[line['met']]}"


def _why(part: Mapping[str, Any]) -> str:
    if "error" in part:
        return f" FAILED: {part['error']}"
    return f" not shown: {part[UNAVAILABLE]}" if UNAVAILABLE in part else ""


def _parts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values.get("experiments", {}), **values.get("figures", {})}


def _missed(parts: Mapping[str, Any]) -> list[Any]:
    return [line for part in parts.values() for line in part.get("lines", ()) if line["met"] is False]


def _has_result(part: Mapping[str, Any]) -> bool:
    """Not of a figure of which nothing could be taken."""
    if "error" in part or UNAVAILABLE in part:
        return False
    return "lines" not in part or any(line["met"] != UNAVAILABLE for line in part["lines"])
