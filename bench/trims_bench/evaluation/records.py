"""Orders of evaluations and what they find: plain values that databases, reports and doors share."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trims.trace.reader import Record


#: Kinds of documents: layers by the level that they were found at, load by a scenario, and a figure of a benchmark.
LAYERS, WORKLOAD, FIGURE = "layers", "workload", "figure"


@dataclass(frozen=True, slots=True)
class Order:
    """Order of an evaluation: what is measured, on which stack.

    Attributes:
        key: Key of the model's deployment: another one means another model, manifest or code.
        repeats: Samples of each tier and way.
        batches: Requests' sizes along the first dimension, for predictors that run already.
        level: Deepest level that runs are looked at, by its name.
        idle_s: Seconds without a request before a predictor counts as settled.
        scenario: Scenario of a workload, with its options; empty for starts.
        stack: Facts about machine and libraries.
    """

    id: str
    model: str
    key: str
    tiers: tuple[str, ...]
    ways: tuple[str, ...]
    repeats: int
    batches: tuple[int, ...] = (1,)
    level: str = "model"
    idle_s: float = 2.0
    scenario: Mapping[str, Any] = field(default_factory=dict)
    began_unix_s: float = 0.0
    stack: Mapping[str, Any] = field(default_factory=dict)
    manifest: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Order:
        """Return what `as_json` gave. Raises TypeError or KeyError for anything else."""
        lists = {name: tuple(value[name]) for name in ("tiers", "ways", "batches")}
        return cls(**{**value, **lists})


@dataclass(frozen=True, slots=True)
class Sample:
    """One start.

    Attributes:
        seconds: Seconds from nothing to the first answer.
        stages: Seconds of each stage, which add up to `seconds`.
        steady_s: Seconds that the model computed in each run after the first one, with its manifest's steps.
        why_not: Why it does not count; empty if it does.
        batch: Size of its requests along the first dimension.
    """

    tier: str
    way: str
    number: int
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    steady_s: tuple[float, ...] = ()
    digest: str = ""
    trace_id: str = ""
    why_not: str = ""
    batch: int = 1

    @property
    def where(self) -> tuple[str, str, int]:
        """Return what it is a sample of: tier, way and batch."""
        return self.tier, self.way, self.batch


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation as it is kept.

    Attributes:
        samples: Samples as they were taken, those that do not count with the reason.
        documents: What else was found, by kind: `LAYERS`, `WORKLOAD`.
        ended: Whether all that was asked was taken, or could not be.
        unreachable: Tiers that could not be brought about, with the reasons.
    """

    order: Order
    samples: Sequence[Sample] = ()
    documents: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ended: bool = False
    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Summary:
    """A line of the list of evaluations."""

    id: str
    model: str
    began_unix_s: float
    samples: int
    wanted: int
    ended: bool
    scenario: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample with the spans that it was found from."""

    sample: Sample
    spans: Sequence[Record] = ()


def new_id() -> str:
    """Return an id for an evaluation that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)
