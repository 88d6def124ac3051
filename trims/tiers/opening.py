"""Opening the tiers of the host that the settings `cpu_tier` and `disk_tier` name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trims.core.place import CPU, DISK
from trims.plugins import Kind
from trims.tiers.base import DeviceTier, InPlaceTier, Tier, TierSettings
from trims.tiers.guarded import GuardedTier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trims.core.place import Place
    from trims.plugins import Choice

GROUP = "trims.tiers"
#: Names of our own tiers, at whichever place.
_OURS_AT = {CPU: "shared", DISK: "folder"}
OURS = frozenset(_OURS_AT.values())
_MEMBERS = (
    "place", "capacity_bytes", "hash_on_adoption", "skipped",
    "create", "seal", "abort", "explain", "free", "scan", "leave", "verify", "close",
)  # fmt: skip


def open_tier(choice: Choice, settings: TierSettings, ours: Mapping[str, Callable[[TierSettings], Tier]]) -> Tier:
    """Open a tier of the host. One of a plug-in is guarded.

    Args:
        choice: What the setting says.
        settings: What the tier is given.
        ours: Our own at this place, by name.

    Raises ConfigError, also with the plug-in's name and the cause if that cannot be opened.
    """
    opened = _kind(settings.place, ours).open(choice, settings)
    return GuardedTier(opened.part, opened.where) if opened.where else opened.part


def find_plugin(choice: Choice, place: Place) -> str:
    """Return the module and function of a plug-in's tier; nothing is imported. Raises ConfigError if there is none."""
    return _kind(place, {_OURS_AT[place]: _unopened}).find(choice).value


def _unopened(settings: TierSettings) -> Tier:
    raise AssertionError(f"only names are asked for, not {settings}")


def _kind(place: Place, ours: Mapping[str, Callable[[TierSettings], Tier]]) -> Kind[TierSettings, Tier]:
    return Kind(GROUP, f"{place} tier", ours, _wrong, OURS)


def _wrong(part: object, settings: TierSettings) -> str:
    lacking = [name for name in _MEMBERS if not hasattr(part, name)]
    if lacking:
        return f"returned no Tier: {type(part).__name__} has no {', '.join(lacking)}"
    return _wrong_tier(part, settings)


def _wrong_tier(part: Any, settings: TierSettings) -> str:
    if isinstance(part, (DeviceTier, InPlaceTier)):
        return "returned a tier of a device or of files in place, which no setting opens"
    if part.place is not settings.place:
        return f"returned a tier at {part.place}, where one at {settings.place} was asked for"
    if type(part.capacity_bytes) is not int or not 0 < part.capacity_bytes <= settings.capacity_bytes:
        return f"returned a tier of {part.capacity_bytes} bytes, where at most {settings.capacity_bytes} were asked for"
    return ""
