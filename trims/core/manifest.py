"""A manifest: what names an artifact and says how to keep and run it.

Here a mapping (read from YAML by the registry) becomes a checked, frozen `Manifest`. Unknown fields, wrong types and
paths that leave the manifest's folder are ManifestErrors that name the field. `manifests/schema.json` says the same for
editors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trims.core.errors import CallerError, ConfigError, ManifestError
from trims.core.place import ANYWHERE, Place
from trims.core.units import parse_bytes

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?\Z")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?\Z")
_CALL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
FRAMEWORKS = ("torch", "onnxruntime", "mxnet", "numpy")
PERSIST = ("auto", "always", "never")


@dataclass(frozen=True, slots=True)
class Framework:
    """What runs the model. `version` is a constraint such as `>=1.22`, empty for any."""

    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Builder:
    """A function that makes the artifact: `call` is `package.module:function`, `args` its keyword arguments."""

    call: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArtifactSource:
    """Where the artifact comes from: exactly one of `path`, `package` and `builder`.

    Attributes:
        path: Absolute, or relative to the manifest's folder.
        package: An installed Python package and a path inside it.
        builder: A function that makes the files once.
        format: Converter to use; None detects it.
        sha256: File name -> hex digest, for files whose publisher states one.
        allow_pickle: Whether code inside the artifact may run in the converter child.
        options: For the converter.
    """

    path: str | None = None
    package: tuple[str, str] | None = None
    builder: Builder | None = None
    format: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    allow_pickle: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResidencySettings:
    """How long to keep the model where.

    Attributes:
        place: Where an open without a place leads; None serves it wherever on the host the image lies.
        pin: Never evict it from there; without a place, from shared memory.
        keep_alive_s: Seconds an idle replica stays: None until the room is needed, 0 not at all.
        persist: Whether a disk image is kept: `auto` when the artifact had to be converted.
        workspace_bytes: What each process that reads it on a GPU needs there beside it; None until it was measured.
    """

    place: Place | None = None
    pin: bool = False
    keep_alive_s: float | None = None
    persist: str = "auto"
    workspace_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """One model. `origin` is the folder that relative paths start from, empty if there is none."""

    name: str
    artifact: ArtifactSource
    version: str = "0.0.0"
    description: str = ""
    license: str = ""
    framework: Framework | None = None
    residency: ResidencySettings = field(default_factory=ResidencySettings)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""

    def validate(self) -> None:
        """Check what parsing cannot see in one field. Raises ManifestError."""
        given = [self.artifact.path, self.artifact.package, self.artifact.builder]
        if sum(item is not None for item in given) != 1:
            raise ManifestError(f"{self.name}: artifact needs exactly one of path, package and builder")


def parse_manifest(raw: object, origin: str = "") -> Manifest:
    """Check a mapping as read from YAML. Raises ManifestError naming the field and the remedy."""
    top = _Fields(raw, "manifest")
    name = top.text("name", pattern=_NAME, hint="lower-case letters, digits, '.', '_' and '-'", required=True)
    top.where = name
    manifest = Manifest(
        name=name,
        version=top.text("version", "0.0.0", pattern=_VERSION, hint="major.minor.patch"),
        description=top.text("description", ""),
        license=top.text("license", ""),
        framework=_framework(top.take("framework"), name),
        artifact=_artifact(top.take("artifact"), name),
        residency=_keep(top.take("residency"), name),
        attributes=top.mapping("attributes"),
        origin=origin,
    )
    top.done()
    manifest.validate()
    return manifest


def check_inside(path: str, what: str) -> str:
    """A relative path that stays in its folder, or ManifestError. Lexical: symlinks are the reader's business."""
    parts = path.replace("\\", "/").split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or not path:
        raise ManifestError(f"{what}: {path!r} leaves its folder; write a path inside it")
    return path


def _framework(raw: object, name: str) -> Framework | None:
    if raw is None:
        return None
    fields = _Fields(raw, f"{name}: framework")
    framework = Framework(fields.choice("name", FRAMEWORKS), fields.text("version", ""))
    fields.done()
    return framework


