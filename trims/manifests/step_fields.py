"""Fields of each step as a manifest states them, and how lists of steps are read."""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from trims.core.errors import ManifestError
from trims.manifests.fields import CALL, about, check_inside, matching, one_of, parse, written
from trims.manifests.packages import PACKAGE_SCHEMA, parse_package
from trims.manifests.serving import ITEM_BYTES
from trims.manifests.steps import CALL_STEP, SOURCE_STEP, Step
from trims.manifests.tensor_fields import TensorName

#: Steps of one list.
MOST_STEPS = 64
#: Bytes of one list as JSON: a predictor gets both lists in one message, which holds 96 KiB.
_MOST_LETTERS = 24 << 10
_RATIO = re.compile(r"\d+(\.\d+)?/\d+(\.\d+)?\Z")
_TOKENS = ("input_ids", "attention_mask", "token_type_ids")
_MOST_SIDE = 1 << 14
_A_FILE = "the path of a file, or {package: {name: ..., path: ...}}"


def _number(raw: object, where: str) -> float:
    del where
    value = raw
    if isinstance(value, str) and _RATIO.match(value):
        above, _, below = value.partition("/")
        value = float(above) / float(below) if float(below) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"is {raw!r:.80}; write a finite number, or one such as 1/255")
    return float(value)


def _numbers(raw: object, where: str) -> list[float]:
    given = raw if isinstance(raw, list | tuple) else [raw]
    if not given:
        raise ValueError("is an empty list; write one number for each channel, or one")
    return [_number(each, where) for each in given]


def _sides(raw: object, where: str) -> list[int]:
    """A height and a width, from one number for both or from a list."""
    del where
    given = raw if isinstance(raw, list | tuple) else [raw, raw]
    checked = [isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= _MOST_SIDE for side in given]
    if len(given) != 2 or not all(checked):
        raise ValueError(f"is {raw!r:.80}; write one side, or [height, width], up to {_MOST_SIDE}")
    return list(given)


def _file(raw: object, where: str) -> dict[str, Any]:
    """A file beside the manifest, as text, or inside a package: `{package: {name: ..., path: ...}}`."""
    if isinstance(raw, str):
        return {"path": raw if raw.startswith("/") else check_inside(raw)}
    if not isinstance(raw, Mapping) or raw.keys() != {"package"} or raw["package"] is None:
        raise ValueError(f"is {raw!r:.80}; write {_A_FILE}")
    return {"package": list(parse_package(raw["package"], f"{where}.package"))}


def _either(*ways: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(ways)}


