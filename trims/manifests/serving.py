"""Requests, as a manifest describes them: the tensors that go in and come out, and the predictor between them.

Data types have the names of the Open Inference Protocol (`FP32`, `INT64`, `BYTES` for text), because that is what a
request states. Not covered: the values themselves (`trims_predictors.tensors`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trims.core.errors import ManifestError
from trims.manifests.fields import CALL, Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Data type -> bytes of one element; None for BYTES, whose elements have lengths of their own.
ITEM_BYTES: Mapping[str, int | None] = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": None,
}  # fmt: skip
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
#: The name of a tensor.
TENSOR = re.compile(r"[^\x00-\x1f]{1,256}\Z")
_PLUGIN = re.compile(r"[\w.-]{1,128}\Z")
#: Dimensions of one tensor; numpy can have no more.
MOST_DIMENSIONS = 32
ANY = -1
#: The one length of a shape of which not even the number of dimensions is known.
ANY_RANK = -2
_PATH = re.compile(r"[^\x00]{1,4096}\Z")
_LAYOUT = re.compile(r"NCHW\Z|NHWC\Z")


@dataclass(frozen=True, slots=True)
class TensorType:
    """One input or output.

    Attributes:
        name: As requests name it.
        dtype: A name of the Open Inference Protocol.
        shape: Lengths of its dimensions; -1 for any. `(-2,)` if a graph does not say how many dimensions there are.
        labels: Of an output: file with one line for each of its elements, relative to the manifest's folder; or empty.
        layout: Of an image: `NCHW` or `NHWC`, with or without the batch dimension in `shape`; empty if not stated.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = field(default="", compare=False)
    labels: str = field(default="", compare=False)

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape is one."""
        return self.shape == (ANY_RANK,) or (
            len(shape) == len(self.shape)
            and all(wanted in (ANY, given) for wanted, given in zip(self.shape, shape, strict=True))
        )


#: Inputs of a graph, and its outputs, that a signature may have.
MOST_TENSORS = 1024


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model.

    Attributes:
        inputs: Empty if they are not known.
        outputs: Empty in the same way.
        seen: They are those of a run, with any length for each dimension: others may be right as well.
    """

    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    seen: bool = False

    @property
    def is_valid(self) -> bool:
        """Whether names, types, shapes and their numbers are such as requests may have."""
        return all(
            len(tensors) <= MOST_TENSORS
            and len({each.name for each in tensors}) == len(tensors)
            and all(_may_be_requested(each) for each in tensors)
            for tensors in (self.inputs, self.outputs)
        )


NO_SIGNATURE = Signature()


def _may_be_requested(tensor: TensorType) -> bool:
    lengths = len(tensor.shape) <= MOST_DIMENSIONS and all(ANY <= length < 1 << 62 for length in tensor.shape)
    lengths = lengths or tensor.shape == (ANY_RANK,)
    return lengths and tensor.dtype in ITEM_BYTES and TENSOR.match(tensor.name) is not None


#: Levels of priority of one model.
MOST_LEVELS = 64


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """How processes answer with a model.

    Attributes:
        call: `package.module:Class` of the predictor. Without it, `name` and `function`: the one that trims has for
            the framework.
        options: What the class gets in `context.options`, and the function as keyword arguments.
        preload: Modules that templates import before they fork predictors of this model.
        instances: How many predictors may run at once.
        threads: Threads of one predictor; 0 for as many as there are processors.
        max_batch_size: Requests are put together along their first dimension up to this many rows; 0: never.
        batch_delay_s: How long a request waits for others to be put together with.
        keep_alive_s: Seconds that an idle predictor stays; None: until its slot is needed.
        deadline_s: Seconds that one run may take before its predictor is ended.
        hot: How many predictors have loaded the model ahead of need; None: as its demand has it.
        name: Of a predictor that a package has installed as an entry point of the group `trims.predictors`.
        function: `package.module:function`, called with the weights and the inputs of each request.
        priority_levels: How many levels of priority requests may name, 1 for the first; 0: none.
        default_priority_level: The level of a request that names none.
    """

    call: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    instances: int = 1
    threads: int = 0
    max_batch_size: int = 0
    batch_delay_s: float = 0.0
    keep_alive_s: float | None = None
    deadline_s: float | None = None
    name: str = ""
    function: str = ""
    hot: int | None = None
    priority_levels: int = 0
    default_priority_level: int = 0


