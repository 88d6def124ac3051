"""Device spares: predictors that hold a context of a device and have run a model there, and wait without weights.

A context does not survive a fork, so templates have none, and the first run of a process loads libraries and kernels.
A *device spare* is forked ahead of a request. It opens weights that lie on the device, makes the predictor, rehearses,
and gives all of it up but the context and what was loaded. A request for a model on that device takes the spare, which
only opens the weights, builds and runs.

Models of one environment share spares that have run no code of a user: those of ONNX and of Hugging Face folders, and
spares of a class that is not loaded ahead. A model whose load runs such code, also by the module that its artifact
names, has spares of its own, which no other model gets, nor it itself once the code is another.

A spare takes hundreds of megabytes of the device. Weights and the work of predictors come first: spares are made of
what neither the tier's capacity nor its reserve takes, and are given up as soon as that is short.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import TrimsError
from trims.core.place import TierKind
from trims_predictors.deployment.deployment import is_device, warm_message
from trims_predictors.warm.spares import Spare, Spares, remember

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from trims.control import Device
    from trims_predictors.children.launcher import Environment
    from trims_predictors.children.worker_process import PredictorProcess
    from trims_predictors.deployment.deployment import Deployment, Settings
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.warm.spares import Rehearsals
    from trims_predictors.warm.warm_pool import WarmPool

_log = logging.getLogger(__name__)
#: How a predictor was had that has been such a spare.
DEVICE_SPARE = "device_spare"
#: Bytes of a process on a device, until one was counted: an H200's context takes 549 MB, with torch's libraries 647.
ASSUMED_BYTES = 650 << 20
#: Seconds for a spare to say that its context still works.
_CHECK_S = 1.0
#: Seconds between two looks at what is free on devices.
_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class _Kind:
    """Kind of spares: what they are warmed for.

    Attributes:
        place: The device, as `gpu:N`.
        owner: The version whose user's code they have run, by its key of all places; None for no such code.
    """

    environment: Environment
    place: str
    owner: DeploymentKey | None


@dataclass(frozen=True, slots=True)
class _Latest:
    """The model of a kind that was loaded last: its image is what a spare opens, its process shows what one takes."""

    deployment: Deployment
    image: Sequence[str]
    pid: int


@dataclass(eq=False)
class _DeviceSpare(Spare):
    kind: _Kind
    image: Sequence[str]
    nbytes: int = 0


class DeviceSpares(Spares[_DeviceSpare]):
    """Has processes wait on devices.

    Args:
        warm_pool: Starts their processes, and counts their memory on the host.
        rehearsals: Inputs that predictors got last.
        images: Deployment -> key and place of the image that its predictors have opened.

    Attributes:
        devices: Returns the devices as they are now; None while nothing says it, and then there are no spares.
    """

    def __init__(
        self,
        warm_pool: WarmPool,
        settings: Settings,
        rehearsals: Rehearsals,
        images: Mapping[DeploymentKey, Sequence[str]],
    ) -> None:
        #: In the order of their last loads.
        self._latest: dict[_Kind, _Latest] = {}
        super().__init__(warm_pool, settings, _LOOK_S, self._latest)
        self._rehearsals = rehearsals
        self._images = images
        self.devices: Callable[[], Awaitable[Sequence[Device]]] | None = None
        #: Kinds that shall have a spare, those of the latest loads first.
        self._wanted: list[_Kind] = []
        #: Bytes of a process on a device, by framework.
        self._counted: dict[str, int] = {}

    # -- requests --------------------------------------------------------------------------------------------------

    async def take(self, deployment: Deployment) -> PredictorProcess | None:
        """Return a process with a working context where the model's weights lie; None if none waits."""
        place = self.place_of(deployment)
        while place and (spare := self._next(deployment, place)) is not None:
            self._waiting.remove(spare)
            process = self._released(spare)
            if process is None:
                continue
            try:
                await process.ask({"op": "check"}, deadline_s=_CHECK_S)
            except TrimsError as error:
                process.kill(f"its context of {place} is of no use any more: {error}")
                continue
            process.how = DEVICE_SPARE
            return process
        return None

    def place_of(self, deployment: Deployment) -> str:
        """Return the device that a model is opened on; `gpu` for one that is not known yet, empty for none."""
        image = self._images.get(deployment.key)
        found = (deployment.place or deployment.home) if image is None else image[1]
        return found if is_device(found) else ""

    def _next(self, deployment: Deployment, place: str) -> _DeviceSpare | None:
        """Return the spare that suits a model best: its own, else one that has loaded no user's code."""
        fitting = [
            each
            for each in self._waiting
            if each.kind.environment == deployment.environment
            and place in (each.kind.place, TierKind.GPU.value)
            and each.kind.owner in (None, deployment.key.of_model())
        ]
        return max(fitting, key=lambda each: each.kind.owner is not None, default=None)

    def loaded(self, deployment: Deployment, process: PredictorProcess) -> None:
        """A predictor has loaded a model, perhaps on a device: the next one of its kind finds a spare."""
        image = self._images.get(deployment.key, ("", ""))
        if not self._settings.device_spares or not is_device(image[1]):
            return
        kind = _kind_of(deployment, image[1])
        remember(self._latest, kind, _Latest(deployment, image, process.pid))
        self._failed = {each for each in self._failed if each in self._latest and each != kind}
        self._wanted = self._chosen()
        if deployment.environment.framework not in self._counted and self.devices is not None:
            self._background.start(self._devices())  # while the process is there, which shows what one takes

    def retire(self, key: DeploymentKey) -> None:
        """End the spares that have code of a model which was changed, unloaded or removed."""
        owner = key.of_model()  # spares without one serve more models than this
        for kind in [each for each in self._latest if each.owner == owner]:
            del self._latest[kind]
            self._failed.discard(kind)
        self._wanted = self._chosen()
        for spare in [each for each in self._waiting if each.kind.owner == owner]:
            self._drop(spare, "its model was changed or unloaded")

    async def make_way(self, place: str | None = None) -> bool:
        """End the spare that has waited longest on a device, whose memory is needed. False if there is none.

        Args:
            place: The device; `gpu` or None for any.
        """
        for spare in self._waiting:
            if place in (None, TierKind.GPU.value, spare.kind.place):
                self._drop(spare, "memory of its device is needed")
                await asyncio.shield(spare.process.ended)
                return True
        return False

    def report(self) -> list[dict[str, Any]]:
        """Return each spare: its place, framework, process, its bytes on the device, and the model that it has run."""
        return [
            {
                "place": spare.kind.place,
                "framework": spare.kind.environment.framework,
                "pid": spare.process.pid,
                "bytes": spare.nbytes,
                "model": spare.deployment.subject,
            }
            for spare in self._waiting
        ]

    # -- making them -----------------------------------------------------------------------------------------------

    def _looks_again(self) -> bool:
        return self.devices is not None and bool(self._waiting or self._missing())

    async def _choose(self) -> _DeviceSpare | None:
        if not self._looks_again():
            return None
        while (devices := await self._devices()) is not None:
            spare, why = self._one_too_many(devices)
            if spare is None:
                break
            self._drop(spare, why)
            await asyncio.shield(spare.process.ended)
        kind = next((each for each in self._missing() if self._has_room(each, devices or {})), None)
        if kind is None:
            return None
        latest, identities = self._latest[kind], self._warm_pool.identities()
        called = f"spare on {kind.place} for {latest.deployment.subject}"
        return _DeviceSpare(kind, called, latest.deployment, identities, kind, latest.image)

    async def _devices(self) -> Mapping[str, Device] | None:
        """Return the devices by place, and note what processes have of them; None if they cannot be seen now."""
        assert self.devices is not None, "its callers look first"
        try:
            devices = {device.place: device for device in await self.devices()}
        except TrimsError as error:  # the daemon is away, and spares wait for the next one
            _log.debug("devices cannot be seen: %s", error)
            return None
        self._count(devices)
        return devices

    def _count(self, devices: Mapping[str, Device]) -> None:
        """Note what processes have of their devices, where the driver says it."""
        seen = {place: device.process_bytes for place, device in devices.items()}
        for kind, latest in self._latest.items():
            if latest.pid in seen.get(kind.place, ()):
                self._counted[kind.environment.framework] = seen[kind.place][latest.pid]
        for spare in self._waiting:
            spare.nbytes = seen.get(spare.kind.place, {}).get(spare.process.pid, self._bytes_of(spare.kind))

    def _bytes_of(self, kind: _Kind) -> int:
        return self._counted.get(kind.environment.framework, ASSUMED_BYTES)

    def _one_too_many(self, devices: Mapping[str, Device]) -> tuple[_DeviceSpare | None, str]:
        """Return a spare that must end, and why: the one that has waited longest where room is short."""
        for spare in self._waiting:
            device = devices.get(spare.kind.place)
            if device is None or device.trouble:
                return spare, "its device is lost"
            if _room_bytes(device) < 0:
                return spare, "memory of its device is needed"
            if spare.kind not in self._wanted:
                return spare, "models of other kinds were used since"
        return None, ""

    def _chosen(self) -> list[_Kind]:
        """Return the kinds that shall have a spare: on each device those of the latest loads, stated ones first."""
        found: dict[str, list[_Kind]] = {}
        latest_first = list(self._latest)[::-1]
        for kind in sorted(latest_first, key=lambda each: not self._latest[each].deployment.hot):
            found.setdefault(kind.place, []).append(kind)
        return [kind for kinds in found.values() for kind in kinds[: self._settings.device_spares]]

    def _missing(self) -> list[_Kind]:
        """Return the kinds that shall have a spare and have none."""
        there = {spare.kind for spare in self._waiting} | self._failed
        return [kind for kind in self._wanted if kind not in there]

    def _has_room(self, kind: _Kind, devices: Mapping[str, Device]) -> bool:
        device = devices.get(kind.place)
        fits = device is not None and not device.trouble and _room_bytes(device) >= self._bytes_of(kind)
        return fits and self._warm_pool.has_room_for_hot(kind.environment)

    async def _prepare(self, spare: _DeviceSpare) -> bool:
        deployment, kind, settings = spare.deployment, spare.kind, self._settings
        given = self._rehearsals.of(deployment.key)
        message = warm_message(deployment, spare.image, given, settings.most_predictor_bytes)
        answer = await spare.process.ask(message, deadline_s=settings.load_deadline_s)
        if not answer["free"]:
            self._failed.add(kind)
            _log.warning(
                "%s has no spares on %s: its code keeps weights after `unload`, and a spare would hold their lease",
                deployment.subject, kind.place,
            )  # fmt: skip
        if not answer["free"] or spare.process.dying or kind not in self._latest:
            spare.process.kill("it is not needed any more")
            return False
        spare.nbytes = self._bytes_of(kind)
        self._warm_pool.teach(kind.environment, [*deployment.preload, *answer["imported"]])
        return True


def _kind_of(deployment: Deployment, place: str) -> _Kind:
    shared = not deployment.is_loaded_ahead or not (deployment.runs_own_code or deployment.variables)
    return _Kind(deployment.environment, place, None if shared else deployment.key.of_model())


def _room_bytes(device: Device) -> int:
    """Return what spares may take of a device; negative if weights or runs lack what is theirs."""
    if device.free_bytes is None:
        return 0
    return device.free_bytes - max(0, device.capacity_bytes - device.weights_bytes) - device.reserve_bytes
