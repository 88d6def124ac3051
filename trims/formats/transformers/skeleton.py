"""Contents of the image of a Hugging Face model: tensors of its files, and the skeleton of its module.

Runs in a converter child. The library loads the module over mappings of the files, so a tensor of the module that lies
where one of a file lies is that one, whatever the module calls it. All others were made by the library (merged, cast,
computed), and become tensors of the image in the place of those that they were made of.
"""

from __future__ import annotations

import mmap
import warnings
from typing import TYPE_CHECKING

import torch

from trims.core.errors import NotSupportedError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.formats.safetensors.converter import SafetensorsConverter
from trims.formats.torch.converter import read_tensors
from trims.formats.torch.skeleton import free_name, skeleton_of
from trims.formats.torch.tensors import DTYPES, describe, dtype_of, filler
from trims.image.model_files import Described, with_files
from trims.image.plan import Contents, SourceTensor
from trims.image.program import TRANSFORMERS, TRANSFORMERS_CODE, Program
from trims.image.source import open_source
from trims.image.transformers_models import make_module

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from trims.formats.base import Artifact

_TORCH = {ours: getattr(torch, name) for name, ours in DTYPES.items() if hasattr(torch, name)}
#: Where a tensor lies, its dtype and its shape.
_Place = tuple[int, torch.dtype, tuple[int, ...]]


def contents_of(weights: Artifact, described: Described, *, with_code: bool) -> Contents:
    """Return the image's contents. Raises as `make_module` and as the weights' format."""
    main = weights.files[0]
    if weights.format == SafetensorsConverter.format:
        found = SafetensorsConverter().contents(weights)
        sources, metadata = list(found.sources), found.metadata
        state = _mapped(sources)
    else:
        state, metadata = read_tensors(weights), {}
        sources = describe(state, main)
    module, unused = make_module(state, described, str(main), with_code=with_code)
    plain = Contents(
        sources, with_files(Program(TRANSFORMERS_CODE if with_code else TRANSFORMERS), described), metadata
    )
    if with_code:  # its classes lie in a cache of the library's
        return plain
    kept, names = _matched(module, sources, state, unused, main)
    skeleton = skeleton_of(module, kept, main, names)
    if skeleton is None:
        return plain
    return Contents(skeleton[0], with_files(skeleton[1], described), metadata)


def _mapped(sources: Sequence[SourceTensor]) -> dict[str, torch.Tensor]:
    """Return tensors over read-only mappings of the files in which they lie."""
    mappings: dict[Path, mmap.mmap] = {}
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a write would end this process, and nothing writes
        for each in sources:
            dtype, count = _dtype(each), element_count(each.shape)
            if each.span is None or not count:
                found[each.name] = torch.empty(each.shape, dtype=dtype)
                continue
            path = each.span.file.path
            if path not in mappings:
                with open_source(path) as fd:
                    mappings[path] = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
            aligned = each.span.offset % DTYPE_BYTES[each.dtype] == 0
            data = mappings[path] if aligned else mappings[path][each.span.offset :][: count * DTYPE_BYTES[each.dtype]]
            at = each.span.offset if aligned else 0
            found[each.name] = torch.frombuffer(data, dtype=dtype, count=count, offset=at).view(each.shape)
    return found


def _dtype(source: SourceTensor) -> torch.dtype:
    dtype = _TORCH.get(source.dtype)
    if dtype is None:
        raise NotSupportedError(f"torch {torch.__version__} has no {source.dtype} (tensor {source.name!r})")
    return dtype


def _matched(
    module: torch.nn.Module,
    sources: Sequence[SourceTensor],
    state: Mapping[str, torch.Tensor],
    unused: Collection[str],
    main: Path,
) -> tuple[list[SourceTensor], dict[str, str]]:
    """Return the image's tensors before the skeleton's own, and what the module calls those that it uses.

    Args:
        module: As the library loaded it over the tensors.
        sources: The artifact's tensors.
        state: The tensors, by the same names.
        unused: Names of those that the module has no place for. They stay in the image, as published.
        main: The file, for messages.
    """
    by_place: dict[_Place, str] = {}
    for source in sources:
        if state[source.name].numel():
            by_place.setdefault(_place(state[source.name]), source.name)
    own = module.state_dict(keep_vars=True)
    used = {name: found for name, each in own.items() if each.numel() and (found := by_place.get(_place(each)))}
    places = {_place(state[found]) for found in used.values()}
    kept = [each for each in sources if each.name in unused or _place(state[each.name]) in places]
    names = {found: name for name, found in used.items()}
    taken, seen = {each.name for each in kept}, {id(own[name]) for name in used}
    for name, tensor in own.items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        free = free_name(name, taken)
        taken.add(free)
        kept.append(SourceTensor(free, dtype_of(tensor, name, main), tuple(tensor.shape), fill=filler(tensor)))
        names[free] = name
    return kept, names


def _place(tensor: torch.Tensor) -> _Place:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)
