"""Summary of a run in at most sixty lines: each bar reached, missed, or not shown and why; and the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims_bench.gpu.lines import UNAVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST_LINES = 60
#: Lines of failed tests at least, however many bars there are.
_FEW_TESTS = 6
_WIDTH = 118
_VERDICTS = {None: "taken", True: "reached", False: "MISSED"}


def summary(values: Mapping[str, Any]) -> list[str]:
    """The lines. What does not fit is counted in the last one."""
    tests, others, last = list(_of_tests(values)), list(_of_parts(values)), _last(values)
    room = max(_FEW_TESTS, _MOST_LINES - len(others) - 1)
    lines = [*_cut(tests, room), *_cut(others, _MOST_LINES - 1 - min(len(tests), room)), last]
    return [line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in lines]


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], f"... and {len(lines) - most + 1} more in the file"]


def status(values: Mapping[str, Any]) -> int:
    """0 if there are results, nothing failed and every bar that could be taken is met; 3 if one is missed; else 1."""
    parts, tests = _parts(values), values.get("tests", {})
    failed = [name for name, part in parts.items() if _errors(part)]
    untested = bool(tests) and (tests["failures"] or not tests["tests"] or _why(tests))
    shown = any(map(_has_result, parts.values())) or (tests and not untested)
    if not shown or failed or untested or not values["finished"] or values.get("out_of_time"):
        return 1
    return 3 if _missed(parts) else 0


def _of_tests(values: Mapping[str, Any]) -> Iterator[str]:
    tests = values.get("tests")
    if tests:
        counted = f"{tests['tests']} run, {tests['failures']} failed, {tests['skipped']} skipped"
        yield f"tests: {counted}{_why(tests)}"
        for test in tests.get("results", ()):
            if test["outcome"] == "failed":
                yield f"  FAILED {test['test'].rpartition('/')[2]}: {test.get('why', '').strip().splitlines()[-1:]}"


def _of_parts(values: Mapping[str, Any]) -> Iterator[str]:
    parts = _parts(values)
    if values.get("cuda", "driver") != "driver":
        yield f"on the stand-in {values['cuda']}: nothing below was shown on a device"
    if values.get("tiny"):
        yield "tiny sizes: what is below shows that the check works, not how fast a device is"
    whole = [name.partition(" ")[0] for name, part in parts.items() if _is_whole(part)]
    if whole:
        yield f"{', '.join(whole)}: taken; their results are in the file"
    for name, part in parts.items():
        for line in part.get("lines", ()):
            yield f"{name}: {_said(line)}"
        if _why(part):
            yield f"{name}:{_why(part)}"
        for where, error in _nested_errors(part):
            yield f"{name}: FAILED by {where}: {error}"


def _last(values: Mapping[str, Any]) -> str:
    parts = _parts(values)
    taken = sum(map(_has_result, parts.values()))
    ended = "" if values["finished"] else "; THE RUN WAS ENDED BEFORE ITS END"
    late = "; NO TIME WAS LEFT FOR ALL PARTS" if values.get("out_of_time") else ""
    return f"{taken} of {len(parts)} parts have results, {len(_missed(parts))} bars missed{ended}{late}"


def _is_whole(part: Mapping[str, Any]) -> bool:
    return not part.get("lines") and not _why(part) and not _nested_errors(part)


def _errors(part: Mapping[str, Any]) -> list[str]:
    return ([part["error"]] if "error" in part else []) + [error for _, error in _nested_errors(part)]


def _nested_errors(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the ways of sharing that failed in an experiment made by each way, with their errors."""
    ways = [(name, way) for name, way in part.items() if isinstance(way, dict)]
    return [(name, str(way["error"])) for name, way in ways if "error" in way]


def _said(line: Mapping[str, Any]) -> str:
    if line["met"] == UNAVAILABLE:
        return f"not shown: {line['what']}: {line[UNAVAILABLE]}"
    bar = f" (bar {line['bar']})" if line["bar"] else ""
    return f"{_VERDICTS[line['met']]}: {line['what']}: {line['value']:.4g} {line['unit']}{bar}"


def _why(part: Mapping[str, Any]) -> str:
    if "error" in part:
        return f" FAILED: {part['error']}"
    return f" not shown: {part[UNAVAILABLE]}" if UNAVAILABLE in part else ""


def _parts(values: Mapping[str, Any]) -> dict[str, Any]:
    return {**values.get("experiments", {}), **values.get("figures", {})}


def _missed(parts: Mapping[str, Any]) -> list[Any]:
    return [line for part in parts.values() for line in part.get("lines", ()) if line["met"] is False]


def _has_result(part: Mapping[str, Any]) -> bool:
    """Return whether a part has a result: a figure of which nothing could be taken has none."""
    if _errors(part) or UNAVAILABLE in part:
        return False
    return "lines" not in part or any(line["met"] != UNAVAILABLE for line in part["lines"])
