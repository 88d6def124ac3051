"""Examination of a set-up: each says what it found, and the remedy where something is wrong."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.finding import Finding
from trims.cli.output import note
from trims.core.errors import CallerError, ConfigError, DaemonAwayError, TrimsError
from trims.core.units import format_bytes
from trims.memory.available import available_bytes
from trims.memory.large_pages import why_no_large_pages
from trims.memory.shm import check_folder, unopened_segments
from trims.process.packages import install_words
from trims.process.system_calls import CALLS, OF_DAEMON, REMEDY, refused_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SMALL_SHM_BYTES = 1 << 30
_FEW_DESCRIPTORS = 1024
_MXNET = "trims env create mxnet==1.9.1, if you use it; it needs Python 3.10 or 3.11"

_FRAMEWORKS = ("torch", "transformers", "onnxruntime", "mxnet", "safetensors", "numpy", "ml_dtypes")


def examine(runtime_dir: str | None) -> list[Finding]:
    """Run every examination; one that fails is a finding itself."""
    examinations: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _shared_memory,
        lambda: _orphans(runtime_dir),
        _plugins,
        _descriptors,
        _folders,
        _variables,
        lambda: examine_daemon(runtime_dir),
        _frameworks,
        _environments,
        lambda: _gpu(runtime_dir),
    )
    found = list(_system_calls())
    if any(each.what.startswith("the system call clone3 ") for each in found):
        return found  # the other examinations start threads
    for examination in examinations:
        try:
            found.extend(examination())
        except (TrimsError, OSError) as error:
            found.append(Finding("bad", str(error)))
    return found


def back_up_state(runtime_dir: str | None, folder: str) -> list[Path]:
    """Write a backup of what a daemon keeps and cannot find out again. Return its files.

    Raises as `back_up`, and CallerError for a folder without a name. The daemon is the one that answers, else the one
    that these settings describe.
    """
    from trims.control import admin
    from trims.daemon.config import build_config
    from trims.registry.backup import back_up
    from trims.registry.opening import file_of_registry
    from trims.sources.lock import NAME
    from trims.store.catalog import CATALOG

    if not folder:
        raise CallerError("--backup is empty; name a folder")
    config = build_config({})
    state = config.state_dir
    with contextlib.suppress(DaemonAwayError), admin(runtime_dir) as daemon:
        state = Path(daemon.status().health.state_dir)
    registry = file_of_registry(config.registry, state)
    if registry is None:
        note(f"manifests are not in the backup: the registry {config.registry} keeps them")
    found = back_up([path for path in (registry, state / CATALOG, state / NAME) if path is not None], Path(folder))
    if not found:
        raise ConfigError(f"{state} has nothing to back up; `--runtime-dir` or $TRIMS_STATE_DIR names another daemon's")
    return found


def _system_calls() -> Iterator[Finding]:
    refused = refused_calls()
    for each in refused:
        who = "the daemon and the endpoint do" if each.name in OF_DAEMON else "the endpoint does"
        yield Finding("bad", f"{each}: {who} not start", REMEDY)
    if not refused:
        yield Finding("ok", f"system calls: {', '.join(CALLS)}")


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("ok", f"Python {version} at {sys.executable}, trims {importlib.metadata.version('trims')}")


def _shared_memory() -> Iterator[Finding]:
    from trims.daemon.config import build_config

    config = build_config({})
    if config.cpu_memory == "memfd":
        yield Finding("ok", f"sealed memfds: {format_bytes(available_bytes())} of memory available for them")
        return
    folder = config.segment_dir
    held = os.statvfs(folder)
    size, free = held.f_blocks * held.f_frsize, held.f_bavail * held.f_frsize
    what = f"{folder}: {format_bytes(free)} free of {format_bytes(size)}; {format_bytes(available_bytes())} of memory"
    check_folder(folder)
    if size < _SMALL_SHM_BYTES:
        yield Finding(
            "bad",
            what,
            "containers get 64 MiB unless told: docker run --shm-size, or an emptyDir of medium Memory",
        )
    else:
        yield Finding("ok", what)
    refusal = why_no_large_pages(folder)
    if refusal:
        what = f"{folder} has small pages, with which loads and first touches are several times slower: {refusal}"
        yield Finding("note", what)
    else:
        yield Finding("ok", f"{folder}: large pages on request")


def _orphans(runtime_dir: str | None) -> Iterator[Finding]:
    """Yield segments that no process has open and that belong to another state folder than this one's."""
    from trims.control import admin
    from trims.daemon.config import build_config
    from trims.daemon.main import shm_prefix

    config = build_config({})
    states = [config.state_dir]
    with contextlib.suppress(DaemonAwayError), admin(runtime_dir) as daemon:
        states.append(Path(daemon.status().health.state_dir))
    known = {shm_prefix(state) for state in states}
    for prefix, names in sorted(unopened_segments(config.segment_dir).items()):
        if prefix not in known:
            nbytes = sum(_bytes_of(config.segment_dir / name) for name in names)
            yield Finding(
                "note",
                f"{config.segment_dir} holds {format_bytes(nbytes)} ({len(names)} images) for a daemon with another "
                "state folder; no process has any of them open",
                f"if that state folder is gone for good: rm {config.segment_dir}/{prefix}.*",
            )


