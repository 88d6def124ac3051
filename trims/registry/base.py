"""The registry protocol, and what registries share: reading manifests from files, and the errors for names.

Third parties add registries with the entry-point group `trims.registries`: a function that is given `RegistrySettings`
and returns a `Registry`. The setting `registry` names it. The contract suite is `trims.testing.registries`.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import yaml

from trims.core.errors import ManifestError, ModelExistsError, ModelNotFoundError
from trims.core.units import format_bytes
from trims.documents import load_yaml
from trims.manifests.manifest import Manifest, parse_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trims.registry.versions import Entry, Versions

_MAX_MANIFEST_BYTES = 1 << 20
#: Fields that look like numbers: `version: 1.10` is not 1.1.
_WRITTEN_AS_TEXT = (("version",), ("framework", "version"))
#: Values in a manifest once its aliases are written out: a few hundred bytes of aliases can stand for billions.
_MAX_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Settings that a registry is opened with.

    Attributes:
        state_dir: This daemon's folder for what outlives it; locked by the daemon, if there is one.
        argument: Text of the setting `registry` after the name's colon; empty without.
    """

    state_dir: Path
    argument: str = ""


@runtime_checkable
class ManifestRegistry(Protocol):
    """Names to manifests, one for each name: what a plug-in provides at least.

    All methods may be called from several threads at once: the workers that look into names, and the workers of the
    control door. The thread that serves sessions calls none. A method may block; a registry of a plug-in is given ten
    seconds for each call, and eight calls at once (`trims.registry.opening`). What it raises beyond the errors named
    here reaches the client as InternalError with the plug-in's name.
    """

    @property
    def changes_outside(self) -> bool:
        """Return whether manifests may come, change or go without a call here, because others write where they lie.

        Then `get` is called at every look into a name, so at most every half second for each name that is opened.
        """
        ...

    def put(self, raw: dict[str, Any], origin: str, *, replace: bool = False) -> Manifest:
        """Check and keep a manifest. Keeping an equal one again is fine; another under a taken name needs `replace`.

        When this returns, the manifest outlives the process, if it does so at all. A process that is killed meanwhile
        leaves the old manifest or the new one.

        Args:
            raw: The manifest as it is written, which `raw` gives back.
            origin: Folder that its relative paths begin at; empty if they are absolute.
            replace: Whether another manifest of that name may be replaced.

        Raises:
            ManifestError: `raw` is no manifest, or holds a value JSON cannot carry. What was kept before stays.
            ModelExistsError: The name has another manifest or another origin.
        """
        ...

    def get(self, name: str) -> Manifest:
        """Return the manifest of a name.

        Raises ModelNotFoundError with the nearest names, ManifestError if what is kept is none (any more).
        """
        ...

    def raw(self, name: str) -> dict[str, Any]:
        """Return the manifest as it was put, to be read or put again. Raises what `get` does."""
        ...

    def names(self) -> list[str]:
        """Return all names, sorted; also of manifests that `get` refuses."""
        ...

    def remove(self, name: str) -> None:
        """Forget a name, for good when this returns. Raises ModelNotFoundError."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Idempotent."""
        ...


@runtime_checkable
class Registry(ManifestRegistry, Protocol):
    """Names to manifests, with several versions of a model side by side.

    `get` and `raw` take references: a name, `name@version` or `name@label`. `put` registers a manifest with a new
    version beside those that are there. With `replace` it replaces the registered manifest of the same version; a
    version that is not registered takes the place of the one that the plain name leads to, and aliases follow.

    A registry of a plug-in that has the methods of `ManifestRegistry` only keeps one version of each model
    (`trims.registry.opening`).
    """

    def find(self, reference: str) -> Entry:
        """Return the registered version that a reference leads to, at one moment. Raises what `get` does."""
        ...

    def versions(self, name: str) -> Versions:
        """Return all versions and aliases of a model. Raises ModelNotFoundError."""
        ...

    def rows(self) -> list[str]:
        """Return the rows of all registered versions, by name; that of the plain name's version first."""
        ...

    def switch(self, name: str, label: str, version: str) -> Versions:
        """Have an alias lead to a version, in one transaction, and return what the model has then.

        Args:
            label: Made if it is not there; empty for the plain name.
            version: Registered version; empty for what the alias led to before.

        Raises ModelNotFoundError, CallerError.
        """
        ...

    def remove_label(self, name: str, label: str) -> Versions:
        """Remove a label, and return what the model has then. Raises ModelNotFoundError, CallerError."""
        ...

    def remove_version(self, reference: str, *, every: bool = False) -> None:
        """Forget one version of a model, or with `every` all. `remove` forgets a model that has one version.

        Raises ModelNotFoundError, CallerError, and InUseError while an alias leads to the version and others are there.
        """
        ...


def check_manifest(raw: dict[str, Any], origin: str) -> Manifest:
    """Return the manifest that a mapping states. Raises ManifestError, also for a value that JSON cannot carry."""
    manifest = parse_manifest(raw, origin)
    json_of(raw, manifest.name)
    return manifest


def json_of(raw: dict[str, Any], name: str) -> str:
    """Return a manifest as JSON, equal for equal manifests. Raises ManifestError if JSON cannot carry it."""
    try:
        return json.dumps(raw, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ManifestError(f"{name}: holds a value JSON cannot carry ({error}); quote it") from error


def unknown_model(name: str, known: Iterable[str]) -> ModelNotFoundError:
    """Return the error for a name that is not registered, with the nearest ones that are."""
    near = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {', '.join(near)}?" if near else "`trims list` shows what is; `trims add` registers one"
    return ModelNotFoundError(f"no model {name!r} is registered; {hint}")


def taken_name(name: str) -> ModelExistsError:
    """Return the error for a name, or a version of one, that has another manifest."""
    return ModelExistsError(
        f"{name!r} is registered with another manifest; give this one a `version` of its own, replace the other "
        f"(`trims add --replace`), remove that first (`trims rm {name}`), or register this one under another name "
        "(`--name` for an artifact)"
    )


def parse_yaml(text: str) -> dict[str, Any]:
    """Return the mapping in a manifest's text. Raises ManifestError, whose message lacks its subject: the manifest."""
    if len(text) > _MAX_MANIFEST_BYTES:
        raise ManifestError(f"has more than {format_bytes(_MAX_MANIFEST_BYTES)}; make it shorter")
    try:
        raw = load_yaml(text, as_text=_WRITTEN_AS_TEXT)
    except RecursionError as error:
        raise ManifestError("is nested too deeply; write it flat") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ManifestError("must be a mapping")
    if _values_in(raw, {}) > _MAX_VALUES:
        raise ManifestError(f"has more than {_MAX_VALUES} values, aliases written out; make it shorter")
    return raw


def _values_in(value: object, counted: dict[int, float]) -> float:
    """Count the values with all aliases written out. Each part is looked at once; a loop counts as endless."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in counted:
        counted[id(value)] = float("inf")  # until it is known: only a part that holds itself is asked for before that
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        counted[id(value)] = 1 + sum(_values_in(part, counted) for part in parts)
    return counted[id(value)]


def read_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """Read a YAML file. Return the mapping and the folder its relative paths start from.

    Raises ManifestError naming the file, with line and column where YAML gives them.
    """
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path}: a manifest of more than {format_bytes(_MAX_MANIFEST_BYTES)} is refused")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not YAML: {error}") from error
    origin = str(path.resolve().parent)
    try:
        raw = parse_yaml(text)
        parse_manifest(raw, origin)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error
    return raw, origin
