from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NameRequest(_message.Message):
    __slots__ = ("name", "look")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOOK_FIELD_NUMBER: _ClassVar[int]
    name: str
    look: bool
    def __init__(self, name: _Optional[str] = ..., look: bool = ...) -> None: ...

class UnregisterRequest(_message.Message):
    __slots__ = ("name", "all_versions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    all_versions: bool
    def __init__(self, name: _Optional[str] = ..., all_versions: bool = ...) -> None: ...

class UnregisterReply(_message.Message):
    __slots__ = ("unconfirmed",)
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    unconfirmed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unconfirmed: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class AliasRequest(_message.Message):
    __slots__ = ("name", "version", "back", "remove")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BACK_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    back: bool
    remove: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., back: bool = ..., remove: bool = ...) -> None: ...

class AliasReply(_message.Message):
    __slots__ = ("name", "versions", "aliases", "unconfirmed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    name: str
    versions: _containers.RepeatedScalarFieldContainer[str]
    aliases: _containers.RepeatedCompositeFieldContainer[ModelAlias]
    unconfirmed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ..., aliases: _Optional[_Iterable[_Union[ModelAlias, _Mapping]]] = ..., unconfirmed: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelAlias(_message.Message):
    __slots__ = ("label", "version", "previous")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    label: str
    version: str
    previous: str
    def __init__(self, label: _Optional[str] = ..., version: _Optional[str] = ..., previous: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("manifest_yaml", "origin", "replace", "address")
    MANIFEST_YAML_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    manifest_yaml: str
    origin: str
    replace: bool
    address: str
    def __init__(self, manifest_yaml: _Optional[str] = ..., origin: _Optional[str] = ..., replace: bool = ..., address: _Optional[str] = ...) -> None: ...

class LearnRequest(_message.Message):
    __slots__ = ("name", "key", "inputs", "outputs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    key: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    def __init__(self, name: _Optional[str] = ..., key: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorInfo, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorInfo, _Mapping]]] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("name", "place", "deadline_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    place: str
    deadline_s: float
    def __init__(self, name: _Optional[str] = ..., place: _Optional[str] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("name", "update", "prove", "forget")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    PROVE_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    update: bool
    prove: bool
    forget: bool
    def __init__(self, name: _Optional[str] = ..., update: bool = ..., prove: bool = ..., forget: bool = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("name", "address", "replace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    replace: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., replace: bool = ...) -> None: ...

class Transfer(_message.Message):
    __slots__ = ("address", "done_bytes", "total_bytes", "fetched_bytes", "bytes_per_s", "left_s", "what", "trouble")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    address: str
    done_bytes: int
    total_bytes: int
    fetched_bytes: int
    bytes_per_s: float
    left_s: float
    what: str
    trouble: str
    def __init__(self, address: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., left_s: _Optional[float] = ..., what: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class TransferList(_message.Message):
    __slots__ = ("transfers",)
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    transfers: _containers.RepeatedCompositeFieldContainer[Transfer]
    def __init__(self, transfers: _Optional[_Iterable[_Union[Transfer, _Mapping]]] = ...) -> None: ...

class PruneRequest(_message.Message):
    __slots__ = ("dry_run",)
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    def __init__(self, dry_run: bool = ...) -> None: ...

class PruneReply(_message.Message):
    __slots__ = ("removed", "nbytes", "uploads")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.RepeatedScalarFieldContainer[str]
    nbytes: int
    uploads: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, removed: _Optional[_Iterable[str]] = ..., nbytes: _Optional[int] = ..., uploads: _Optional[_Iterable[str]] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("phase", "done_bytes", "total_bytes", "done", "replica", "fetched_bytes", "bytes_per_s", "left_s", "note")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done_bytes: int
    total_bytes: int
    done: bool
    replica: Replica
    fetched_bytes: int
    bytes_per_s: float
    left_s: float
    note: str
    def __init__(self, phase: _Optional[str] = ..., done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., done: bool = ..., replica: _Optional[_Union[Replica, _Mapping]] = ..., fetched_bytes: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., left_s: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("name", "place", "drain")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    name: str
    place: str
    drain: bool
    def __init__(self, name: _Optional[str] = ..., place: _Optional[str] = ..., drain: bool = ...) -> None: ...

class EvictReply(_message.Message):
    __slots__ = ("freed", "draining")
    FREED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    freed: _containers.RepeatedScalarFieldContainer[str]
    draining: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, freed: _Optional[_Iterable[str]] = ..., draining: _Optional[_Iterable[str]] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("name", "place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    place: str
    def __init__(self, name: _Optional[str] = ..., place: _Optional[str] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("key", "place", "state", "nbytes", "leases", "waiters", "pinned", "keep_left_s", "cost_s", "uses", "idle_s", "digest", "location", "generation", "names", "holders", "story", "device")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    KEEP_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    key: str
    place: str
    state: str
    nbytes: int
    leases: int
    waiters: int
    pinned: bool
    keep_left_s: float
    cost_s: float
    uses: int
    idle_s: float
    digest: str
    location: str
    generation: int
    names: _containers.RepeatedScalarFieldContainer[str]
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    story: _containers.RepeatedScalarFieldContainer[str]
    device: str
    def __init__(self, key: _Optional[str] = ..., place: _Optional[str] = ..., state: _Optional[str] = ..., nbytes: _Optional[int] = ..., leases: _Optional[int] = ..., waiters: _Optional[int] = ..., pinned: bool = ..., keep_left_s: _Optional[float] = ..., cost_s: _Optional[float] = ..., uses: _Optional[int] = ..., idle_s: _Optional[float] = ..., digest: _Optional[str] = ..., location: _Optional[str] = ..., generation: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ..., story: _Optional[_Iterable[str]] = ..., device: _Optional[str] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("session", "pid", "uid", "agent", "leases")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    session: int
    pid: int
    uid: int
    agent: str
    leases: int
    def __init__(self, session: _Optional[int] = ..., pid: _Optional[int] = ..., uid: _Optional[int] = ..., agent: _Optional[str] = ..., leases: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "description", "framework", "format", "key", "replicas", "manifest_json", "image_bytes", "license", "origin", "in_memory", "problem", "inputs", "outputs", "tensors_seen", "lock_json", "reference", "aliases", "versions", "unconfirmed", "files")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_SEEN_FIELD_NUMBER: _ClassVar[int]
    LOCK_JSON_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    description: str
    framework: str
    format: str
    key: str
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    manifest_json: str
    image_bytes: int
    license: str
    origin: str
    in_memory: str
    problem: str
    inputs: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    outputs: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    tensors_seen: bool
    lock_json: str
    reference: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    versions: _containers.RepeatedScalarFieldContainer[str]
    unconfirmed: _containers.RepeatedScalarFieldContainer[str]
    files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., description: _Optional[str] = ..., framework: _Optional[str] = ..., format: _Optional[str] = ..., key: _Optional[str] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., manifest_json: _Optional[str] = ..., image_bytes: _Optional[int] = ..., license: _Optional[str] = ..., origin: _Optional[str] = ..., in_memory: _Optional[str] = ..., problem: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[TensorInfo, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[TensorInfo, _Mapping]]] = ..., tensors_seen: bool = ..., lock_json: _Optional[str] = ..., reference: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., versions: _Optional[_Iterable[str]] = ..., unconfirmed: _Optional[_Iterable[str]] = ..., files: _Optional[_Iterable[str]] = ...) -> None: ...

class TensorInfo(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class ModelList(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class ReplicaList(_message.Message):
    __slots__ = ("replicas", "devices")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("place", "capacity_bytes", "charged_bytes", "replicas", "policy")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHARGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    place: str
    capacity_bytes: int
    charged_bytes: int
    replicas: int
    policy: str
    def __init__(self, place: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., charged_bytes: _Optional[int] = ..., replicas: _Optional[int] = ..., policy: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("place", "uuid", "name", "driver", "keeper_pid", "keeper_awake", "weights_bytes", "capacity_bytes", "free_bytes", "total_bytes", "leases", "trouble", "reserve_bytes", "process_bytes")
    class ProcessBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    PLACE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    KEEPER_PID_FIELD_NUMBER: _ClassVar[int]
    KEEPER_AWAKE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_BYTES_FIELD_NUMBER: _ClassVar[int]
    place: str
    uuid: str
    name: str
    driver: str
    keeper_pid: int
    keeper_awake: bool
    weights_bytes: int
    capacity_bytes: int
    free_bytes: int
    total_bytes: int
    leases: int
    trouble: str
    reserve_bytes: int
    process_bytes: _containers.ScalarMap[int, int]
    def __init__(self, place: _Optional[str] = ..., uuid: _Optional[str] = ..., name: _Optional[str] = ..., driver: _Optional[str] = ..., keeper_pid: _Optional[int] = ..., keeper_awake: bool = ..., weights_bytes: _Optional[int] = ..., capacity_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., leases: _Optional[int] = ..., trouble: _Optional[str] = ..., reserve_bytes: _Optional[int] = ..., process_bytes: _Optional[_Mapping[int, int]] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("counters", "tiers", "sessions", "leases", "uptime_s", "devices", "gpu_off", "unverified_bytes", "max_files", "max_sessions", "max_images", "images", "endpoint", "endpoint_off", "tenants")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    GPU_OFF_FIELD_NUMBER: _ClassVar[int]
    UNVERIFIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_FILES_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGES_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_OFF_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    sessions: int
    leases: int
    uptime_s: float
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    gpu_off: str
    unverified_bytes: int
    max_files: int
    max_sessions: int
    max_images: int
    images: int
    endpoint: str
    endpoint_off: str
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    def __init__(self, counters: _Optional[_Mapping[str, int]] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., uptime_s: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., gpu_off: _Optional[str] = ..., unverified_bytes: _Optional[int] = ..., max_files: _Optional[int] = ..., max_sessions: _Optional[int] = ..., max_images: _Optional[int] = ..., images: _Optional[int] = ..., endpoint: _Optional[str] = ..., endpoint_off: _Optional[str] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("name", "sessions", "leases", "leased_bytes", "resident_bytes", "most_sessions", "most_leases", "most_leased_bytes", "most_resident_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOST_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MOST_LEASES_FIELD_NUMBER: _ClassVar[int]
    MOST_LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOST_RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    sessions: int
    leases: int
    leased_bytes: int
    resident_bytes: int
    most_sessions: int
    most_leases: int
    most_leased_bytes: int
    most_resident_bytes: int
    def __init__(self, name: _Optional[str] = ..., sessions: _Optional[int] = ..., leases: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., most_sessions: _Optional[int] = ..., most_leases: _Optional[int] = ..., most_leased_bytes: _Optional[int] = ..., most_resident_bytes: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("key", "place", "old", "new", "why", "generation", "names")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    key: str
    place: str
    old: str
    new: str
    why: str
    generation: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., place: _Optional[str] = ..., old: _Optional[str] = ..., new: _Optional[str] = ..., why: _Optional[str] = ..., generation: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchModelsRequest(_message.Message):
    __slots__ = ("watcher",)
    WATCHER_FIELD_NUMBER: _ClassVar[int]
    watcher: str
    def __init__(self, watcher: _Optional[str] = ...) -> None: ...

class ConfirmModelsRequest(_message.Message):
    __slots__ = ("watch", "sequence")
    WATCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    watch: int
    sequence: int
    def __init__(self, watch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class ModelChange(_message.Message):
    __slots__ = ("names", "all", "outside", "watch", "sequence")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    outside: bool
    watch: int
    sequence: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., all: bool = ..., outside: bool = ..., watch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("verify",)
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    verify: bool
    def __init__(self, verify: bool = ...) -> None: ...

class CheckReply(_message.Message):
    __slots__ = ("findings", "replicas", "verified_bytes", "verified_by")
    class VerifiedByEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_BY_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedScalarFieldContainer[str]
    replicas: int
    verified_bytes: int
    verified_by: _containers.ScalarMap[str, int]
    def __init__(self, findings: _Optional[_Iterable[str]] = ..., replicas: _Optional[int] = ..., verified_bytes: _Optional[int] = ..., verified_by: _Optional[_Mapping[str, int]] = ...) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("status", "version", "pid", "boot", "protocol", "state_dir", "waits_for")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STATE_DIR_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    status: str
    version: str
    pid: int
    boot: str
    protocol: int
    state_dir: str
    waits_for: str
    def __init__(self, status: _Optional[str] = ..., version: _Optional[str] = ..., pid: _Optional[int] = ..., boot: _Optional[str] = ..., protocol: _Optional[int] = ..., state_dir: _Optional[str] = ..., waits_for: _Optional[str] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("purge",)
    PURGE_FIELD_NUMBER: _ClassVar[int]
    purge: bool
    def __init__(self, purge: bool = ...) -> None: ...
