"""The daemon's settings: one frozen object, built at the edge from flags > environment > file > defaults.

Only `main` reads the environment. `trims serve --help` and `docs/operations.md` list the same fields.
"""

from __future__ import annotations

import difflib
import math
import os
import shlex
import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trims.core.errors import ConfigError
from trims.core.units import parse_bytes
from trims.documents import load_yaml
from trims.environments.environment_store import default_folder
from trims.environments.interpreters import parse_interpreters
from trims.logs import FORMS, LEVELS
from trims.manifests.manifest import TRUSTS
from trims.memory.available import allowed_bytes
from trims.memory.shm import SHM_FOLDER
from trims.plugins import Choice
from trims.sources.http.hosts import HostPolicy
from trims.tiers.transfer import default_threads
from trims.trace.levels import Level
from trims.wire.address import default_runtime_dir, why_too_long
from trims.wire.keepalive import PING_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


CPU_MEMORIES = ("shm", "memfd")
ENDPOINTS = ("auto", "yes", "no")
#: Names of our own parts, which a plugin's may replace.
SQLITE = Choice("sqlite")
#: Settings of earlier releases, with what to do.
_GONE = dict.fromkeys(("cpu_tier", "disk_tier"), "tiers come from trims alone now; remove the setting")
#: When files of a hub's cache are proven.
PROOFS = ("behind", "first")
_CHOICES = {
    "trust": TRUSTS,
    "prove": PROOFS,
    "cpu_memory": CPU_MEMORIES,
    "gpu_driver": ("auto", "vmm", "ipc"),
    "endpoint": ENDPOINTS,
    "log_level": LEVELS,
    "log_format": FORMS,
}


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one daemon.

    Attributes:
        runtime_dir: Sockets and lock; mode 0700, of this user.
        state_dir: Catalog, disk images, built artifacts.
        cpu_capacity_bytes: Images in shared memory. Default: half of what memory and control groups allow, or of
            /dev/shm if that is less and memory is `shm`.
        disk_capacity_bytes: Images on disk. Default: half of what is free or held by images already, at most
            256 GiB.
        registry: Where manifests are kept: `sqlite`, `sqlite:/path/file.db`, or a plugin's with its argument.
        cpu_policy: Eviction policy of the cpu tier (lru, lfu, fifo, gdsf or a plugin's).
        disk_policy: Eviction policy of the disk tier.
        keep_alive_s: Seconds an idle replica stays in memory: None until the room is needed (lazy), 0 not at all
            (eager).
        cpu_memory: Kind of shared memory. `shm` has names: a restarted daemon finds it again, and a process of the
            same user could change it. `memfd` is sealed against every process, root in a container included, and goes
            with the daemon and its last reader: the next daemon starts empty.
        segment_dir: The tmpfs shared memory lies in; only with `shm`.
        large_pages: Have the kernel use large pages there: first touches, loads and evictions are several times faster.
        gpus: UUIDs of the devices to keep models on, with commas between; `auto` for all there are, `none` for none.
        gpu_driver: How their memory is shared: `vmm`, `ipc`, or `auto` for the better one the device has.
        gpu_share: Part of a device's free memory that its tier may use.
        gpu_reserve_bytes: Left free besides, for activations and contexts of predictors.
        gpu_rest_s: Seconds without a copy after which a device's mover ends, and its context with it. A keeper that
            runs already keeps what it was started with.
        gpu_verify: Check each image that was copied to a device there, against the checksum that it states. A keeper
            that runs already keeps what it was started with.
        gpu_policy: Eviction policy of the gpu tiers.
        cuda: `driver`, or a fake for machines without a device.
        environments: Framework -> Python interpreter, for frameworks that need an environment of their own.
        environments_dir: Where `trims env create` makes environments.
        converter_memory_bytes: Private memory of a converter child.
        converter_time_s: Wall seconds of a converter child.
        workers: Fills that run at once.
        behind_bytes_per_s: Bandwidth of hashing and copying that no request waits for; 0 for no limit.
        download_capacity_bytes: Files fetched from addresses, in the state folder. Default: as for images on disk.
        fetch_connections: Connections of all transfers from addresses together.
        fetch_bytes_per_s: Bandwidth of all transfers from addresses together; 0 for no limit.
        fetch_patience_s: Seconds without a byte after which a transfer gives up; what has come is kept.
        fetch_headers: File with headers, such as tokens, for servers of `https:` addresses: lines `HOST NAME: VALUE`.
        allow_hosts: Hosts and networks, with commas between, that redirects and manifests from elsewhere may lead to
            although they are private; link-local ones only if they are listed.
        socket_mode: Permissions of the attach socket. 0600: this user only.
        tenants: The tenants file: who shares the machine, and how much each may hold. None: one user, without limits.
        max_sessions: Clients that may be connected at once; fewer if the limit of open files is low.
        grpc_ping_s: Least seconds between two keepalive pings of a client over gRPC, at the control door and at the
            endpoint beside the daemon; 0 for any.
        template_capacity_bytes: Memory of the templates that `trims exec` starts programs from. Default: an eighth of
            what memory and control groups allow.
        loaders: Whether frameworks of programs that `trims exec` starts load through the store.
        always_hash: Read every artifact at each look instead of comparing its times: for artifacts that programs write
            through shared mappings, which no time shows.
        trust: `identity` serves an artifact from its own files before it was read, known by length and times until it
            is hashed; `verified` hashes it first.
        prove: When files are hashed that lay in a hub's cache before trims used them: `behind` their first readers, or
            `first`. What trims fetches itself is always hashed as it comes.
        endpoint: Whether `trims serve` also starts the inference endpoint. `auto`: if its packages are installed;
            `yes`: or the daemon does not start.
        endpoint_flags: Flags for it, as `trims endpoint` takes them.
        trace: Record every request as a trace, and not only those whose clients ask for it.
        verify: Check every invariant after every event. Slow; for tests.
        log_level: debug, info, warning or error; of the endpoint and of keepers, too.
        log_format: `text`, or `json` for one object a line.
    """

    runtime_dir: Path
    state_dir: Path
    cpu_capacity_bytes: int
    disk_capacity_bytes: int
    registry: Choice = SQLITE
    cpu_policy: str = "lru"
    disk_policy: str = "lru"
    keep_alive_s: float | None = None
    cpu_memory: str = "shm"
    segment_dir: Path = SHM_FOLDER
    large_pages: bool = True
    gpus: str = "auto"
    gpu_driver: str = "auto"
    gpu_share: float = 0.9
    gpu_reserve_bytes: int = 1 << 30
    gpu_rest_s: float = 10.0
    gpu_verify: bool = True
    gpu_policy: str = "lru"
    cuda: str = "driver"
    environments: Mapping[str, Path] = field(default_factory=dict)
    environments_dir: Path = field(default_factory=default_folder)
    converter_memory_bytes: int = 16 << 30
    converter_time_s: float = 600.0
    converters: int = 2
    workers: int = 2
    behind_bytes_per_s: int = 512 << 20
    download_capacity_bytes: int = 256 << 30
    fetch_connections: int = 8
    fetch_bytes_per_s: int = 0
    fetch_patience_s: float = 120.0
    fetch_headers: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    socket_mode: int = 0o600
    tenants: Path | None = None
    max_sessions: int = 4096
    grpc_ping_s: float = PING_S
    template_capacity_bytes: int = field(default_factory=lambda: allowed_bytes() // 8)
    loaders: bool = True
    always_hash: bool = False
    trust: str = "identity"
    prove: str = "behind"
    endpoint: str = "auto"
    endpoint_flags: tuple[str, ...] = ()
    trace: bool = False
    trace_level: Level = Level.MODEL
    verify: bool = False
    log_level: str = "info"
    log_format: str = "text"

    def validate(self) -> None:
        """Check ranges. Raises ConfigError naming the setting."""
        for name in (
            "cpu_capacity_bytes",
            "disk_capacity_bytes",
            "converter_memory_bytes",
            "workers",
            "converters",
            "max_sessions",
            "template_capacity_bytes",
            "fetch_connections",
            "download_capacity_bytes",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} {getattr(self, name)!r} is none of {', '.join(known)}")
        if self.cpu_memory != "shm" and self.segment_dir != SHM_FOLDER:
            raise ConfigError(f"segment_dir {self.segment_dir} has no meaning with cpu_memory {self.cpu_memory}")
        if not 0 < self.gpu_share <= 1:
            raise ConfigError(f"gpu_share must be above 0 and at most 1, not {self.gpu_share}")
        if refusal := why_too_long(self.runtime_dir):
            raise ConfigError(f"runtime_dir: {refusal}")


def build_config(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, file: Path | None = None
) -> Config:
    """Put the settings together.

    Args:
        flags: Field name -> value as given; None counts as not given.
        environment: `TRIMS_<FIELD>` variables; the process's own by default.
        file: YAML with the same field names; a capacity may be written `4GiB`.

    Raises:
        ConfigError: An unknown field, or a value that does not parse; the message names both.
    """
    env = os.environ if environment is None else environment
    given: dict[str, Any] = _read_file(file) if file else {}
    for name in _PARSERS:
        if (text := env.get(f"TRIMS_{name.upper()}")) is not None:
            given[name] = text
    given.update({name: value for name, value in flags.items() if value is not None})
    unknown = set(given) - set(_PARSERS)
    if unknown:
        name = sorted(unknown)[0]
        if name in _GONE:
            raise ConfigError(f"setting {name}: {_GONE[name]}")
        near = difflib.get_close_matches(name, _PARSERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown setting {name!r}; {hint}known are {', '.join(sorted(_PARSERS))}")
    values = {name: _parse(name, value) for name, value in given.items()}
    config = Config(**{**_defaults(env, values), **values})
    config.validate()
    return config


#: Variables of trims that are no settings of the daemon.
_OTHER_VARIABLES = (
    "TRIMS_REQUIRE",
    "TRIMS_MXNET_PYTHON",
    "TRIMS_CLIENTS_PYTHON",
    "TRIMS_BENCH_LINEARS",
    "TRIMS_GPU_TESTS_FD",
    "TRIMS_TRACE_DIR",
    "TRIMS_EVALUATIONS",
    "TRIMS_MODEL_VARIABLES",
    "TRIMS_TRANSPARENT",
    "TRIMS_TRANSPARENT_REPORT",
)


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each `TRIMS_` variable that no part of trims reads: it may be misspelt."""
    known = [f"TRIMS_{name.upper()}" for name in _PARSERS]
    found = os.environ if environment is None else environment
    sentences = []
    for name in sorted(found):
        if name.startswith("TRIMS_") and name not in known and name not in _OTHER_VARIABLES:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"settings are {', '.join(known)}"
            sentences.append(f"the variable {name} has no meaning to trims; {hint}")
    return sentences


def _read_file(path: Path) -> dict[str, Any]:
    try:
        raw = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ConfigError(f"{path} must be a mapping of settings")
    return raw


def _parse(name: str, value: Any) -> Any:
    try:
        return _PARSERS[name](value)
    except (ValueError, TypeError, ConfigError) as error:
        raise ConfigError(f"setting {name}: {value!r} cannot be used: {error}") from error


def _keep_alive(value: Any) -> float | None:
    if value in ("lazy", "forever"):
        return None
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError("must be 'lazy' or seconds from 0 up")
    return seconds


def _limit_s(value: Any) -> float:
    seconds = float(value)
    if not 0 < seconds < math.inf:
        raise ValueError("must be seconds above 0")
    return seconds


def _pause_s(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError("must be seconds from 0 up")
    return seconds


def _mode(value: Any) -> int:
    mode = value if isinstance(value, int) else int(str(value), 8)
    if not 0 <= mode <= 0o777:
        raise ValueError("must be permissions in octal, such as 600")
    return mode


def _flag(value: Any) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
        "": False,
    }
    if str(value).lower() not in words:
        raise ValueError("must be yes or no")
    return words[str(value).lower()]


def _endpoint(value: Any) -> str:
    """Return the setting as text; `no` in YAML is a boolean."""
    return {"true": "yes", "false": "no"}.get(str(value).lower(), str(value).lower())


def _words(value: Any) -> tuple[str, ...]:
    """Return the words of a line as a shell would split it, or those of a list."""
    return tuple(map(str, value)) if isinstance(value, list) else tuple(shlex.split(str(value)))


def _hosts(value: Any) -> tuple[str, ...]:
    """Return the hosts of a line with commas, or of a list. Raises ConfigError for a network that is none."""
    hosts = [each.strip() for each in (value if isinstance(value, list) else str(value).split(","))]
    HostPolicy.parse(hosts)
    return tuple(each for each in hosts if each)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "runtime_dir": lambda value: Path(value).absolute(),
    "state_dir": lambda value: Path(value).absolute(),
    "cpu_capacity_bytes": parse_bytes,
    "disk_capacity_bytes": parse_bytes,
    "registry": lambda value: Choice.parse(str(value)),
    "cpu_policy": str,
    "disk_policy": str,
    "keep_alive_s": _keep_alive,
    "cpu_memory": lambda value: str(value).lower(),
    "segment_dir": lambda value: Path(value).absolute(),
    "large_pages": _flag,
    "gpus": str,
    "gpu_driver": str,
    "gpu_share": float,
    "gpu_reserve_bytes": parse_bytes,
    "gpu_rest_s": _limit_s,
    "gpu_verify": _flag,
    "gpu_policy": str,
    "cuda": str,
    "environments": parse_interpreters,
    "environments_dir": lambda value: Path(value).absolute() if str(value) else default_folder(),
    "converter_memory_bytes": parse_bytes,
    "converter_time_s": _limit_s,
    "converters": int,
    "workers": int,
    "behind_bytes_per_s": parse_bytes,
    "download_capacity_bytes": parse_bytes,
    "fetch_connections": int,
    "fetch_bytes_per_s": parse_bytes,
    "fetch_patience_s": _limit_s,
    "fetch_headers": lambda value: Path(value).absolute() if str(value) else None,
    "allow_hosts": _hosts,
    "socket_mode": _mode,
    "tenants": lambda value: Path(value).absolute() if str(value) else None,
    "max_sessions": int,
    "grpc_ping_s": _pause_s,
    "template_capacity_bytes": parse_bytes,
    "loaders": _flag,
    "always_hash": _flag,
    "trust": lambda value: str(value).lower(),
    "prove": lambda value: str(value).lower(),
    "endpoint": _endpoint,
    "endpoint_flags": _words,
    "trace": _flag,
    "trace_level": lambda value: Level.parse(str(value)),
    "verify": _flag,
    "log_level": lambda value: str(value).lower(),
    "log_format": lambda value: str(value).lower(),
}
assert set(_PARSERS) == {item.name for item in fields(Config)}, "every field has a parser"