def _plugins() -> Iterator[Finding]:
    """Yield the installed plug-ins, and the registry and tiers that the settings take from other packages.

    None is opened: a daemon may be using it.
    """
    from trims.daemon.config import build_config
    from trims.formats.plugins import broken
    from trims.plugins import installed
    from trims.registry import opening as registries

    plugins = installed()
    for each in plugins:
        what = f"{each.group} plug-in {each.name}: {each.value} of {each.package}"
        if each.problem:
            yield Finding("bad", f"{what} cannot be imported: {each.problem}", "mend or uninstall its package")
        else:
            yield Finding("ok", what)
    named = {each.name for each in plugins if each.problem}
    for name, problem in broken().items():
        if name not in named:
            yield Finding("bad", problem, "mend or uninstall its package")
    config = build_config({})
    if config.registry.name != "sqlite":
        yield Finding("ok", f"registry {config.registry}: {registries.find_plugin(config.registry)}")


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _descriptors() -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"open files: {soft} allowed, {hard} at most"
    few = hard < _FEW_DESCRIPTORS
    yield Finding("bad" if few else "ok", what, "raise `ulimit -n`: each session and replica takes one" if few else "")


def _folders() -> Iterator[Finding]:
    from trims.daemon.config import build_config

    config = build_config({})
    for what, folder in (("runtime folder", config.runtime_dir), ("state folder", config.state_dir)):
        if folder.exists() and folder.stat().st_uid != os.geteuid():
            yield Finding("bad", f"{what} {folder} belongs to user {folder.stat().st_uid}", "choose another folder")
        else:
            yield Finding("ok", f"{what}: {folder}{'' if folder.exists() else ' (not made yet)'}")
    yield Finding("ok", f"capacity: {format_bytes(config.cpu_capacity_bytes)} cpu, "
                        f"{format_bytes(config.disk_capacity_bytes)} disk")  # fmt: skip


def _variables() -> Iterator[Finding]:
    from trims.daemon.config import unknown_variables

    for sentence in unknown_variables():
        yield Finding("note", sentence)


def examine_daemon(runtime_dir: str | None) -> Iterator[Finding]:
    """Yield whether a daemon answers, and of which release it is."""
    from trims.control import admin

    try:
        with admin(runtime_dir) as daemon:
            health = daemon.status().health
    except DaemonAwayError as error:
        yield Finding("note", str(error), "trims serve")
        return
    ours = importlib.metadata.version("trims")
    yield Finding("ok", f"daemon {health.status}: process {health.pid}, state in {health.state_dir}")
    if health.version != ours:
        yield Finding(
            "bad",
            f"the daemon runs trims {health.version}, this is {ours}",
            "restart it: clients connect again by themselves",
        )


def _frameworks() -> Iterator[Finding]:
    from trims.daemon.config import build_config
    from trims.formats.conversion.environments import Environment

    here = Environment().versions(_FRAMEWORKS)
    elsewhere = build_config({}).environments
    for name in _FRAMEWORKS:
        if name in elsewhere:
            there = Environment(elsewhere[name]).versions((name,)).get(name)
            verdict, what = ("ok", there) if there else ("bad", "is missing")
            yield Finding(verdict, f"{name} {what} in {elsewhere[name]}", "" if there else f"install {name} there")
        elif name in here:
            yield Finding("ok", f"{name} {here[name]}")
        elif name == "mxnet":
            yield from () if name in _made_frameworks() else (Finding("note", "mxnet has no environment", _MXNET),)
        else:
            yield Finding("note", f"{name} is not installed here", f"{install_words(name)}, if you use it")


def _made_frameworks() -> set[str]:
    from trims.daemon.config import build_config
    from trims.environments.environment_store import EnvironmentStore

    return {name for made in EnvironmentStore(build_config({}).environments_dir).all() for name in made.versions}


def _environments() -> Iterator[Finding]:
    """Yield the environments of `trims env`, as far as can be seen without starting them."""
    from trims.daemon.config import build_config
    from trims.environments.checking import glance
    from trims.environments.environment_store import EnvironmentStore

    env_store = EnvironmentStore(build_config({}).environments_dir)
    for made in env_store.all():
        faults = glance(made)
        told = ", ".join(f"{name} {made.versions[name]}" for name in _FRAMEWORKS if name in made.versions)
        if faults:
            yield Finding("bad", f"environment {made.name}: {faults[0].what}", faults[0].remedy)
        else:
            yield Finding("ok", f"environment {made.name}: {told}")
    for name in env_store.unreadable():
        yield Finding("bad", f"environment {name}: its record cannot be read", f"trims env rm --force {name}")


def _gpu(runtime_dir: str | None) -> Iterator[Finding]:
    from trims.cli.doctor_gpu import gpu_findings
    from trims.daemon.config import build_config

    yield from gpu_findings(build_config({}), runtime_dir)
