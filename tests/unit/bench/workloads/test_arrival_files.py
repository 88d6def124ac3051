"""Files of arrivals in both formats of the Azure Functions traces, whole and broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from trims_bench.workloads.arrival_files import Arrivals, read_arrivals

from trims.core.errors import CallerError

if TYPE_CHECKING:
    from pathlib import Path

PER_MINUTE = ",".join(["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))])
PER_CALL = "app,func,end_timestamp,duration"


def row(name: str, **counts: int) -> str:
    """A function of the format of 2019, with calls in some minutes: `m3=5` are five in minute 3."""
    minutes = [str(counts.get(f"m{number}", 0)) for number in range(1, 1441)]
    return ",".join(["owner", "app", name, "http", *minutes])


def read(folder: Path, *lines: str, **how: float) -> Arrivals:
    path = folder / "arrivals.csv"
    path.write_text("\n".join(lines) + "\n")
    return read_arrivals(path, np.random.default_rng(1), **how)


def refused(folder: Path, *lines: str) -> str:
    with pytest.raises(CallerError) as caught:
        read(folder, *lines)
    return str(caught.value)


def test_counts_per_minute_become_calls_within_their_minutes(folder: Path) -> None:
    found = read(folder, PER_MINUTE, row("seldom", m1=1), row("often", m1=2, m3=3))
    assert found.names == ["owner/app/often", "owner/app/seldom"], "the one that is called most comes first"
    assert list(np.bincount(found.functions)) == [5, 1]
    minutes = found.times_ns // 60_000_000_000
    assert list(minutes) == [0, 0, 0, 2, 2, 2]
    assert (np.diff(found.times_ns) >= 0).all()
    again = read(folder, PER_MINUTE, row("seldom", m1=1), row("often", m1=2, m3=3))
    assert (found.times_ns == again.times_ns).all(), "equal seeds give equal times"


def test_calls_with_an_end_and_a_duration_begin_before_that(folder: Path) -> None:
    found = read(folder, PER_CALL, "a,f,10.5,0.5", "a,g,9.0,1.0", "a,f,12.0,0.0")
    assert list(found.times_ns) == [0, 2_000_000_000, 4_000_000_000]
    assert [found.names[each] for each in found.functions] == ["a/g", "a/f", "a/f"]


def test_a_time_scale_makes_a_file_shorter_and_a_duration_cuts_it(folder: Path) -> None:
    lines = PER_CALL, "a,f,0,0", "a,f,60,0", "a,f,120,0"
    assert list(read(folder, *lines, time_scale=60.0).times_ns) == [0, 1_000_000_000, 2_000_000_000]
    assert len(read(folder, *lines, time_scale=60.0, seconds=2.0).times_ns) == 2
    assert len(read(folder, PER_MINUTE, row("f", m1=4, m9=4), seconds=60.0).times_ns) == 4


# fault (loads): a cut or negative arrivals file -> `bad_request` with file and line
@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ((PER_MINUTE, row("f", m1=1)[:2000]), "line 2 has"),  # cut
        ((PER_MINUTE, row("f"), row("g", m7=-3)), "line 3 has '-3' calls in minute 7"),
        ((PER_MINUTE, row("f").replace("http,0", "http,x", 1)), "line 2 has 'x' calls in minute 1"),
        ((PER_MINUTE[:200], row("f")), "line 1 has"),
        ((PER_CALL, "a,f,1.0"), "line 2 has 3 columns of 4"),
        ((PER_CALL, "a,f,1.0,0.1", "a,f,2.0,-1"), "line 3 has '-1' as duration"),
        ((PER_CALL, "a,f,nan,0"), "line 2 has 'nan' as end_timestamp"),
        (("who,what", "a,f"), "line 1 begins with"),
        ((PER_CALL, "x" * 300_000), "line 2 has 200,000 letters"),
    ],
)
def test_a_wrong_line_is_named_with_its_number(folder: Path, lines: tuple[str, ...], line: str) -> None:
    message = refused(folder, *lines)
    assert "arrivals.csv" in message
    assert line in message


def test_a_file_without_calls_or_that_is_no_text_is_refused(folder: Path) -> None:
    refused(folder, "")
    refused(folder, PER_CALL)
    refused(folder, PER_MINUTE, row("f"))
    (folder / "packed.gz").write_bytes(b"\x1f\x8b\x08\x00\xff\xff")
    for name in ("packed.gz", "nowhere.csv"):
        with pytest.raises(CallerError):
            read_arrivals(folder / name, np.random.default_rng(0))
