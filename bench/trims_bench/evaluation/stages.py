"""Stages of a start: its trace, divided so that every moment belongs to exactly one stage.

A moment belongs to the deepest span that was running then; where two of one depth overlap, to the one that began
later. What no part of the whole accounts for is the stage `unattributed`, so that stages add up to the whole.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trims.trace.reader import Record, Trace

UNATTRIBUTED = "unattributed"
#: Name of a span, or its first word -> stage. Spans of other names belong to the stage of their parent.
STAGES = {
    "process": "process", "prepare": "import framework", "connect": "connect", "open": "open", "ask": "open",
    "serve": "open", "resolve": "open", "plan": "open", "open.file": "open", "map": "attach", "import": "import code",
    "load": "build", "input": "run", "preprocess": "run", "predict": "run", "postprocess": "run", "output": "run",
    "run": "run", "framework": "import framework", "convert": "convert", "fetch": "fetch",
}  # fmt: skip
#: Order in which stages are shown; `fill` and `copy` of a tier come after `open`.
ORDER = (
    "process", "import framework", "connect", "open", "fetch", "convert", "tier", "attach", "import code", "build",
    "run", UNATTRIBUTED,
)  # fmt: skip


def stage_of(name: str) -> str | None:
    """Return the stage of a span's name; None if it belongs to its parent's."""
    if name.startswith(("fill.", "copy.")):
        return f"tier {name.partition('.')[2]}"
    return STAGES.get(name) or STAGES.get(name.partition(" ")[0])


def rank(stage: str) -> tuple[int, str]:
    """Return what stages are sorted by."""
    return ORDER.index(stage.partition(" ")[0] if stage.startswith("tier ") else stage), stage


def partition(trace: Trace, root: Record) -> dict[str, float]:
    """Return the seconds of each stage within a span of a trace. They add up to its length.

    Args:
        trace: Trace with all spans below the root.
        root: The whole. Parts of parts beyond their whole's end are cut off there.
    """
    children = trace.children()
    pieces: list[tuple[int, int, int, int, str]] = []

    def walk(span: Record, depth: int, begin_ns: int, end_ns: int, stage: str) -> None:
        for part in children.get(span.span_id, ()):
            begin = max(part.start_ns, begin_ns)
            end = min(part.end_ns if part.is_finished else end_ns, end_ns)
            if end > begin:
                found = stage_of(part.name) or stage
                pieces.append((begin, end, depth, part.start_ns, found))
                walk(part, depth + 1, begin, end, found)

    walk(root, 1, root.start_ns, root.end_ns, UNATTRIBUTED)
    return _by_stage(pieces, root.start_ns, root.end_ns)


def _by_stage(pieces: list[tuple[int, int, int, int, str]], begin_ns: int, end_ns: int) -> dict[str, float]:
    edges = sorted({begin_ns, end_ns, *(piece[0] for piece in pieces), *(piece[1] for piece in pieces)})
    found: dict[str, int] = {}
    for begin, end in itertools.pairwise(edges):
        running = [piece for piece in pieces if piece[0] <= begin and piece[1] >= end]
        stage = max(running, key=lambda piece: (piece[2], piece[3]))[4] if running else UNATTRIBUTED
        found[stage] = found.get(stage, 0) + end - begin
    return {stage: found[stage] / 1e9 for stage in sorted(found, key=rank)}
