"""One line of a figure in the JSON file: what was compared, its value, the bar beside it, and whether that is met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trims_bench.measuring import Bar, Comparison

Line = dict[str, Any]
UNAVAILABLE = "unavailable"


def taken(compared: Comparison) -> Line:
    """Return the line of a comparison that was taken; `met` is null without a bar."""
    return {
        "what": compared.what,
        "value": compared.value,
        "unit": compared.unit,
        "bar": _bar(compared.bar),
        "met": compared.reached,
        "raw": {side.of: {"unit": side.unit, "values": list(side.values)} for side in compared.sides},
    }


def not_taken(what: str, bar: Bar | None, why: str) -> Line:
    """Return the line of a comparison that cannot be taken here."""
    return {"what": what, "value": None, "bar": _bar(bar), "met": UNAVAILABLE, "unavailable": why}


def _bar(bar: Bar | None) -> str | None:
    return None if bar is None else f"{bar.relation} {bar.limit:g}"
