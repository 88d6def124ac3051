"""A manifest: what names an artifact and says how to keep and run it.

Here a mapping (read from YAML by the registry) becomes a checked, frozen `Manifest`. Unknown fields, wrong types and
paths that leave the manifest's folder are ManifestErrors that name the field. `trims.manifests.schema` makes the JSON
schema of the same structs, for editors.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from trims.core.errors import CallerError, ManifestError
from trims.core.place import ANYWHERE, Place
from trims.core.units import parse_bytes
from trims.manifests.addresses import check_address, local_artifact
from trims.manifests.fields import CALL, about, check_inside, matching, one_of, parse, written
from trims.manifests.packages import PACKAGE_SCHEMA, parse_package
from trims.manifests.predictor import PredictorSettings, Seconds
from trims.manifests.serving import TensorType
from trims.manifests.step_fields import parse_steps
from trims.manifests.steps import Step, check_flow
from trims.manifests.tensor_fields import parse_inputs, parse_outputs

#: Names that repositories of Triton, KServe and MLServer have. Names that differ in case only are two models.
_NAME = r"^[A-Za-z0-9_]([A-Za-z0-9._-]{0,126}[A-Za-z0-9_])?\Z"
#: `1.2.3`, `v1.2.3`, `2024-11-01`, or a whole number as in Triton's repositories, whose tools understand no other.
VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\Z"
#: More than 128 decimal digits have; Python prints no number of any length.
_MAX_VERSION_BITS = 426
_SHA256 = r"^[0-9a-f]{64}\Z"
FRAMEWORKS = ("torch", "transformers", "onnxruntime", "mxnet", "numpy")
PERSIST = ("auto", "always", "never")
TRUSTS = ("identity", "verified")
_INPUTS, _OUTPUTS = ({"type": "array", "items": {"$ref": f"#/$defs/{kind}"}} for kind in ("Input", "Output"))
_STEPS = {"$ref": "#/$defs/steps"}


def text_of_version(raw: object, where: str) -> str:
    """A version as text, a whole number as its digits; empty if it is None.

    Raises:
        ManifestError: The version is something else, such as the number 1.10, which has become 1.1 already.
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


def _version(raw: object, where: str) -> str:
    if raw == "":
        raise ManifestError(f"{where}: is empty; write a version such as '1.0', or leave it out")
    return text_of_version(raw, where.removesuffix(": version")) or "0.0.0"


def _path(raw: object, where: str) -> object:
    if isinstance(raw, str) and raw and not raw.startswith("/"):
        check_inside(raw)
    return _unless_empty(raw, where)


def _address(raw: object, where: str) -> object:
    del where
    if not isinstance(raw, str):
        return raw
    return None if raw == "" else check_address(raw)


def _digests(raw: object, where: str) -> object:
    for file, digest in raw.items() if isinstance(raw, Mapping) else ():
        check_inside(str(file))
        if not isinstance(digest, str) or not re.match(_SHA256, digest):
            raise ManifestError(f"{where} of {file!r} must be 64 lower-case hex digits")
    return raw


def _unless_empty(raw: object, where: str) -> object:
    del where
    return None if raw == "" else raw


def _place(raw: object, where: str) -> object:
    del where
    if not isinstance(raw, str):
        return raw
    return None if raw == ANYWHERE else Place.wanted(raw)


def _size(raw: Any, where: str) -> int:
    del where
    return parse_bytes(raw)


class Framework(Struct, frozen=True, forbid_unknown_fields=True):
    """Framework that runs the model."""

    name: Annotated[str, one_of(FRAMEWORKS)]
    version: Annotated[str, about("A version constraint such as >=1.22; empty for any.")] = ""


