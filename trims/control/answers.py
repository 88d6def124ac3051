"""Answers of a daemon to an operator, as plain frozen values. Times are in seconds, sizes in bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from trims.core.errors import ManifestError

if TYPE_CHECKING:
    from google.protobuf.message import Message

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that holds leases of a replica.

    Attributes:
        pid: Process of the session; 0 if it is gone already.
    """

    session: int
    pid: int
    uid: int
    agent: str
    leases: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One image at one place.

    Attributes:
        place: `cpu`, `disk` or `gpu:N`.
        state: `queued`, `filling`, `sealed`, `draining` or `freeing`.
        keep_left_s: Seconds until its keep-alive ends; None: it stays until its room is needed.
        idle_s: Seconds since its last use; 0 while it is held.
        digest: blake3 of the image; empty while it is not sealed.
        location: Where its bytes are: name of a segment, path, or image of a keeper.
        generation: Counts its incarnations.
        names: All names that stand for the image.
        story: The steps it went through; only in `Model.replicas` of `show`.
        device: UUID of the GPU it lies on; empty on the host.
    """

    key: str
    place: str
    state: str
    nbytes: int
    leases: int
    waiters: int
    pinned: bool
    keep_left_s: float | None
    cost_s: float
    uses: int
    idle_s: float
    digest: str
    location: str
    generation: int
    names: tuple[str, ...]
    holders: tuple[Holder, ...]
    story: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model.

    Attributes:
        dtype: A name of the Open Inference Protocol.
        shape: Lengths of its dimensions; -1 for any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A registered model.

    Attributes:
        format: Format of the artifact; empty until it was looked into.
        key: Image key; empty until the model was looked into.
        replicas: Where its image lies, fastest place first.
        image_bytes: Length of its image; 0 until it was converted.
        origin: Folder that the relative paths of its manifest begin at; empty if they are absolute.
        in_memory: `yes: ...` or `no: ...`: whether its image is in shared memory, and why it is or is not.
        problem: Why its manifest cannot be read, in a list of all models; all but the name is empty then.
        inputs: Inputs as the graph states them, else as the first run had them; empty until they are known, and in
            lists.
        outputs: Outputs, known in the same ways.
        tensors_seen: Inputs and outputs are those of a run: others may be right as well.
        lock_json: What `trims.lock` says of its address, as it holds on any machine; empty without, and in lists.
        files: Known files of the artifact, the main one first; empty until it was looked into, and in lists.
        reference: What opens this version and no other; empty from a daemon that has one version of each model.
        aliases: What else leads to this version: the plain name, or `name@label`.
        versions: All of the model, in the order in which they were registered.
        unconfirmed: Watchers that did not confirm a model that was added: see `Aliases`.
    """

    name: str
    version: str
    description: str
    framework: str
    format: str
    key: str
    replicas: tuple[Replica, ...]
    manifest_json: str
    image_bytes: int
    license: str
    origin: str
    in_memory: str
    problem: str = ""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    tensors_seen: bool = False
    files: tuple[str, ...] = ()
    lock_json: str = ""
    reference: str = ""
    aliases: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()

    @property
    def opened_as(self) -> str:
        """Return what opens this version and no other."""
        return self.reference or self.name

    @property
    def is_default(self) -> bool:
        """Return whether the plain name leads to this version."""
        return not self.versions or self.name in self.aliases

    @property
    def manifest(self) -> dict[str, Any]:
        """Return its manifest, read. Raises ManifestError if that could not be."""
        if self.problem:
            raise ManifestError(self.problem)
        found: dict[str, Any] = json.loads(self.manifest_json)
        return found


@dataclass(frozen=True, slots=True)
class ModelAlias:
    """Target of an alias.

    Attributes:
        label: Label of `name@label`; empty for the plain name.
        previous: What it led to before; empty if that is gone, or it never was.
    """

    label: str
    version: str
    previous: str


