"""The figure `plane` as a picture: `python -m trims_bench.plane_picture bench/results docs/plane.svg`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trims_bench.report import in_folder, latest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CELL = re.compile(r"room (?P<room>\d+%), Zipf (?P<zipf>[\d.]+), (?P<who>\d+ clients?(, cold)?)")
_WIDE, _HIGH, _LEFT, _TOP, _GAP = 46, 26, 96, 64, 22
#: Colours from as fast as the other side to five times as fast.
_SLOW, _FAST, _SCALE = (0xE8, 0xEE, 0xF4), (0x1F, 0x6F, 0xB2), 5.0
_LATER = "#d9534f"


class Cell(NamedTuple):
    """One of the figure: how many times as many requests were served."""

    room: str
    zipf: str
    who: str
    value: float


def cells(comparisons: Iterable[dict[str, object]]) -> list[Cell]:
    """Return the cells of the figure's comparisons."""
    found = ((_CELL.fullmatch(str(each["what"])), float(str(each["value"]))) for each in comparisons)
    return [Cell(match["room"], match["zipf"], match["who"], value) for match, value in found if match]


def picture(found: Sequence[Cell]) -> str:
    """One panel for each popularity: rooms from left to right, clients from top to bottom."""
    zipfs, rooms, rows = _axes(found)
    panel = len(rooms) * _WIDE + _GAP
    width, height = _LEFT + len(zipfs) * panel, _TOP + len(rows) * _HIGH + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img">',
        "<title>Requests served through trims, as a multiple of those served by from_pretrained</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(12, 20, "requests served, as a multiple of from_pretrained's", size=14, anchor="start"),
    ]
    for number, row in enumerate(rows):
        parts.append(_text(_LEFT - 8, _TOP + number * _HIGH + 17, row, anchor="end"))
    for number, zipf in enumerate(zipfs):
        parts += _panel([cell for cell in found if cell.zipf == zipf], zipf, _LEFT + number * panel, rooms, rows)
    parts.append(_text(_LEFT, height - 8, "shared memory, as a share of the weights of all 12 models", anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _axes(found: Sequence[Cell]) -> tuple[list[str], list[str], list[str]]:
    return (
        list(dict.fromkeys(cell.zipf for cell in found)),
        list(dict.fromkeys(cell.room for cell in found)),
        sorted(dict.fromkeys(cell.who for cell in found), key=lambda who: ("cold" in who, int(who.split()[0]))),
    )


def _panel(found: Sequence[Cell], zipf: str, left: int, rooms: list[str], rows: list[str]) -> Iterator[str]:
    yield _text(left, _TOP - 22, f"Zipf {zipf}", anchor="start")
    for number, room in enumerate(rooms):
        yield _text(left + number * _WIDE + _WIDE // 2, _TOP - 6, room, size=10)
    for cell in found:
        x, y = left + rooms.index(cell.room) * _WIDE, _TOP + rows.index(cell.who) * _HIGH
        share = min(max((cell.value - 1) / (_SCALE - 1), 0.0), 1.0)
        colour = _LATER if cell.value < 1 else _between(share)
        yield f'<rect x="{x}" y="{y}" width="{_WIDE - 2}" height="{_HIGH - 2}" fill="{colour}"/>'
        yield _text(x + _WIDE // 2 - 1, y + 16, f"{cell.value:.1f}", colour="#ffffff" if share > 0.5 else "#111111")


def _between(share: float) -> str:
    mixed = (round(slow + (fast - slow) * share) for slow, fast in zip(_SLOW, _FAST, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _text(x: int, y: int, text: str, *, size: int = 12, anchor: str = "middle", colour: str = "#111111") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def main() -> None:
    """Read the newest record, write the picture."""
    record = latest(in_folder(Path(sys.argv[1])))["plane"]
    Path(sys.argv[2]).write_text(picture(cells(record["figure"]["comparisons"])))


if __name__ == "__main__":
    main()
