"""Description of the daemon's GPUs, as messages of the control door: the device, its keeper, and why there is no tier.

Asking a keeper or the driver may take milliseconds: no lock of the store is held meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import NotSupportedError, TrimsError
from trims.memory.cuda.survey import survey
from trims.wire import trims_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trims.core.place import Place
    from trims.keeper.client import KeeperState
    from trims.memory.cuda.survey import Surveyed
    from trims.store.read_model import TierView
    from trims.tiers.gpu import GpuTier


class Devices:
    """The GPUs of one daemon.

    Args:
        tiers: One for each.
        cuda: What they are reached by; see `trims.memory.cuda.connect.connect`.
        off: Why there is no tier; empty if there is one.
    """

    def __init__(self, tiers: Sequence[GpuTier], cuda: str, off: str) -> None:
        self._tiers = tiers
        self._cuda = cuda
        self.off = off
        #: Last known state by place, so that a device whose keeper is gone still has a name.
        self._known: dict[Place, KeeperState] = {}

    def look(self, views: Iterable[TierView]) -> list[pb.Device]:
        """Return every device as it is now, and its tier's figures."""
        if not self._tiers:
            return []
        surveyed, by_place = self._surveyed(), {view.place: view for view in views}
        return [self._one(tier, by_place[tier.place], surveyed) for tier in self._tiers]

    def _one(self, tier: GpuTier, view: TierView, surveyed: dict[str, Surveyed]) -> pb.Device:
        message = pb.Device(place=str(tier.place), capacity_bytes=tier.capacity_bytes, reserve_bytes=tier.reserve_bytes)
        try:
            state = self._known[tier.place] = tier.describe()
            message.keeper_pid, message.keeper_awake = state.pid, state.awake
        except TrimsError as error:
            message.trouble = str(error)
        if (known := self._known.get(tier.place)) is not None:
            message.uuid, message.driver = known.device, known.driver
        if (seen := surveyed.get(message.uuid)) is not None:
            message.name = seen.name
            message.free_bytes, message.total_bytes = seen.free_bytes, seen.total_bytes
            message.process_bytes.update(seen.process_bytes)
        message.weights_bytes, message.leases = view.charged_bytes, view.leases
        return message

    def _surveyed(self) -> dict[str, Surveyed]:
        try:
            return {device.uuid: device for device in survey(self._cuda)}
        except NotSupportedError:  # a driver that is being replaced, say: what is free is not known then
            return {}
