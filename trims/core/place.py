"""A place is a tier and, where there are several of a kind, a device: `cpu`, `disk`, `file`, `gpu:0`, `cloud`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from trims.core.errors import CallerError


class TierKind(Enum):
    """Kinds of memory, fastest first."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    FILE = "file"
    CLOUD = "cloud"

    __hash__ = object.__hash__  # members are singletons; Enum's own is a call into Python, several for each open

    @property
    def rank(self) -> int:
        """0 is the fastest."""
        return _ORDER.index(self)


_ORDER = (TierKind.GPU, TierKind.CPU, TierKind.DISK, TierKind.FILE, TierKind.CLOUD)
_PLACES: dict[tuple[TierKind, int], Place] = {}
_TEXT = re.compile(r"(gpu|cpu|disk|file|cloud)(?::([0-9]{1,3}))?\Z")


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Place of a replica. There is one object for each place: the books look places up dozens of times an event.

    Attributes:
        device: Number of the device; always 0 for tiers that have only one. -1 in `ANY_GPU` alone.
    """

    tier: TierKind
    device: int = 0

    def __new__(cls, tier: TierKind, device: int = 0) -> Place:  # noqa: PYI034 - not a class to inherit from
        """Return the one object of this place."""
        known = _PLACES.get((tier, device))
        return known if known is not None else _PLACES.setdefault((tier, device), object.__new__(cls))

    def __reduce__(self) -> tuple[type[Place], tuple[TierKind, int]]:
        """Pickle by tier and device: a copy, also in another process, is the one object there."""
        return Place, (self.tier, self.device)

    @classmethod
    def wanted(cls, text: str) -> Place:
        """Read the place of a request or a manifest, where `gpu` is the device that suits it. See `parse`."""
        return ANY_GPU if text == TierKind.GPU.value else cls.parse(text)

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read `cpu`, `disk` or `gpu:1`; `gpu` is `gpu:0`. Raises CallerError on anything else."""
        match = _TEXT.match(text)
        if match is None:
            raise CallerError(f"{text!r} is not a place; write cpu, disk, file, gpu, gpu:N, or auto for what suits it")
        device = int(match.group(2) or 0)
        if device and match.group(1) != "gpu":
            raise CallerError(f"{text!r} is not a place: only gpu has devices")
        return cls(TierKind(match.group(1)), device)

    def is_in(self, wanted: Place) -> bool:
        """Return whether a replica here is at the place that was wanted: any device is in `ANY_GPU`."""
        return self is wanted or (wanted is ANY_GPU and self.tier is TierKind.GPU)

    def __str__(self) -> str:
        return f"gpu:{self.device}" if self.tier is TierKind.GPU and self.device >= 0 else self.tier.value


#: Name that a user writes for no place in particular: wherever on the host the image lies.
ANYWHERE = "auto"
CPU = Place(TierKind.CPU)
GPU = Place(TierKind.GPU)
#: The device that suits a request: where the image lies, else where there is room. No replica lies here.
ANY_GPU = Place(TierKind.GPU, -1)
DISK = Place(TierKind.DISK)
#: The artifact's own files.
FILE = Place(TierKind.FILE)
#: Images in other machines' keeping, such as objects in a bucket.
CLOUD = Place(TierKind.CLOUD)
