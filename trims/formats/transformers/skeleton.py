"""Contents of the image of a Hugging Face model: tensors of its files, and the skeleton of its module.

Runs in a converter child. The library loads the module over mappings of the files, so a tensor of the module that lies
where one of a file lies is that one, whatever the module calls it. All others were made by the library (merged, cast,
computed), and become tensors of the image in the place of those that they were made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trims.formats.safetensors.converter import SafetensorsConverter
from trims.formats.torch.converter import read_tensors
from trims.formats.torch.mapped import mapped
from trims.formats.torch.skeleton import free_name, skeleton_of
from trims.formats.torch.state import metadata_of
from trims.formats.torch.tensors import describe, dtype_of, filler
from trims.image.model_files import Described, with_files
from trims.image.plan import Contents, SourceTensor
from trims.image.program import TRANSFORMERS, TRANSFORMERS_CODE, WHY, Program
from trims.image.transformers_models import make_module

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from trims.formats.base import Artifact

#: Where a tensor lies, its dtype and its shape.
_Place = tuple[int, torch.dtype, tuple[int, ...]]


def contents_of(weights: Artifact, described: Described, *, with_code: bool) -> Contents:
    """Return the image's contents. Raises as `make_module` and as the weights' format."""
    main = weights.files[0]
    if weights.format == SafetensorsConverter.format:
        found = SafetensorsConverter().contents(weights)
        sources, metadata = list(found.sources), found.metadata
        state = mapped(sources)
    else:
        read = read_tensors(weights)
        state, metadata = read, metadata_of([], read, main)
        sources = describe(state, main)
    module, unused = make_module(state, described, str(main), with_code=with_code)
    plain = Contents(
        sources, with_files(Program(TRANSFORMERS_CODE if with_code else TRANSFORMERS), described), metadata
    )
    if with_code:  # its classes lie in a cache of the library's
        return plain
    kept, names = _matched(module, sources, state, unused, main)
    skeleton = skeleton_of(module, kept, main, names)
    if isinstance(skeleton, str):
        assert plain.program is not None
        program = plain.program._replace(attributes={**plain.program.attributes, WHY: skeleton})
        return replace(plain, program=program)
    return Contents(skeleton[0], with_files(skeleton[1], described), metadata)


def _matched(
    module: torch.nn.Module,
    sources: Sequence[SourceTensor],
    state: Mapping[str, torch.Tensor],
    unused: Collection[str],
    main: Path,
) -> tuple[list[SourceTensor], dict[str, str]]:
    """Return the image's tensors before the skeleton's own, and what the module calls those that it uses.

    Args:
        module: Module as the library loaded it over the tensors.
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