@dataclass(frozen=True, slots=True)
class Aliases:
    """Versions and aliases of a model.

    Attributes:
        versions: Versions, in the order in which they were registered.
        aliases: The plain name first.
        unconfirmed: Watchers of models, such as endpoints, that did not confirm a switch within two seconds, or never
            confirm any: requests that reach them may still get what the name led to before.
    """

    name: str
    versions: tuple[str, ...]
    aliases: tuple[ModelAlias, ...]
    unconfirmed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier, and how full it is."""

    place: str
    capacity_bytes: int
    charged_bytes: int
    replicas: int
    policy: str


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU with a tier, and the keeper that owns its memory.

    Attributes:
        uuid: Empty until its keeper has said it.
        driver: How its memory is shared: `vmm` or `ipc`.
        keeper_pid: 0 if its keeper is gone.
        keeper_awake: The keeper holds a CUDA context, which takes device memory.
        free_bytes: Free memory of the whole device; None if the driver does not say.
        total_bytes: Memory of the whole device; None if the driver does not say.
        trouble: Why the keeper does not answer; empty if it does.
        reserve_bytes: Bytes that are left free beside the capacity, for the work of predictors.
        process_bytes: Process id -> its bytes on the device; without processes of which the driver does not say it.
    """

    place: str
    uuid: str
    name: str
    driver: str
    keeper_pid: int
    keeper_awake: bool
    weights_bytes: int
    capacity_bytes: int
    free_bytes: int | None
    total_bytes: int | None
    leases: int
    trouble: str
    reserve_bytes: int = 0
    process_bytes: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Health:
    """Identity and state of the daemon that answers.

    Attributes:
        status: `serving`, `draining` or `ending`.
        boot: Another one in each life of the daemon.
        protocol: Version of the attach door's protocol.
        waits_for: What must be done before the daemon ends; empty unless it is ending.
    """

    status: str
    version: str
    pid: int
    boot: str
    protocol: int
    state_dir: str
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Usage of one tenant, and its limits; None where there is no limit.

    Attributes:
        sessions: Clients that are connected.
        leases: Leases of these.
        leased_bytes: Bytes in memory that they lease.
        resident_bytes: Bytes in memory that were brought there for it.
    """

    name: str
    sessions: int
    leases: int
    leased_bytes: int
    resident_bytes: int
    most_sessions: int | None
    most_leases: int | None
    most_leased_bytes: int | None
    most_resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters and sums.

    Attributes:
        counters: What happened how often since the daemon's start.
        gpu_off: Why there is no tier for GPUs; empty if there is one.
        unverified_bytes: Left by an earlier daemon, still to be read and hashed.
        max_files: Files that the daemon may have open.
        endpoint: URL of the inference endpoint that the daemon has started; empty if it does not answer.
        endpoint_off: Why it does not.
    """

    counters: dict[str, int]
    tiers: tuple[Tier, ...]
    sessions: int
    leases: int
    uptime_s: float
    devices: tuple[Device, ...]
    gpu_off: str
    unverified_bytes: int
    max_files: int
    max_sessions: int
    max_images: int
    images: int
    endpoint: str = ""
    endpoint_off: str = ""
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a daemon, as `trims status` shows it."""

    health: Health
    stats: Stats


@dataclass(frozen=True, slots=True)
class Residents:
    """Residents as `trims ps` shows them: everything in memory and on disk, and the GPUs."""

    replicas: tuple[Replica, ...]
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of a load.

    Attributes:
        phase: `resolving`, `fetching`, `queued`, `filling`, `pushing` or `done`.
        replica: Replica, with the phase `done`.
        fetched_bytes: Part of `done_bytes` that comes over a network, now.
        bytes_per_s: Rate of those.
        left_s: Seconds until the end at this rate; None if that is unknown.
        note: What people should know, such as what was found already.
    """

    phase: str
    done_bytes: int
    total_bytes: int
    done: bool
    replica: Replica | None
    fetched_bytes: int = 0
    bytes_per_s: float = 0.0
    left_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer that runs, or an address whose files are refused.

    Attributes:
        what: `look`, `fetch`, `image` or `push`; `damaged` for files that are not what their source states.
        done_bytes: There by now.
        total_bytes: Bytes in all; 0 while that is unknown.
        fetched_bytes: Over the network, by this transfer.
        bytes_per_s: Lately.
        left_s: Seconds until the end at this rate; None if that is unknown.
        trouble: Why nothing comes at the moment, or what is damaged; empty while bytes come.
    """

    address: str
    done_bytes: int
    total_bytes: int
    fetched_bytes: int
    bytes_per_s: float
    left_s: float | None
    what: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """Result of a prune.

    Attributes:
        removed: Folders of downloads.
        nbytes: What they took on the disk.
        uploads: Addresses of pushes that were killed, whose parts the store has given up.
    """

    removed: tuple[str, ...]
    nbytes: int
    uploads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evicted:
    """Result of an eviction.

    Attributes:
        freed: Places where the model lies no longer.
        draining: Places from which it goes when its last lease closes.
    """

    freed: tuple[str, ...]
    draining: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A replica went from one state to another."""

    key: str
    place: str
    old: str
    new: str
    why: str
    generation: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelChange:
    """Models changed: registered, replaced, removed, with another image, or with other inputs and outputs.

    Attributes:
        names: Names of the models that changed.
        all: Too many changed to name them.
        outside: Manifests may also change where the daemon does not notice it.
        watch: Number of the watch; 0 from an older daemon, which takes no confirmation.
        sequence: Number of the last change up to here.
    """

    names: tuple[str, ...]
    all: bool
    outside: bool
    watch: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a check.

    Attributes:
        findings: A sentence for each fault; none is good news.
        verified_bytes: How many bytes were read and verified.
        verified_by: Counts by the way of verifying: `blake3` on the host; or, for what a device sums up itself,
            `products` or `plain`, or `host` if the host summed the same bytes up again. Empty from an older daemon.
    """

    findings: tuple[str, ...]
    replicas: int
    verified_bytes: int
    verified_by: dict[str, int]


def read(kind: type[_Answer], message: Message) -> _Answer:
    """Return a value of that class from the message with the fields of the same names."""
    return kind(**{name: _value(message, name, hint) for name, hint in _hints(kind).items()})  # type: ignore[arg-type]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(message: Message, name: str, hint: Any) -> Any:
    if NoneType in get_args(hint):
        if not message.HasField(name):
            return None
        hint = next(each for each in get_args(hint) if each is not NoneType)
    value = getattr(message, name)
    if isinstance(hint, type) and is_dataclass(hint):
        return read(hint, value)
    if get_origin(hint) is tuple:
        item: type[Any] = get_args(hint)[0]
        return tuple(read(item, each) for each in value) if is_dataclass(item) else tuple(value)
    return dict(value) if get_origin(hint) is dict else value
