"""Steps of a manifest: from a request's tensors to those of the predictor (`preprocess`), and back (`postprocess`).

Here the lists of a manifest become checked, frozen `Step`s, whose fields are complete: what the manifest leaves out has
its default. Not covered: what a step does (`trims_predictors.transforms`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import ManifestError
from trims.manifests.fields import CALL, Fields, check_inside, parse_package
from trims.manifests.serving import ITEM_BYTES, TENSOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.manifests.serving import TensorType

#: The two kinds of steps that are Python functions: one that is named, and one that stands in the manifest.
CALL_STEP, SOURCE_STEP = "call", "source"
#: Steps of one list.
MOST_STEPS = 64
#: Bytes of one list as JSON: a predictor gets both lists in one message, which holds 96 KiB.
_MOST_LETTERS = 24 << 10
_MOST_PIXELS = 1 << 26
_FUNCTION = re.compile(r"[A-Za-z_]\w*\Z")
_TOKENS = ("input_ids", "attention_mask", "token_type_ids")
_RANKED = ("scores", "indices", "labels")


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        kind: A key of `KINDS`, `call` or `source`.
        fields: As the manifest states them, with defaults; `input` is the tensor it takes, `outputs` those it gives.
    """

    kind: str
    fields: Mapping[str, Any]

    @property
    def is_function(self) -> bool:
        """Whether it is a function of the manifest's author, which sees all tensors."""
        return self.kind in (CALL_STEP, SOURCE_STEP)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors it takes, in the order of its arguments; empty for a function."""
        return tuple(name for name in (self.fields.get("input"), self.fields.get("mask")) if name)

    @property
    def writes(self) -> tuple[str, ...]:
        """The tensors it gives; empty for a function."""
        return tuple(self.fields.get("outputs", ()))


def parse_steps(raw: object, where: str) -> tuple[Step, ...]:
    """Check the field `preprocess` or `postprocess`: a list with one step each. Raises ManifestError."""
    if raw is None:
        return ()
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


def check_flow(steps: Sequence[Step], inputs: Sequence[TensorType], where: str) -> None:
    """Follow the tensors that a request brings through `preprocess`, up to the first function.

    Raises ManifestError for a step that reads a tensor which is not there, or whose data type it cannot take.
    """
    there: dict[str, str] = {each.name: each.dtype for each in inputs}
    for index, step in enumerate(steps if inputs else ()):
        if step.is_function:
            return
        label = f"{where}[{index}] {step.kind}"
        for name in step.reads:
            if name not in there:
                raise ManifestError(
                    f"{label}: reads the tensor {name!r}, which neither `inputs` nor an earlier step gives; there are "
                    f"{', '.join(there) or 'none'}"
                )
            if there[name] and (there[name] == "BYTES") != (step.kind in _OF_BYTES):
                wanted = "BYTES" if step.kind in _OF_BYTES else "numbers"
                raise ManifestError(f"{label}: takes {wanted}, but the input {name!r} is stated as {there[name]}")
        if not step.fields["keep"]:
            del there[step.fields["input"]]
        there.update(dict.fromkeys(step.writes, ""))


def _step(raw: object, where: str) -> Step:
    fields = Fields(raw, where)
    kinds = [kind for kind in (*KINDS, CALL_STEP, SOURCE_STEP) if isinstance(raw, dict) and kind in raw]
    if len(kinds) != 1:
        known = ", ".join((*KINDS, CALL_STEP, SOURCE_STEP))
        there = ", ".join(kinds)
        if not kinds:
            there = f"{', '.join(map(repr, raw))}, which is none of them" if isinstance(raw, dict) and raw else "none"
        raise ManifestError(f"{where}: must name exactly one step of {known}; it names {there}")
    kind = kinds[0]
    if kind == CALL_STEP:
        call = fields.text("call", pattern=CALL, hint="package.module:function")
        step = Step(kind, {"call": call, "options": fields.mapping("options")})
    elif kind == SOURCE_STEP:
        step = Step(kind, _source(fields))
    else:
        step = Step(kind, _built_in(kind, fields.take(kind), f"{where} {kind}"))
    fields.done()
    return step


def _source(fields: Fields) -> dict[str, Any]:
    return {
        "source": fields.text("source"),
        "function": fields.text("function", "step", pattern=_FUNCTION, hint="the name of a function in the source"),
        "options": fields.mapping("options"),
    }


def _built_in(kind: str, raw: object, where: str) -> dict[str, Any]:
    fields = Fields(raw, where)
    given: dict[str, Any] = {"input": _tensor(fields, "input"), "keep": fields.flag("keep")}
    given |= KINDS[kind](fields)
    if "outputs" not in given:
        given["outputs"] = [_tensor(fields, "output", given["input"])]
    fields.done()
    if given["keep"] and given["input"] in given["outputs"]:
        raise ManifestError(f"{where}: 'keep' needs an 'output' of another name than {given['input']!r}")
    return given


def _tensor(fields: Fields, key: str, default: str | None = None) -> str:
    return fields.text(key, default, pattern=TENSOR, hint="the name of a tensor", required=default is None)


def _file(fields: Fields, key: str, *, required: bool) -> dict[str, Any] | None:
    """A file beside the manifest, as text, or inside a package: `{package: {name: ..., path: ...}}`."""
    raw = fields.take(key)
    where = f"{fields.where}: {key}"
    if raw is None:
        if required:
            raise ManifestError(f"{fields.where}: the field {key!r} is missing; name a file beside the manifest")
        return None
    if isinstance(raw, str):
        return {"path": raw if raw.startswith("/") else check_inside(raw, where)}
    inner = Fields(raw, where)
    found = parse_package(inner.take("package"), f"{where}.package")
    inner.done()
    if found is None:
        raise ManifestError(f"{where}: must be a path, or {{package: {{name: ..., path: ...}}}}")
    return {"package": list(found)}


def _sides(fields: Fields, key: str) -> list[int] | None:
    """A height and a width, from one number for both or from a list."""
    raw = fields.take(key)
    if raw is None:
        return None
    given = raw if isinstance(raw, list | tuple) else [raw, raw]
    checked = [isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= 1 << 14 for side in given]
    if len(given) != 2 or not all(checked):
        raise ManifestError(f"{fields.where}: {key!r} is {raw!r}; write one side, or [height, width], up to {1 << 14}")
    return list(given)


def _decode_image(fields: Fields) -> dict[str, Any]:
    return {
        "layout": fields.choice("layout", ("RGB", "BGR", "L"), "RGB"),
        "upright": fields.flag("upright"),
        "max_pixels": fields.count("max_pixels", _MOST_PIXELS, least=1, most=1 << 30),
    }


def _resize(fields: Fields) -> dict[str, Any]:
    size, shorter = _sides(fields, "size"), fields.count("shorter_side", 0, least=1, most=1 << 14)
    if (size is None) == (shorter == 0):
        raise ManifestError(f"{fields.where}: needs 'size' or 'shorter_side', and not both")
    return {
        "size": size,
        "shorter_side": shorter,
        "filter": fields.choice("filter", ("bilinear", "bicubic"), "bilinear"),
    }


def _center_crop(fields: Fields) -> dict[str, Any]:
    size = _sides(fields, "size")
    if size is None:
        raise ManifestError(f"{fields.where}: the field 'size' is missing; write one side, or [height, width]")
    return {"size": size}


def _normalize(fields: Fields) -> dict[str, Any]:
    made: dict[str, Any] = {
        "scale": fields.number("scale", 1.0),
        "mean": list(fields.numbers("mean")),
        "std": list(fields.numbers("std")),
        "channels": fields.choice("channels", ("last", "first"), "last"),
    }
    if 0.0 in made["std"]:
        raise ManifestError(f"{fields.where}: 'std' has a zero, which values would be divided by")
    mean, std = len(made["mean"]), len(made["std"])
    if mean > 1 and std > 1 and mean != std:
        raise ManifestError(
            f"{fields.where}: 'mean' has {mean} numbers and 'std' {std}; write one for each channel, or one for all"
        )
    return made


def _layout(fields: Fields) -> dict[str, Any]:
    return {"to": fields.choice("to", ("CHW", "HWC", "NCHW", "NHWC"))}


def _cast(fields: Fields) -> dict[str, Any]:
    return {"dtype": fields.choice("dtype", tuple(name for name in ITEM_BYTES if name != "BYTES"))}


def _tokenize(fields: Fields) -> dict[str, Any]:
    outputs = fields.texts("outputs", _TOKENS[:2], pattern=TENSOR, hint=f"some of {', '.join(_TOKENS)}")
    if not outputs:
        raise ManifestError(f"{fields.where}: 'outputs' is an empty list; write some of {', '.join(_TOKENS)}")
    for name in outputs:
        if name not in _TOKENS or outputs.count(name) > 1:
            raise ManifestError(f"{fields.where}: 'outputs' has {name!r}; write each of {', '.join(_TOKENS)} once")
    return {
        "tokenizer": _file(fields, "tokenizer", required=True),
        "max_length": fields.count("max_length", 512, least=1),
        "truncation": fields.flag("truncation", default=True),
        "padding": fields.choice("padding", ("longest", "max_length"), "longest"),
        "pad_token": fields.text("pad_token", ""),
        "special_tokens": fields.flag("special_tokens", default=True),
        "outputs": list(outputs),
    }


def _along(fields: Fields) -> dict[str, Any]:
    """Steps along one axis; negative ones count from the end."""
    raw = fields.take("axis")
    axis = -1 if raw is None else raw
    if isinstance(axis, bool) or not isinstance(axis, int) or not -32 <= axis < 32:
        raise ManifestError(f"{fields.where}: 'axis' must be a whole number from -32 to 31, not {raw!r}")
    return {"axis": axis}


def _top_k(fields: Fields) -> dict[str, Any]:
    labels = _file(fields, "labels", required=False)
    names = Fields(fields.mapping("outputs"), f"{fields.where}: outputs")
    given = _RANKED if labels else _RANKED[:2]
    outputs = [_tensor(names, key, key) for key in given]
    names.done()
    if len(set(outputs)) != len(outputs):
        raise ManifestError(f"{fields.where}: 'outputs' gives two tensors one name")
    return {"k": fields.count("k", 5, least=1), "labels": labels, "outputs": outputs}


def _argsort(fields: Fields) -> dict[str, Any]:
    return {**_along(fields), "descending": fields.flag("descending")}


def _mean_pool(fields: Fields) -> dict[str, Any]:
    return {"mask": _tensor(fields, "mask", "attention_mask")}


#: Steps that take BYTES; all others take numbers.
_OF_BYTES = frozenset({"decode_image", "tokenize"})
#: Built-in steps, and what checks the fields of each beside `input`, `output` and `keep`.
KINDS: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "decode_image": _decode_image,
    "resize": _resize,
    "center_crop": _center_crop,
    "normalize": _normalize,
    "layout": _layout,
    "cast": _cast,
    "tokenize": _tokenize,
    "softmax": _along,
    "top_k": _top_k,
    "argsort": _argsort,
    "mean_pool": _mean_pool,
    "l2_normalize": _along,
}
