"""Answers of a model, small enough to cross a process border and exact enough to be compared there.

Standard library only: numpy's arrays come and go as bytes.
"""

from __future__ import annotations

import base64
import hashlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a model.

    Attributes:
        values: Its output, float32, little endian, row-major.
        text: The same for people; several lines.
        model: The model that gave it, kept alive so that its memory can be measured; no part of the answer.
    """

    values: bytes
    text: str
    model: object = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, output: NDArray[Any], text: str, model: object) -> Answer:
        """Make an answer from a float32 array."""
        return cls(output.astype("<f4", copy=False).tobytes(), text, model)

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the values' SHA-256: equal digests are equal bits."""
        return hashlib.sha256(self.values).hexdigest()[:16]

    def to_json(self) -> dict[str, str]:
        """Return the answer as JSON for `from_json`."""
        return {"values": base64.b64encode(self.values).decode(), "text": self.text, "digest": self.digest}

    @classmethod
    def from_json(cls, raw: Mapping[str, str]) -> Answer:
        """Return the answer that `to_json` has turned into JSON."""
        return cls(base64.b64decode(raw["values"]), raw["text"])


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of two answers.

    Attributes:
        equal: True if they count as the same answer.
        identical: True if they are the same bits.
        difference: The largest distance of two numbers, divided by the largest number.
    """

    equal: bool
    identical: bool
    difference: float

    def __str__(self) -> str:
        if self.identical:
            return "bit-identical"
        verdict = "equal within rounding" if self.equal else "DIFFERENT"
        return f"{verdict}, largest difference {self.difference:.1e}"


def compare(one: Answer, other: Answer, *, tolerance: float = 0.0) -> Agreement:
    """Equal bits, or numbers within the tolerance relative to the largest of them."""
    if one.values == other.values:
        return Agreement(equal=True, identical=True, difference=0.0)
    first, second = (array("f", answer.values) for answer in (one, other))
    if len(first) != len(second):
        return Agreement(equal=False, identical=False, difference=float("inf"))
    scale = max(map(abs, first))
    difference = max(abs(a - b) for a, b in zip(first, second, strict=True)) / (scale or 1.0)
    return Agreement(equal=difference <= tolerance, identical=False, difference=difference)


def top_classes(logits: NDArray[Any], count: int = 3) -> str:
    """`class 281 (13.34), class 3 (11.02)`: the largest numbers of a row and where they are."""
    best = logits.argsort()[::-1][:count]
    return ", ".join(f"class {index} ({logits[index]:.3f})" for index in best.tolist())
