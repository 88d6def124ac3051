"""One line of `trims doctor`."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass

_INDENT, _ARROW = 6, "-> "
#: Narrower terminals get lines of this width: words in pieces help no reader.
_LEAST_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """One examined thing: verdict `ok`, `note` or `bad`."""

    verdict: str
    what: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        """JSON values."""
        return asdict(self)

    def lines(self, width: int | None) -> list[str]:
        """Return lines, at most `width` columns wide but for longer words, such as paths; None is any width."""
        found = _wrapped(f"{self.verdict:<{_INDENT}}", self.what, width)
        return found + (_wrapped(" " * _INDENT + _ARROW, self.advice, width) if self.advice else [])


def _wrapped(begin: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [begin + text]
    return textwrap.wrap(
        text,
        max(width, _LEAST_WIDTH),
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_long_words=False,
        break_on_hyphens=False,
    )