def _defaults(env: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    base = Path(env["XDG_STATE_HOME"]) if env.get("XDG_STATE_HOME") else Path.home() / ".local" / "state"
    state_dir = given.get("state_dir", base / "trims")
    return {
        "workers": default_threads(),
        "runtime_dir": Path(default_runtime_dir(env)).absolute(),
        "state_dir": state_dir,
        "environments_dir": default_folder(env),
        "cpu_capacity_bytes": _default_cpu_bytes(given),
        "disk_capacity_bytes": _default_disk_bytes(state_dir),
        "download_capacity_bytes": _default_disk_bytes(state_dir),
    }


def _bytes_in(folder: Path) -> int:
    try:
        with os.scandir(folder) as found:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in found)
    except OSError:
        return 0


def _default_cpu_bytes(given: Mapping[str, Any]) -> int:
    allowed = allowed_bytes()
    if given.get("cpu_memory") == "memfd":
        return allowed // 2
    try:
        held = os.statvfs(given.get("segment_dir", SHM_FOLDER))
    except OSError:  # commands that make no memory have no use for it; a daemon refuses it (`check_folder`)
        return allowed // 2
    # A tmpfs without a limit shows no blocks.
    return min(allowed, held.f_blocks * held.f_frsize or allowed) // 2


def _default_disk_bytes(folder: Path) -> int:
    """Return half of what images could take: what is free, and what an earlier daemon's images hold.

    On a full disk that is next to nothing, and a daemon must serve there, too: never 0.
    """
    held = _bytes_in(folder / "images")
    while not folder.exists():
        folder = folder.parent
    return max(1, min(256 << 30, (shutil.disk_usage(folder).free + held) // 2))