def _artifact(raw: object, name: str) -> ArtifactSource:
    fields = _Fields(raw, f"{name}: artifact")
    path = fields.text("path", "") or None
    if path is not None and not path.startswith("/"):
        check_inside(path, f"{name}: artifact.path")
    source = ArtifactSource(
        path=path,
        package=_package(fields.take("package"), name),
        builder=_builder(fields.take("builder"), name),
        format=fields.text("format", "") or None,
        sha256=_digests(fields.mapping("sha256"), name),
        allow_pickle=fields.flag("allow_pickle"),
        options=fields.mapping("options"),
    )
    fields.done()
    return source


def _package(raw: object, name: str) -> tuple[str, str] | None:
    if raw is None:
        return None
    fields = _Fields(raw, f"{name}: artifact.package")
    package = fields.text("name", pattern=re.compile(r"[A-Za-z_]\w*(\.\w+)*\Z"), hint="an import name", required=True)
    path = check_inside(fields.text("path", required=True), f"{name}: artifact.package.path")
    fields.done()
    return package, path


def _builder(raw: object, name: str) -> Builder | None:
    if raw is None:
        return None
    fields = _Fields(raw, f"{name}: artifact.builder")
    call = fields.text("call", pattern=_CALL, hint="package.module:function", required=True)
    builder = Builder(call, fields.mapping("args"))
    fields.done()
    return builder


def _digests(raw: Mapping[str, Any], name: str) -> Mapping[str, str]:
    for file, digest in raw.items():
        check_inside(file, f"{name}: artifact.sha256")
        if not isinstance(digest, str) or not _SHA256.match(digest):
            raise ManifestError(f"{name}: artifact.sha256 of {file!r} must be 64 lower-case hex digits")
    return raw


def _keep(raw: object, name: str) -> ResidencySettings:
    if raw is None:
        return ResidencySettings()
    fields = _Fields(raw, f"{name}: residency")
    stated = fields.text("place", ANYWHERE)
    try:
        place = None if stated == ANYWHERE else Place.parse(stated)
    except CallerError as error:
        raise ManifestError(f"{name}: residency.place: {error}") from error
    keep = ResidencySettings(
        place=place,
        pin=fields.flag("pin"),
        keep_alive_s=fields.seconds("keep_alive_s"),
        persist=fields.choice("persist", PERSIST, "auto"),
        workspace_bytes=fields.size("workspace_bytes"),
    )
    fields.done()
    return keep


class _Fields:
    """One mapping of a manifest, taken apart field by field; `done` refuses fields that were not taken."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
            raise ManifestError(f"{where}: must be a mapping with text keys, not {type(raw).__name__}")
        self.where = where
        self._left: dict[str, Any] = dict(raw)

    def take(self, key: str) -> Any:
        return self._left.pop(key, None)

    def text(
        self,
        key: str,
        default: str | None = None,
        *,
        pattern: re.Pattern[str] | None = None,
        hint: str = "",
        required: bool = False,
    ) -> str:
        value = self._left.pop(key, None)
        if value is None:
            if required or default is None:
                raise ManifestError(f"{self.where}: the field {key!r} is missing")
            return default
        if not isinstance(value, str):
            raise ManifestError(f"{self.where}: {key!r} must be text, not {value!r}; quote it")
        if pattern is not None and not pattern.match(value):
            raise ManifestError(f"{self.where}: {key!r} is {value!r}; write {hint}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise ManifestError(f"{self.where}: {key!r} is {value!r}; it must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str) -> bool:
        value = self._left.pop(key, False)
        if not isinstance(value, bool):
            raise ManifestError(f"{self.where}: {key!r} must be true or false, not {value!r}")
        return value

    def seconds(self, key: str) -> float | None:
        value = self._left.pop(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ManifestError(f"{self.where}: {key!r} must be a number of seconds from 0 up, not {value!r}")
        return float(value)

    def size(self, key: str) -> int | None:
        value = self._left.pop(key, None)
        if value is None:
            return None
        try:
            return parse_bytes(value)
        except ConfigError as error:
            raise ManifestError(f"{self.where}: {key!r}: {error}") from error

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._left.pop(key, None)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ManifestError(f"{self.where}: {key!r} must be a mapping with text keys, not {value!r}")
        return dict(value)

    def done(self) -> None:
        if self._left:
            raise ManifestError(f"{self.where}: unknown field {sorted(self._left)[0]!r}; see manifests/schema.json")
