"""Figures of `make demo` as a picture: `python -m trims_bench.gains_picture bench/results/demo.json docs/gains.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_WIDTH, _LEFT, _BAR, _LINE = 760, 330, 300, 30
#: Ways to a first answer, and what holds the weights of several processes -> the figure.
_WAYS = {
    "your program, as it is today": "alone_s",
    "the same program, by trims exec": "exec_s",
    "a request for which no process runs": "request_s",
}
_MEMORY = {"by the framework alone": "memory_alone_bytes", "over trims": "memory_shared_bytes"}
_OURS, _OTHERS = "#1f6fb2", "#9aa5b1"


def picture(figures: Mapping[str, float], processes: int, machine: str) -> str:
    """Return two groups of bars: seconds to the first answer, and memory of all processes."""
    times = _group("Time to the first answer of a fresh start (all-MiniLM-L6-v2, transformers)", _WAYS, figures, 34,
                   format_seconds)  # fmt: skip
    title = f"Memory of {processes} processes with one model (ResNet-50, ONNX Runtime)"
    memory = _group(title, _MEMORY, figures, 174, lambda value: format_bytes(int(value)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} 274" font-family="sans-serif" role="img">',
            "<title>What a user gains: time to the first answer, and memory of several processes</title>",
            f'<rect width="{_WIDTH}" height="274" fill="#ffffff"/>',
            *times, *memory, _text(16, 262, f"`make demo`, {machine}", size=11), "</svg>", "",
        ]
    )  # fmt: skip


def _group(
    title: str, rows: Mapping[str, str], figures: Mapping[str, float], top: int, words: Callable[[float], str]
) -> Iterator[str]:
    yield _text(16, top, title, size=15)
    most = max(figures[name] for name in rows.values())
    for number, (label, name) in enumerate(rows.items()):
        y, long = top + 14 + number * _LINE, max(2, round(_BAR * figures[name] / most))
        colour = _OURS if number else _OTHERS
        gain = f"  ({most / figures[name]:.3g}x)" if number else ""
        yield _text(_LEFT - 12, y + 16, label, anchor="end")
        yield f'<rect x="{_LEFT}" y="{y}" width="{long}" height="{_LINE - 8}" fill="{colour}"/>'
        yield _text(_LEFT + long + 8, y + 16, words(figures[name]) + gain)


def _text(x: int, y: int, text: str, *, size: int = 13, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#111111">{text}</text>'


def main() -> None:
    """Read the record of a demo, write the picture."""
    record = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    machine = f"{record['stack']['processor']}, {record['stack']['processors']} processors"
    Path(sys.argv[2]).write_text(picture(record["figures"], record["processes"], machine), encoding="utf-8")


if __name__ == "__main__":
    main()
