"""Manifests written for people: what `trims add PATH` would register, with what a look into the artifact finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trims.control.artifacts import manifest_for
from trims.control.look import look
from trims.core.units import format_bytes
from trims.formats.transformers.folder import main_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trims.control.look import Found
    from trims.manifests.serving import TensorType

_WIDTH = 118
_NEXT = """\
#
# What is often wanted next; `trims schema` and docs/operations.md have all fields.
#version: 1.0.0
#description: What it is for
#residency:
#  place: cpu                 # where an open leads: cpu, disk or gpu:0; absent: wherever it lies
#  pin: true                  # never evict it
#  keep_alive_s: 3600         # seconds that it stays without use
#predictor:
#  instances: 2               # predictors that may run at once
#  max_batch_size: 16         # put requests together along their first dimension
#  deadline_s: 10             # seconds that one run may take
#  call: my_models:Predictor  # a class of one's own, beside this file
"""
#: Fields that a torch checkpoint needs before a predictor can run it.
_TORCH = """\
# A predictor needs to know which module the tensors belong to:
#framework: {name: torch}
#  and in `artifact`:
#  options: {module: my_models:build}  # a function that returns it, in a file beside this one or installed
"""


def written_manifest(path: Path, name: str | None, has: Callable[[str], bool]) -> tuple[str, str]:
    """Return the name of a model and the text of its manifest.

    Args:
        path: A file, or a folder with one.
        name: Name of the model; None for one made from the file's.
        has: Says of a framework whether an environment has it: another one is commented out.

    Raises what `manifest_for` and `look` raise.
    """
    raw = manifest_for(path, name)
    artifact = dict(raw["artifact"])
    stated = Path(artifact["path"])
    main = main_in(stated) if stated.is_dir() else stated
    found = look(main, artifact.get("options", {}), str(artifact.get("format", "")))
    artifact.setdefault("format", found.format)
    parts = [
        f"# By `trims manifest init` for {_one_line(str(path))}.\n",
        "# `trims validate FILE` checks it, `trims add FILE` registers it.\n",
        _dump({**raw, "artifact": artifact}),
        *_framework(raw, found, has),
        *_facts(found),
        *(_tensors(which, tensors) for which, tensors in _signature(found).items() if which not in raw),
        _NEXT,
    ]
    return str(raw["name"]), "".join(parts)


def _framework(raw: dict[str, Any], found: Found, has: Callable[[str], bool]) -> Iterable[str]:
    """Return the field `framework`, or what is to be said of it."""
    if "framework" in raw:
        return
    if not found.framework:
        yield _TORCH if found.format == "torch" else ""
        return
    text = _dump({"framework": {"name": found.framework}})
    if has(found.framework):
        yield text
    else:
        yield f"# No environment has it; `trims env create {found.framework}` makes one.\n#{text}"


def _facts(found: Found) -> Iterable[str]:
    others = len(found.files) - 1
    yield f"# {found.format}, {1 + others} file{'s' if others else ''}"
    if found.tensors is None:
        yield f"; its tensors are not listed: {_one_line(found.why_not)}\n"
        return
    kinds = ", ".join(f"{count} {dtype}" for dtype, count in found.tensors.dtypes.items())
    number = found.tensors.number
    yield f": {number} tensor{'' if number == 1 else 's'} ({kinds}), {format_bytes(found.tensors.nbytes)}\n"


def _signature(found: Found) -> dict[str, Sequence[TensorType]]:
    """Return the fields `inputs` and `outputs` as far as the graph states them."""
    both = {"inputs": found.signature.inputs, "outputs": found.signature.outputs}
    return {which: tensors for which, tensors in both.items() if tensors}


def _tensors(which: str, tensors: Sequence[TensorType]) -> str:
    lines = [yaml.safe_dump(_stated(each), sort_keys=False, default_flow_style=True, width=10_000) for each in tensors]
    return f"{which}:\n" + "".join(f"  - {line}" for line in lines)


def _stated(tensor: TensorType) -> dict[str, Any]:
    layout = {"layout": tensor.layout} if tensor.layout else {}
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), **layout}


def _dump(fields: dict[str, Any]) -> str:
    return yaml.safe_dump(fields, sort_keys=False, default_flow_style=None, allow_unicode=True, width=_WIDTH)


def _one_line(text: str) -> str:
    return " ".join(text.split()) if text.isprintable() else ascii(text)