def parse_predictor(raw: object, name: str) -> PredictorSettings:
    """Check the field `predictor`. Raises ManifestError."""
    if raw is None:
        return PredictorSettings()
    fields = Fields(raw, f"{name}: predictor")
    levels = fields.count("priority_levels", 0, most=MOST_LEVELS)
    settings = PredictorSettings(
        call=fields.text("call", "", pattern=CALL, hint="package.module:Class"),
        name=fields.text("name", "", pattern=_PLUGIN, hint="the name of an entry point of trims.predictors"),
        function=fields.text("function", "", pattern=CALL, hint="package.module:function"),
        options=fields.mapping("options"),
        preload=fields.texts("preload", pattern=_MODULE, hint="the name of a module"),
        instances=fields.count("instances", 1, least=1, most=1024),
        threads=fields.count("threads", 0, most=1024),
        max_batch_size=fields.count("max_batch_size", 0),
        batch_delay_s=fields.seconds("batch_delay_s") or 0.0,
        priority_levels=levels,
        default_priority_level=fields.count(
            "default_priority_level", (levels + 1) // 2, least=min(levels, 1), most=levels
        ),
        keep_alive_s=fields.seconds("keep_alive_s"),
        deadline_s=fields.seconds("deadline_s"),
        hot=None if (hot := fields.count("hot", -1, most=64)) < 0 else hot,
    )
    fields.done()
    stated = [key for key in ("call", "name", "function") if getattr(settings, key)]
    if len(stated) > 1:
        raise ManifestError(f"{name}: predictor has {' and '.join(stated)}; state one of them")
    return settings


def parse_tensors(raw: object, where: str, *, any_rank: bool = False) -> tuple[TensorType, ...]:
    """Check the field `inputs` or `outputs`: a list of mappings. Raises ManifestError.

    `any_rank` allows the shape of any number of dimensions, which a graph may have and a manifest may not.
    """
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple):
        raise ManifestError(f"{where}: must be a list of name, dtype and shape, not {type(raw).__name__}")
    labels = where.endswith("outputs")
    found = tuple(
        _tensor(each, f"{where}[{index}]", labels=labels, any_rank=any_rank) for index, each in enumerate(raw)
    )
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise ManifestError(f"{where}: {name!r} is there twice; give each tensor a name of its own")
    return found


def _tensor(raw: object, where: str, *, labels: bool, any_rank: bool) -> TensorType:
    fields = Fields(raw, where)
    made = TensorType(
        fields.text("name", pattern=TENSOR, hint="1 to 256 printable characters", required=True),
        fields.choice("dtype", tuple(ITEM_BYTES)),
        _shape(fields.take("shape"), where, any_rank=any_rank),
        fields.text("layout", "", pattern=_LAYOUT, hint="NCHW or NHWC"),
        fields.text("labels", "", pattern=_PATH, hint="the path of a file with one label a line") if labels else "",
    )
    fields.done()
    if made.layout and len(made.shape) not in (3, 4):
        raise ManifestError(f"{where}: 'layout' is of an image, whose shape has 3 or 4 lengths, not {len(made.shape)}")
    return made


def _shape(raw: object, where: str, *, any_rank: bool) -> tuple[int, ...]:
    if any_rank and raw in ([ANY_RANK], (ANY_RANK,)):
        return (ANY_RANK,)
    if not isinstance(raw, list | tuple) or len(raw) > MOST_DIMENSIONS:
        raise ManifestError(f"{where}: 'shape' must be a list of at most {MOST_DIMENSIONS} lengths, not {raw!r}")
    for length in raw:
        if isinstance(length, bool) or not isinstance(length, int) or length < ANY:
            raise ManifestError(f"{where}: 'shape' has {length!r}; write a length, or -1 for any")
    return tuple(raw)