_RATIO_SCHEMA = _either({"type": "number"}, {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?/[0-9]+(\\.[0-9]+)?$"})
_NUMBERS = _either({"type": "number"}, _RATIO_SCHEMA, {"type": "array", "minItems": 1, "items": _RATIO_SCHEMA})
_SIDE = {"type": "integer", "minimum": 1, "maximum": _MOST_SIDE}
_TWO_SIDES = _either(_SIDE, {"type": "array", "minItems": 2, "maxItems": 2, "items": _SIDE})
_IN_PACKAGE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["package"],
    "properties": {"package": PACKAGE_SCHEMA},
}
Numbers = Annotated[list[float], written(_numbers, _NUMBERS, "One for all channels, or one for each.")]
Sides = Annotated[
    list[int], written(_sides, _TWO_SIDES, "One side, or height and width.", hint="one side, or [height, width]")
]
Axis = Annotated[int, about("Negative ones count from the end.", ge=-32, le=31)]
File = Annotated[
    dict[str, Any],
    written(_file, _either({"type": "string", "minLength": 1}, _IN_PACKAGE), "Beside the manifest.", hint=_A_FILE),
]


class _BuiltIn(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of all built-in steps."""

    input: TensorName
    keep: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields as a `Step` has them."""
        return msgspec.structs.asdict(self)


class _OneOutput(_BuiltIn, frozen=True, kw_only=True):
    """Fields of the steps that give one tensor; without `output` in place of the one that they take."""

    output: TensorName | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields as a `Step` has them: `outputs` for `output`."""
        made = msgspec.structs.asdict(self)
        made["outputs"] = [made.pop("output") or self.input]
        return made


class DecodeImage(_OneOutput, frozen=True, kw_only=True):
    """From the bytes of image files to images."""

    layout: Annotated[str, one_of(("RGB", "BGR", "L"))] = "RGB"
    upright: bool = False
    max_pixels: Annotated[int, about("", ge=1, le=1 << 30)] = 1 << 26


class Resize(_OneOutput, frozen=True, kw_only=True):
    """To a size, or to a length of the shorter side."""

    size: Sides | None = None
    shorter_side: Annotated[int, about("", ge=1, le=_MOST_SIDE)] = 0
    filter: Annotated[str, one_of(("bilinear", "bicubic"))] = "bilinear"

    def __post_init__(self) -> None:
        if (self.size is None) == (self.shorter_side == 0):
            raise ValueError("needs 'size' or 'shorter_side', and not both")


class CenterCrop(_OneOutput, frozen=True, kw_only=True):
    """The middle of an image."""

    size: Sides


class Normalize(_OneOutput, frozen=True, kw_only=True):
    """Times `scale`, less `mean`, divided by `std`."""

    scale: Annotated[float, written(_number, _RATIO_SCHEMA)] = 1.0
    mean: Numbers = []
    std: Numbers = []
    channels: Annotated[str, one_of(("last", "first"))] = "last"

    def __post_init__(self) -> None:
        if 0.0 in self.std:
            raise ValueError("'std' has a zero, which values would be divided by")
        mean, std = len(self.mean), len(self.std)
        if mean > 1 and std > 1 and mean != std:
            raise ValueError(f"'mean' has {mean} numbers and 'std' {std}; write one for each channel, or one for all")


class Layout(_OneOutput, frozen=True, kw_only=True):
    """Channels before height and width, or behind them."""

    to: Annotated[str, one_of(("CHW", "HWC", "NCHW", "NHWC"))]


class Cast(_OneOutput, frozen=True, kw_only=True):
    """Another data type."""

    dtype: Annotated[str, one_of([name for name in ITEM_BYTES if name != "BYTES"])]


class Tokenize(_BuiltIn, frozen=True, kw_only=True):
    """From texts to tokens."""

    tokenizer: File
    max_length: Annotated[int, about("", ge=1, le=1 << 20)] = 512
    truncation: bool = True
    padding: Annotated[str, one_of(("longest", "max_length"))] = "longest"
    pad_token: str = ""
    special_tokens: bool = True
    outputs: Annotated[
        list[Annotated[str, one_of(_TOKENS)]], about("", extra_json_schema={"minItems": 1, "uniqueItems": True})
    ] = msgspec.field(default_factory=lambda: list(_TOKENS[:2]))

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ValueError(f"'outputs' is an empty list; write some of {', '.join(_TOKENS)}")
        for name in self.outputs:
            if self.outputs.count(name) > 1:
                raise ValueError(f"'outputs' has {name!r}; write each of {', '.join(_TOKENS)} once")


class Along(_OneOutput, frozen=True, kw_only=True):
    """Along one axis."""

    axis: Axis = -1


class Ranked(Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the tensors that `top_k` gives."""

    scores: TensorName = "scores"
    indices: TensorName = "indices"
    labels: TensorName | None = None


class TopK(_BuiltIn, frozen=True, kw_only=True):
    """The k largest numbers along the last axis, with their labels if there is a file of them."""

    k: Annotated[int, about("", ge=1, le=1 << 20)] = 5
    labels: File | None = None
    outputs: Ranked = msgspec.field(default_factory=Ranked)

    def __post_init__(self) -> None:
        if self.outputs.labels and self.labels is None:
            raise ValueError("outputs: unknown field 'labels' without a file of labels; known are indices, scores")
        if len(set(self._names())) < len(self._names()):
            raise ValueError("'outputs' gives two tensors one name")

    def _names(self) -> list[str]:
        names = [self.outputs.scores, self.outputs.indices]
        return names if self.labels is None else [*names, self.outputs.labels or "labels"]

    def fields(self) -> dict[str, Any]:
        """Return the fields as a `Step` has them."""
        return {**msgspec.structs.asdict(self), "outputs": self._names()}


class Argsort(Along, frozen=True, kw_only=True):
    """The order of the numbers along an axis."""

    descending: bool = False


class MeanPool(_OneOutput, frozen=True, kw_only=True):
    """The mean of the vectors that a mask names."""

    mask: TensorName = "attention_mask"


class CallStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that is named."""

    call: Annotated[
        str, matching(CALL, "package.module:function", "package.module:function, called with (context, data).")
    ]
    options: Annotated[Mapping[str, Any], about("What the function gets in context.options.")] = {}


class SourceStep(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that stands in the manifest."""

    source: Annotated[str, about("Python that runs in a module of its own.")]
    function: Annotated[str, matching(r"^[A-Za-z_]\w*\Z", "the name of a function in the source")] = "step"
    options: Annotated[Mapping[str, Any], about("What the function gets in context.options.")] = {}


#: Built-in steps, and the fields of each.
KINDS: Mapping[str, type[_BuiltIn]] = {
    "decode_image": DecodeImage,
    "resize": Resize,
    "center_crop": CenterCrop,
    "normalize": Normalize,
    "layout": Layout,
    "cast": Cast,
    "tokenize": Tokenize,
    "softmax": Along,
    "top_k": TopK,
    "argsort": Argsort,
    "mean_pool": MeanPool,
    "l2_normalize": Along,
}
FUNCTIONS: Mapping[str, type[CallStep | SourceStep]] = {CALL_STEP: CallStep, SOURCE_STEP: SourceStep}


def parse_steps(raw: object, where: str) -> tuple[Step, ...]:
    """Check the field `preprocess` or `postprocess`: a list with one step each. Raises ManifestError."""
    if not isinstance(raw, list | tuple) or len(raw) > MOST_STEPS:
        raise ManifestError(f"{where}: must be a list of at most {MOST_STEPS} steps, such as `- softmax: {{input: x}}`")
    found = tuple(_step(each, f"{where}[{index}]") for index, each in enumerate(raw))
    letters = len(json.dumps([dict(each.fields) for each in found], default=str))
    if letters > _MOST_LETTERS:
        raise ManifestError(
            f"{where}: its steps have {letters} characters, {_MOST_LETTERS} are the most; put source into a module "
            "beside the manifest and name it by `call`"
        )
    return found


def _step(raw: object, where: str) -> Step:
    stated = raw if isinstance(raw, dict) else {}
    kinds = [kind for kind in (*KINDS, *FUNCTIONS) if kind in stated]
    if len(kinds) != 1:
        there = ", ".join(kinds)
        if not kinds:
            there = f"{', '.join(map(repr, stated))}, which is none of them" if stated else "none"
        known = ", ".join((*KINDS, *FUNCTIONS))
        raise ManifestError(f"{where}: must name exactly one step of {known}; it names {there}")
    kind = kinds[0]
    if kind in FUNCTIONS:
        return Step(kind, msgspec.structs.asdict(parse(FUNCTIONS[kind], raw, where)))
    if len(stated) > 1:
        unknown = next(each for each in stated if each != kind)
        raise ManifestError(f"{where}: unknown field {unknown!r:.80}; known are {kind}")
    fields = parse(KINDS[kind], stated[kind], f"{where} {kind}").fields()
    if fields["keep"] and fields["input"] in fields["outputs"]:
        raise ManifestError(f"{where} {kind}: 'keep' needs an 'output' of another name than {fields['input']!r}")
    return Step(kind, fields)
