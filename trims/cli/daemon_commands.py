"""Commands about the daemon: serve, status, tenants, check, drain, shutdown."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.completion import FILES, completed
from trims.cli.connect import admin
from trims.cli.output import as_json, note, say, say_devices, say_json, table
from trims.core.errors import TrimsError
from trims.core.place import CLOUD, FILE
from trims.core.units import format_bytes, format_seconds
from trims.process.ends import ProcessEnd

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from trims.control import Admin
    from trims.control.answers import Health

_FLAGS = {
    "state-dir": "catalog, disk images, built artifacts (default: ~/.local/state/trims)",
    "cpu-capacity-bytes": "images in shared memory, such as 8GiB (default: half of memory, its limit or /dev/shm)",
    "disk-capacity-bytes": "images on disk (default: half of what is free, at most 256 GiB)",
    "registry": "where manifests are kept: sqlite:/path/file.db, or a plugin's, NAME:ARGUMENT (default: sqlite)",
    "cpu-policy": "which idle model goes first when memory is full: lru, lfu, fifo, gdsf (default: lru)",
    "disk-policy": "which idle model goes first when the disk tier is full (default: lru)",
    "keep-alive-s": "seconds an idle model stays in memory, 0 for none, lazy for until the room is needed (default)",
    "cpu-memory": "shm: found again by the next daemon; memfd: sealed for all processes, gone with it (default: shm)",
    "segment-dir": "tmpfs for shared memory (default: /dev/shm)",
    "large-pages": "no: do without large pages in shared memory (default: yes)",
    "gpus": "UUIDs of GPUs to keep models on, or none (default: auto, all there are)",
    "gpu-driver": "how GPU memory is shared: vmm, ipc (default: auto, the better one the device has)",
    "gpu-share": "part of a GPU's free memory for weights (default: 0.9)",
    "gpu-reserve-bytes": "left free besides, for activations (default: 1GiB)",
    "gpu-verify": "whether what is copied to a GPU is verified there, if its image has a checksum (default: yes)",
    "gpu-rest-s": "seconds without a copy after which a GPU's mover and its context end (default: 10)",
    "gpu-policy": "which idle model goes first when a GPU is full (default: lru)",
    "cuda": "driver, or a stand-in for machines without a GPU: fake:FOLDER (default: driver)",
    "environments": "interpreters of frameworks with an environment of their own: mxnet=/path/to/python,...",
    "environments-dir": "where trims env makes environments (default: $TRIMS_ENVIRONMENTS_DIR)",
    "converter-memory-bytes": "private memory of a converter child (default: 16GiB)",
    "converter-time-s": "seconds a conversion may take (default: 600)",
    "converters": "conversions that run at once (default: 2)",
    "behind-bytes-per-s": "bandwidth of hashing and copying that no request waits for, such as 1GiB; 0 for no limit "
    "(default: 512MiB)",
    "workers": "loads that run at once (default: as many as processors, 2 to 8)",
    "download-capacity-bytes": "files fetched from addresses, such as 100GiB (default: as for images on disk)",
    "fetch-connections": "connections of all transfers from addresses together (default: 8)",
    "fetch-bytes-per-s": "bandwidth of all transfers from addresses, such as 100MiB (default: no limit)",
    "fetch-patience-s": "seconds without a byte after which a transfer gives up; what has come is kept (default: 120)",
    "fetch-headers": "file of headers for servers of https addresses: lines HOST NAME: VALUE",
    "allow-hosts": "private hosts and networks that redirects, and manifests from elsewhere, may lead to",
    "socket-mode": "permissions of the attach socket, octal (default: 600, this user only)",
    "tenants": "the tenants file: who shares this machine, and how much each may hold (default: none)",
    "template-capacity-bytes": "memory of the templates of `trims exec` (default: an eighth of what may be taken)",
    "loaders": "no: frameworks of programs that `trims exec` starts load alone (default: yes, through the store)",
    "grpc-ping-s": "least seconds between two keepalive pings of a client over gRPC, 0 for any (default: 0.1)",
    "max-sessions": "clients that may be connected at once (default: 4096, fewer if the limit of open files is low)",
    "always-hash": "yes: read artifacts at each look, for those written through shared mappings (default: no)",
    "prove": "first: hash what lies in a hub's cache before its first reader has it (default: behind)",
    "trust": "verified: hash each artifact before its first reader has it (default: identity, hash it behind)",
    "endpoint": "no: do not start the inference endpoint; yes: or fail (default: auto, if its packages are installed)",
    "endpoint-flags": "flags for it in one word, such as '--port 9000 --preload torch'; see trims endpoint --help",
    "trace": "yes: record every request as a trace, see trims trace (default: those whose clients ask for it)",
    "trace-level": "how deep: application, model, framework, library, system, hardware (default: model)",
    "log-level": "debug, info, warning or error (default: info)",
    "log-format": "text, or json for one object a line (default: text)",
}

#: Places without a capacity: files of users, and what other machines keep.
_UNBOUNDED = (str(FILE), str(CLOUD))
#: Seconds between two questions to a daemon that is ending.
_ASK_AGAIN_S = 0.2
#: Seconds between the end of its doors and that of its process, at most.
_LAST_S = 10.0
_SHUTDOWN = "end the daemon and wait for its end; models stay in memory for the next one, unless their memory is memfd"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    serve = _add(commands, "serve", "run the daemon in the foreground", _serve)
    completed(serve.add_argument("--config", type=Path, help="YAML file with settings"), FILES)
    for flag, text in _FLAGS.items():
        serve.add_argument(f"--{flag}", help=text)
    status = _add(commands, "status", "say whether a daemon runs, and how full it is", _status)
    status.add_argument("--json", action="store_true", help="print JSON")
    tenants = _add(commands, "tenants", "say what each tenant holds, and how much it may", _tenants)
    tenants.add_argument("--hash", action="store_true", help="print what stands for a token, read from standard input")
    tenants.add_argument("--json", action="store_true", help="print JSON")
    check = _add(commands, "check", "hold the books of the running daemon against the facts", _check)
    check.add_argument("--verify", action="store_true", help="read and hash every replica")
    check.add_argument("--json", action="store_true", help="print JSON")
    drain = _add(commands, "drain", "take no new opens; leases run on", _drain)
    drain.add_argument("--json", action="store_true", help="print JSON")
    shutdown = _add(commands, "shutdown", _SHUTDOWN, _shutdown)
    shutdown.add_argument("--purge", action="store_true", help="also free the memory")
    shutdown.add_argument("--json", action="store_true", help="print JSON")
    shutdown.add_argument("--no-wait", action="store_true", help="return at once, while requests that run finish")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int | None],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    return parser


def _serve(options: argparse.Namespace) -> None:
    from trims.daemon.config import build_config
    from trims.daemon.main import serve

    flags = {flag.replace("-", "_"): getattr(options, flag.replace("-", "_")) for flag in _FLAGS}
    serve(build_config({**flags, "runtime_dir": options.runtime_dir}, file=options.config))


def _status(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        status = daemon.status()
    if options.json:
        say_json(as_json(status))
        return
    health, stats = status.health, status.stats
    say(
        f"{health.status}: process {health.pid}, trims {health.version}, up {format_seconds(stats.uptime_s)}, "
        f"{stats.sessions} sessions, {stats.leases} leases"
    )
    say(
        f"descriptors: {stats.max_files} at most; {stats.sessions} of {stats.max_sessions} for sessions, "
        f"{stats.images} of {stats.max_images} for images"
    )
    if stats.unverified_bytes:
        say(f"found at the start and still to be read: {format_bytes(stats.unverified_bytes)}")
    rows = [
        [
            tier.place,
            format_bytes(tier.charged_bytes),
            "-" if tier.place in _UNBOUNDED else format_bytes(tier.capacity_bytes),
            "-" if tier.place in _UNBOUNDED else _share(tier.charged_bytes, tier.capacity_bytes),
            str(tier.replicas),
            tier.policy,
        ]
        for tier in stats.tiers
    ]
    table(("tier", "used>", "capacity>", "full>", "replicas>", "policy"), rows)
    say_devices(stats.devices)
    if stats.gpu_off:
        say(f"no gpu tier: {stats.gpu_off}")
    if stats.endpoint or stats.endpoint_off:
        say(f"endpoint: {stats.endpoint}" if stats.endpoint else f"no endpoint: {stats.endpoint_off}")


def _share(held_bytes: int, capacity_bytes: int) -> str:
    """Return how full a tier is. One that found no room at all on the machine counts as full."""
    return f"{100 * held_bytes / capacity_bytes:.0f} %" if capacity_bytes else "100 %"


def _tenants(options: argparse.Namespace) -> None:
    if options.hash:
        from trims.tenants import hash_of

        say(hash_of(sys.stdin.readline().strip()))
        return
    with admin(options.runtime_dir) as daemon:
        tenants = daemon.status().stats.tenants
    if options.json:
        say_json([as_json(each) for each in tenants])
    elif not tenants:
        say("no tenants: this daemon serves one user without limits; see `trims serve --tenants`")
    else:
        rows = [
            [
                each.name,
                _of(each.sessions, each.most_sessions, str),
                _of(each.leases, each.most_leases, str),
                _of(each.leased_bytes, each.most_leased_bytes, format_bytes),
                _of(each.resident_bytes, each.most_resident_bytes, format_bytes),
            ]
            for each in tenants
        ]
        table(("tenant", "sessions>", "leases>", "leased>", "resident>"), rows)


def _of(held: int, most: int | None, show: Callable[[int], str]) -> str:
    return show(held) if most is None else f"{show(held)} of {show(most)}"


def _check(options: argparse.Namespace) -> int:
    with admin(options.runtime_dir) as daemon:
        report = daemon.check(verify=options.verify)
    if options.json:
        say_json(as_json(report))
    elif report.findings:
        for finding in report.findings:
            say(f"- {finding}")
    else:
        ways = ", ".join(f"{format_bytes(count)} by {way}" for way, count in sorted(report.verified_by.items()))
        words = f", {format_bytes(report.verified_bytes)} verified" + (f" ({ways})" if ways else "")
        verified = words if options.verify else ""
        say(f"all is well: {report.replicas} replicas{verified}")
    return 1 if report.findings else 0


def _drain(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        daemon.drain()
    _print(options, "draining: new opens are refused", status="draining")


def _print(options: argparse.Namespace, text: str, **facts: object) -> None:
    """Say what was done: a sentence on standard error, or with --json facts on standard output."""
    if options.json:
        say_json(facts)
    else:
        note(text)


def _shutdown(options: argparse.Namespace) -> None:
    with admin(options.runtime_dir) as daemon:
        before = daemon.status().health
        with ProcessEnd(before.pid) as process:
            daemon.shutdown(purge=options.purge)
            if options.no_wait:
                _print(options, "the daemon is ending", status="ending")
                return
            _await_end(daemon, before, process)
    _print(options, "the daemon has ended", status="ended")


def _await_end(daemon: Admin, before: Health, process: ProcessEnd) -> None:
    """Wait until a daemon that was asked to end has, and print what it waits for."""
    shown = ""
    while True:
        try:
            health = daemon.status().health
        except TrimsError:  # its doors are closed
            process.wait(_LAST_S)
            return
        if health.boot != before.boot:
            return
        if health.waits_for != shown:
            shown = health.waits_for
            note(f"the daemon is ending: it waits for {shown}")
        time.sleep(_ASK_AGAIN_S)  # the process may be another one's here: it may have a name space of its own
