"""A look into an artifact without a daemon: format, framework, inputs and outputs, tensors. Nothing is converted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from trims.core.errors import TrimsError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.formats.base import Artifact, is_in_place_format, states_signature
from trims.formats.conversion.conversion import converter, detect
from trims.formats.plugins import naming_foreign
from trims.manifests.serving import ANY_RANK, NO_SIGNATURE, Signature

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trims.formats.base import Converter

#: Format -> the framework that runs it. Of the others, one has to know more than the file says.
FRAMEWORKS = {"onnx": "onnxruntime", "mxnet": "mxnet"}


class Tensors(NamedTuple):
    """Tensors of an artifact.

    Attributes:
        nbytes: Bytes of the tensors that are not tied.
        dtypes: How many have each data type, the most frequent first.
    """

    number: int
    nbytes: int
    dtypes: Mapping[str, int]


class Found(NamedTuple):
    """Facts about an artifact.

    Attributes:
        files: All of it, the main one first.
        framework: Framework that runs it; empty if the format does not say it.
        signature: Inputs and outputs as the graph states them; empty if it does not, or as no request can have them.
        tensors: Tensors; None if only a conversion can list them.
        why_not: Why they are not listed; empty if they are.
    """

    format: str
    files: tuple[Path, ...]
    framework: str
    signature: Signature
    tensors: Tensors | None
    why_not: str


def look(main: Path, options: Mapping[str, Any], format_name: str = "") -> Found:
    """Look into an artifact, reading headers and graphs and no weights.

    Args:
        format_name: Format that the manifest states; empty to detect it.

    Raises ArtifactError or NotSupportedError for what no converter takes.
    """
    chosen = converter(format_name) if format_name else detect(main)
    with naming_foreign(chosen.format, [main]):
        files = chosen.files(main, options)
        artifact = Artifact(chosen.format, files, dict(options))
        tensors, why_not = _tensors(chosen, artifact)
        signature = _signature(chosen, artifact)
    return Found(chosen.format, files, FRAMEWORKS.get(chosen.format, ""), signature, tensors, why_not)


def _tensors(chosen: Converter, artifact: Artifact) -> tuple[Tensors | None, str]:
    if not is_in_place_format(chosen) or not chosen.may_be_in_place(artifact.options):
        return None, "the format lists them when it is converted"
    try:
        sources = chosen.contents(artifact).sources
    except TrimsError as error:
        return None, str(error)
    nbytes = sum(DTYPE_BYTES[each.dtype] * element_count(each.shape) for each in sources if each.tied_to is None)
    return Tensors(len(sources), nbytes, dict(Counter(each.dtype for each in sources).most_common())), ""


def _signature(chosen: Converter, artifact: Artifact) -> Signature:
    if not states_signature(chosen):
        return NO_SIGNATURE
    try:
        found = chosen.signature(artifact)
    except TrimsError:
        return NO_SIGNATURE
    sayable = all(each.shape != (ANY_RANK,) for each in (*found.inputs, *found.outputs))
    return found if sayable and found.is_valid else NO_SIGNATURE
