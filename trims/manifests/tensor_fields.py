"""Fields of an input or an output as a manifest states them."""

from typing import Annotated

import msgspec
from msgspec import Struct

from trims.core.errors import ManifestError
from trims.manifests.fields import about, matching, one_of, parse
from trims.manifests.serving import ANY, ITEM_BYTES, MOST_DIMENSIONS, MOST_LENGTH, TENSOR, TensorType, check_names

TensorName = Annotated[str, matching(TENSOR.pattern, "the name of a tensor: 1 to 256 printable characters")]
_PATH = matching(r"^[^\x00]{1,4096}\Z", "the path of a file", "File with one label a line, for classification.")


class Input(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One input."""

    name: TensorName
    dtype: Annotated[str, one_of(tuple(ITEM_BYTES))]
    shape: Annotated[
        tuple[Annotated[int, about("", ge=ANY, le=MOST_LENGTH)], ...],
        about("Lengths of its dimensions; -1 stands for any.", max_length=MOST_DIMENSIONS),
    ]
    layout: Annotated[str, one_of(("NCHW", "NHWC"), "Of an image.")] = ""

    def __post_init__(self) -> None:
        if self.layout and len(self.shape) not in (3, 4):
            raise ValueError(f"'layout' is of an image, whose shape has 3 or 4 lengths, not {len(self.shape)}")


class Output(Input, frozen=True, kw_only=True):
    """One output."""

    labels: Annotated[str, _PATH] = ""


def parse_inputs(raw: object, where: str) -> tuple[TensorType, ...]:
    """Check the field `inputs`: a list of mappings. Raises ManifestError."""
    return _parse(Input, raw, where)


def parse_outputs(raw: object, where: str) -> tuple[TensorType, ...]:
    """Check the field `outputs`: a list of mappings. Raises ManifestError."""
    return _parse(Output, raw, where)


def _parse(kind: type[Input], raw: object, where: str) -> tuple[TensorType, ...]:
    if not isinstance(raw, list | tuple):
        raise ManifestError(f"{where}: must be a list of name, dtype and shape, not {raw!r:.80}")
    stated = [parse(kind, each, f"{where}[{index}]") for index, each in enumerate(raw)]
    found = tuple(TensorType(**msgspec.structs.asdict(each)) for each in stated)
    check_names(found, where)
    return found
