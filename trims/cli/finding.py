"""One line of `trims doctor`."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One examined thing: verdict `ok`, `note` or `bad`."""

    verdict: str
    what: str
    advice: str = ""

    def as_json(self) -> dict[str, str]:
        """JSON values."""
        return asdict(self)