class Builder(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that makes the artifact."""

    call: Annotated[str, matching(CALL, "package.module:function", "package.module:function")]
    args: Annotated[Mapping[str, Any], about("Its keyword arguments.")] = {}


class ArtifactSource(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the artifact comes from: exactly one of `path`, `package`, `builder`, `uri` and `model`."""

    path: Annotated[str | None, written(_path, {"type": "string"}, "Absolute, or inside the manifest's folder.")] = None
    package: Annotated[tuple[str, str] | None, written(parse_package, PACKAGE_SCHEMA)] = None
    builder: Annotated[Builder | None, about("Makes the files once.")] = None
    uri: Annotated[
        str | None,
        written(
            _address,
            {"type": "string", "pattern": "^[a-z][a-z0-9+.-]+:"},
            "An address: https://, s3://bucket/key, gs://, az://, hf://org/name@revision; also file:, pkg:// and "
            "build://, for path, package and builder.",
        ),
    ] = None
    model: Annotated[
        str | None,
        written(
            _unless_empty,
            {"type": "string", "pattern": _NAME},
            "The artifact of another registered model, whatever that is at the moment, and kept as that model says.",
        ),
    ] = None
    format: Annotated[str | None, written(_unless_empty, {"type": "string"}, "Converter to use; absent: detected.")] = (
        None
    )
    sha256: Annotated[
        Mapping[str, str],
        written(
            _digests,
            {"type": "object", "additionalProperties": {"type": "string", "pattern": _SHA256}},
            "File name to hex digest, for files whose publisher states one.",
        ),
    ] = {}
    allow_pickle: Annotated[
        bool, about("Let code inside the artifact run, in the converter child; of a pushed image, where it is opened.")
    ] = False
    trust: Annotated[
        str,
        one_of(TRUSTS, "verified: hash the files before their first reader has them; identity: as the daemon is set."),
    ] = "identity"
    options: Annotated[Mapping[str, Any], about("For the converter of the format.")] = {}

    def __post_init__(self) -> None:
        ways = (self.path, self.package, self.builder, self.uri, self.model)
        if sum(each is not None for each in ways) != 1:
            raise ValueError("needs exactly one of path, package, builder, uri and model")
        if self.model is None:
            return
        if not re.match(_NAME, self.model):
            raise ValueError(f"'model' is {self.model!r:.80}; write the name of a registered model")
        for name in ("format", "sha256", "allow_pickle", "options"):
            if getattr(self, name):
                raise ValueError(f"has 'model' and {name!r}, which that model states; leave {name!r} out")


class ResidencySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to keep the model where."""

    place: Annotated[
        Place | None,
        written(
            _place,
            {"type": "string", "pattern": "^(auto|cpu|disk|file|cloud|gpu(:[0-9]{1,3})?)$"},
            "Where an open without a place leads; absent or auto: wherever on the host the image lies; gpu: the device "
            "where it lies, or that has room.",
        ),
    ] = None
    pin: Annotated[bool, about("Never evict it from there; without a place, from shared memory.")] = False
    keep_alive_s: Annotated[
        Seconds | None, about("Seconds an idle replica stays: absent until the room is needed, 0 not at all.")
    ] = None
    persist: Annotated[
        str, one_of(PERSIST, "Whether a disk image is kept; auto: when the artifact had to be converted.")
    ] = "auto"
    workspace_bytes: Annotated[
        int | None,
        written(
            _size,
            {"type": ["integer", "string"], "minimum": 0},
            "GPU memory each process needs beside the weights, such as 512MiB; measured if not stated.",
        ),
    ] = None


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """One model."""

    name: Annotated[
        str, matching(_NAME, "up to 128 letters, digits, '.', '_' and '-'", "What the model is opened as; case counts.")
    ]
    artifact: ArtifactSource
    version: Annotated[
        Annotated[str, matching(VERSION_PATTERN, "letters, digits, '.', '_', '+' and '-'")],
        written(
            _version,
            {"anyOf": [{"type": "string", "pattern": VERSION_PATTERN}, {"type": "number", "minimum": 0}]},
            "1.2.3, v1.2.3, 2024-11-01, 1 or 1.10: in YAML without quotes, too, and kept as it is written.",
        ),
    ] = "0.0.0"
    description: str = ""
    license: str = ""
    framework: Framework | None = None
    residency: ResidencySettings = msgspec.field(default_factory=ResidencySettings)
    attributes: Mapping[str, Any] = {}
    predictor: PredictorSettings = msgspec.field(default_factory=PredictorSettings)
    inputs: Annotated[
        tuple[TensorType, ...],
        written(parse_inputs, _INPUTS, "What a request must bring; absent: what the predictor states, or anything."),
    ] = ()
    preprocess: Annotated[
        tuple[Step, ...], written(parse_steps, _STEPS, "From a request's tensors to the predictor's.")
    ] = ()
    postprocess: Annotated[
        tuple[Step, ...], written(parse_steps, _STEPS, "From the predictor's tensors to the answer's.")
    ] = ()
    outputs: Annotated[tuple[TensorType, ...], written(parse_outputs, _OUTPUTS, "What an answer has.")] = ()
    #: The folder that relative paths start from, empty if there is none; no field of the document.
    origin: str = ""

    def __post_init__(self) -> None:
        check_flow(self.preprocess, self.inputs, f"{self.name}: preprocess")
        if self.artifact.model is not None and self.residency != ResidencySettings():
            raise ValueError(f"has 'residency', which the model {self.artifact.model!r} states; leave it out")
        if self.artifact.model == self.name:
            raise ValueError("its artifact is its own; name another model")
        for name in ("inputs", "outputs", "preprocess", "postprocess") if self.predictor.handler else ():
            if getattr(self, name):
                raise ValueError(f"has {name!r} and a handler, which takes an event and nothing else; leave it out")


def _without_local_address(raw: object) -> object:
    """Return a manifest whose address of something on this machine is written as `path`, `package` or `builder`."""
    artifact = raw.get("artifact") if isinstance(raw, Mapping) else None
    uri = artifact.get("uri") if isinstance(artifact, Mapping) else None
    try:
        local = local_artifact(uri) if isinstance(uri, str) else None
    except (CallerError, ValueError) as error:
        raise ManifestError(f"manifest: artifact.uri: {error}") from error
    if local is None or not isinstance(raw, Mapping) or not isinstance(artifact, Mapping):
        return raw
    if any(artifact.get(each) is not None for each in ("path", "package", "builder")):
        return raw  # refused as more than one
    return {**raw, "artifact": {**{name: value for name, value in artifact.items() if name != "uri"}, **local}}


def parse_manifest(raw: object, origin: str = "") -> Manifest:
    """Check a mapping as read from YAML. Raises ManifestError naming the field and the remedy."""
    name = raw.get("name") if isinstance(raw, Mapping) else None
    stated = isinstance(name, str) and re.match(_NAME, name)
    made = parse(Manifest, _without_local_address(raw), str(name) if stated else "manifest")
    return msgspec.structs.replace(made, origin=origin)
