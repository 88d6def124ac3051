"""Models by environment: which registered model uses which, as this command's environment and settings see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import DaemonAwayError, InUseError, TrimsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trims.environments.environment_store import EnvironmentStore, Made
    from trims.formats.conversion.interpreter_selection import InterpreterSelection
    from trims.manifests.manifest import Manifest


def users_of(
    made: Sequence[Made], env_store: EnvironmentStore, runtime_dir: str | None
) -> Mapping[str, list[str]] | None:
    """Return, by environment, the names of the models that it is picked for; None if no daemon answers."""
    manifests = _manifests(runtime_dir)
    if manifests is None:
        return None
    by_python = {each.python: each.name for each in made}
    found: dict[str, list[str]] = {}
    picker = _picker(env_store)
    for manifest in manifests:
        python = _pick(picker, manifest)
        if python in by_python:
            found.setdefault(by_python[python], []).append(manifest.name)
    return found


def refuse_if_needed(name: str, env_store: EnvironmentStore, runtime_dir: str | None) -> bool:
    """Raise InUseError if registered models run in this environment only. Return False if no daemon answers."""
    manifests = _manifests(runtime_dir, every=True)
    if manifests is None:
        return False
    picker, without = _picker(env_store), _picker(env_store, without=name)
    python = env_store.read(name).python if name not in env_store.unreadable() else None
    needy = [each.name for each in manifests if python is not None and _pick(picker, each) == python
             and not _runs(without, each)]  # fmt: skip
    if needy:
        raise InUseError(
            f"the environment {name} is the only one for {', '.join(needy)}; remove these models (trims rm), make "
            "another environment that satisfies them, or use --force"
        )
    return True


def _manifests(runtime_dir: str | None, *, every: bool = False) -> list[Manifest] | None:
    """Return all models' manifests; None without a daemon. With `every`, raises InUseError for an unreadable one."""
    from trims.control import admin
    from trims.manifests.manifest import parse_manifest

    try:
        with admin(runtime_dir) as daemon:
            models = daemon.models()
    except DaemonAwayError:
        return None
    for model in models:
        if model.problem and every:
            raise InUseError(
                f"what {model.name} needs is not known, as its manifest cannot be read ({model.problem}); correct it, "
                "or use --force"
            )
    return [parse_manifest(model.manifest, model.origin) for model in models if not model.problem]


def _picker(env_store: EnvironmentStore, without: str = "") -> InterpreterSelection:
    from trims.daemon.config import build_config
    from trims.formats.conversion.interpreter_selection import InterpreterSelection

    return InterpreterSelection(build_config({}).environments, env_store, without=without)


def _pick(picker: InterpreterSelection, manifest: Manifest) -> Path | None:
    """Return the interpreter that is picked for a manifest; None if there is none."""
    framework = manifest.framework
    try:
        return picker.pick(manifest.name, framework.name, framework.version) if framework is not None else None
    except TrimsError:
        return None


def _runs(picker: InterpreterSelection, manifest: Manifest) -> bool:
    framework = manifest.framework
    return framework is not None and picker.has(framework.name, framework.version)
