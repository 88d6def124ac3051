"""Files of arrivals, in the two formats of Microsoft's Azure Functions traces.

- 2019: invocations per minute of a day and function. `HashOwner,HashApp,HashFunction,Trigger,1,...,1440`.
- 2021: one line for each invocation. `app,func,end_timestamp,duration`, in seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trims.core.errors import CallerError
from trims_bench.workloads.arrivals import check_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_MINUTES = [str(number) for number in range(1, 1441)]
_PER_MINUTE = ["HashOwner", "HashApp", "HashFunction", "Trigger", *_MINUTES]
_PER_CALL = ["app", "func", "end_timestamp", "duration"]
_MINUTE_S = 60.0
#: Letters of one line, at most: 1,444 numbers need a tenth of that.
_MOST_LETTERS = 200_000


class Arrivals(NamedTuple):
    """Arrivals of a file.

    Attributes:
        times_ns: After the beginning, ascending.
        functions: Index of each arrival's function; 0 is the one that was called most.
    """

    times_ns: NDArray[np.int64]
    functions: NDArray[np.int64]
    names: Sequence[str]


def read_arrivals(
    path: Path, random: np.random.Generator, time_scale: float = 1.0, seconds: float = math.inf
) -> Arrivals:
    """Read a file of arrivals.

    Args:
        random: Places the calls of a minute within it, where the file has only their number.
        time_scale: Seconds of the file in one second of the load.
        seconds: How much of the load is wanted.

    Raises:
        CallerError: The file cannot be read or is of another form; the error names the line and what to do.
    """
    import numpy as np

    lines = _lines(path)
    number, heading = next(lines, (1, []))
    if heading == _PER_CALL:
        found = _calls(path, lines)
    elif heading[:4] == _PER_MINUTE[:4]:
        if heading != _PER_MINUTE:
            raise _wrong(
                path, number, f"has {len(heading)} columns", f"the minutes 1 to {len(_MINUTES)} behind Trigger"
            )
        found = _minutes(path, lines, random, seconds * time_scale)
    else:
        raise _wrong(
            path, number, f"begins with {','.join(heading)[:60]!r}",
            "the heading of the Azure Functions traces: HashOwner,HashApp,HashFunction,Trigger,1,...,1440 (2019) or "
            "app,func,end_timestamp,duration (2021)",
        )  # fmt: skip
    began_s, functions, names = found
    wanted = began_s < seconds * time_scale
    began_s, functions = began_s[wanted], functions[wanted]
    if not len(began_s):
        raise CallerError(f"{path} has no calls in that time; name a file that has some, or a longer --duration")
    order = np.argsort(began_s, kind="stable")
    times_ns = np.round(began_s[order] / time_scale * 1e9).astype(np.int64)
    by_calls = np.argsort(-np.bincount(functions, minlength=len(names)), kind="stable")
    ranks = np.empty_like(by_calls)
    ranks[by_calls] = np.arange(len(by_calls))
    return Arrivals(times_ns, ranks[functions[order]], [names[index] for index in by_calls])


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and columns of each line that is not empty."""
    try:
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(_MOST_LETTERS):
                number += 1
                if len(line) == _MOST_LETTERS:
                    raise _wrong(path, number, f"has {len(line):,} letters or more", "a line for each function or call")
                if line.strip():
                    yield number, line.strip().split(",")
    except OSError as error:
        raise CallerError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CallerError(f"{path} is no text; if it is packed, unpack it first") from error


def _calls(
    path: Path, lines: Iterator[tuple[int, list[str]]]
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    import numpy as np

    seconds, functions = [], []
    names: dict[str, int] = {}
    for number, columns in lines:
        if len(columns) != len(_PER_CALL):
            raise _cut(path, number, columns, len(_PER_CALL))
        app, function, end, duration = columns
        began = _number(path, number, "end_timestamp", end) - _number(path, number, "duration", duration)
        functions.append(names.setdefault(f"{app}/{function}", len(names)))
        seconds.append(began)
        check_count(len(seconds))
    times = np.array(seconds, dtype=np.float64)
    return times - (times.min() if len(times) else 0.0), np.array(functions, dtype=np.int64), list(names)


def _minutes(
    path: Path, lines: Iterator[tuple[int, list[str]]], random: np.random.Generator, most_s: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    import numpy as np

    parts, functions, total = [np.zeros(0)], [np.zeros(0, dtype=np.int64)], 0
    names: list[str] = []
    most_minutes = math.ceil(min(most_s / _MINUTE_S, len(_MINUTES)))
    for number, columns in lines:
        if len(columns) != len(_PER_MINUTE):
            raise _cut(path, number, columns, len(_PER_MINUTE))
        counts = np.array(_counts(path, number, columns[4:])[:most_minutes])
        total += int(counts.sum())
        check_count(total)
        minutes = np.repeat(np.arange(len(counts)), counts)
        parts.append((minutes + random.random(len(minutes))) * _MINUTE_S)
        functions.append(np.full(len(minutes), len(names), dtype=np.int64))
        names.append("/".join(columns[:3]))
    return np.concatenate(parts), np.concatenate(functions), names


def _number(path: Path, number: int, what: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < 1e12:
        raise _wrong(path, number, f"has {text!r:.40} as {what}", "seconds from 0 up")
    return found


def _counts(path: Path, number: int, texts: list[str]) -> list[int]:
    if "".join(texts).isdecimal() and all(texts):
        return list(map(int, texts))
    minute, text = next((at, each) for at, each in enumerate(texts, 1) if not each.isdecimal())
    raise _wrong(path, number, f"has {text!r:.40} calls in minute {minute}", "a whole number from 0 up")


def _cut(path: Path, number: int, columns: list[str], wanted: int) -> CallerError:
    return CallerError(
        f"{path}, line {number} has {len(columns)} columns of {wanted}; if the file was cut, fetch it again, or remove "
        "the line"
    )


def _wrong(path: Path, number: int, what: str, wanted: str) -> CallerError:
    return CallerError(f"{path}, line {number} {what}; expected is {wanted}: correct the file, or name another one")
