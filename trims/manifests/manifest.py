"""A manifest: what names an artifact and says how to keep and run it.

Here a mapping (read from YAML by the registry) becomes a checked, frozen `Manifest`. Unknown fields, wrong types and
paths that leave the manifest's folder are ManifestErrors that name the field. `manifests/schema.json` says the same for
editors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError, ManifestError
from trims.core.place import ANYWHERE, Place
from trims.manifests.fields import CALL, Fields, check_inside, parse_package
from trims.manifests.serving import PredictorSettings, TensorType, parse_predictor, parse_tensors
from trims.manifests.steps import Step, check_flow, parse_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Names that repositories of Triton, KServe and MLServer have. Names that differ in case only are two models.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?\Z")
#: `1.2.3`, `v1.2.3`, `2024-11-01`, or a whole number as in Triton's repositories, whose tools understand no other.
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z")
#: More than 128 decimal digits have; Python prints no number of any length.
_MAX_VERSION_BITS = 426
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
FRAMEWORKS = ("torch", "onnxruntime", "mxnet", "numpy")
PERSIST = ("auto", "always", "never")
TRUSTS = ("identity", "verified")


@dataclass(frozen=True, slots=True)
class Framework:
    """Framework that runs the model. `version` is a constraint such as `>=1.22`, empty for any."""

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
        trust: `verified`: it is hashed before its first reader has it, whatever the daemon's setting is; `identity`: as
            the daemon's setting says.
        options: For the converter.
    """

    path: str | None = None
    package: tuple[str, str] | None = None
    builder: Builder | None = None
    format: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    allow_pickle: bool = False
    trust: str = "identity"
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
    """One model.

    Attributes:
        predictor: How a process answers with it.
        inputs: What a request must bring; empty if the predictor tells or takes anything.
        preprocess: Steps from a request's tensors to those that the predictor gets.
        postprocess: Steps from the tensors that the predictor gives to those of the answer.
        outputs: What an answer has.
        origin: The folder that relative paths start from, empty if there is none.
    """

    name: str
    artifact: ArtifactSource
    version: str = "0.0.0"
    description: str = ""
    license: str = ""
    framework: Framework | None = None
    residency: ResidencySettings = field(default_factory=ResidencySettings)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    predictor: PredictorSettings = field(default_factory=PredictorSettings)
    inputs: tuple[TensorType, ...] = ()
    preprocess: tuple[Step, ...] = ()
    postprocess: tuple[Step, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    origin: str = ""

    def validate(self) -> None:
        """Check what parsing cannot see in one field. Raises ManifestError."""
        given = [self.artifact.path, self.artifact.package, self.artifact.builder]
        if sum(item is not None for item in given) != 1:
            raise ManifestError(f"{self.name}: artifact needs exactly one of path, package and builder")
        check_flow(self.preprocess, self.inputs, f"{self.name}: preprocess")


def parse_manifest(raw: object, origin: str = "") -> Manifest:
    """Check a mapping as read from YAML. Raises ManifestError naming the field and the remedy."""
    top = Fields(raw, "manifest")
    name = top.text("name", pattern=_NAME, hint="letters, digits, '.', '_' and '-'", required=True)
    top.where = name
    manifest = Manifest(
        name=name,
        version=_version(top.take("version"), name),
        description=top.text("description", ""),
        license=top.text("license", ""),
        framework=_framework(top.take("framework"), name),
        artifact=_artifact(top.take("artifact"), name),
        residency=_keep(top.take("residency"), name),
        attributes=top.mapping("attributes"),
        predictor=parse_predictor(top.take("predictor"), name),
        inputs=parse_tensors(top.take("inputs"), f"{name}: inputs"),
        preprocess=parse_steps(top.take("preprocess"), f"{name}: preprocess"),
        postprocess=parse_steps(top.take("postprocess"), f"{name}: postprocess"),
        outputs=parse_tensors(top.take("outputs"), f"{name}: outputs"),
        origin=origin,
    )
    top.done()
    manifest.validate()
    return manifest


def _version(raw: object, name: str) -> str:
    version = text_of_version(raw, name) or "0.0.0"
    if not _VERSION.match(version):
        raise ManifestError(f"{name}: 'version' is {version!r:.80}; write letters, digits, '.', '_', '+' and '-'")
    return version


def text_of_version(raw: object, where: str) -> str:
    """A version as text, a whole number as its digits; empty if it is None.

    Raises:
        ManifestError: It is something else, such as the number 1.10, which has become 1.1 already.
    """
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise ManifestError(f"{where}: 'version' must be text, not {raw!r:.80}; quote it")
    if raw.bit_length() > _MAX_VERSION_BITS:
        raise ManifestError(f"{where}: 'version' has more than 128 digits; make it shorter")
    return str(raw)


def _framework(raw: object, name: str) -> Framework | None:
    if raw is None:
        return None
    fields = Fields(raw, f"{name}: framework")
    framework = Framework(fields.choice("name", FRAMEWORKS), fields.text("version", ""))
    fields.done()
    return framework


def _artifact(raw: object, name: str) -> ArtifactSource:
    fields = Fields(raw, f"{name}: artifact")
    path = fields.text("path", "") or None
    if path is not None and not path.startswith("/"):
        check_inside(path, f"{name}: artifact.path")
    source = ArtifactSource(
        path=path,
        package=parse_package(fields.take("package"), f"{name}: artifact.package"),
        builder=_builder(fields.take("builder"), name),
        format=fields.text("format", "") or None,
        sha256=_digests(fields.mapping("sha256"), name),
        allow_pickle=fields.flag("allow_pickle"),
        trust=fields.choice("trust", TRUSTS, "identity"),
        options=fields.mapping("options"),
    )
    fields.done()
    return source


def _builder(raw: object, name: str) -> Builder | None:
    if raw is None:
        return None
    fields = Fields(raw, f"{name}: artifact.builder")
    call = fields.text("call", pattern=CALL, hint="package.module:function", required=True)
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
    fields = Fields(raw, f"{name}: residency")
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
