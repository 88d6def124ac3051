"""Floating-point tensors of a safetensors file in another dtype, for libraries that cast a checkpoint as they load it.

torch casts, so the numbers are those of `Tensor.to`. Tensors that have the dtype already, and those of integers, are
left out: a program has them from its own file. No file is claimed: unmodified programs ask by a name of the form of
`parse_file_name`.

Options:
    dtype: `F16`, `BF16` or `F32`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError
from trims.formats.base import check_options
from trims.formats.one_file import OneFile
from trims.formats.safetensors.converter import read_header
from trims.image.plan import SourceTensor, plan_image
from trims.image.source import FileSpan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from trims.formats.base import Artifact
    from trims.image.plan import ImagePlan

_DTYPES = ("F16", "BF16", "F32")
#: Dtypes that are cast.
_FLOATS = (*_DTYPES, "F64")


class CastConverter(OneFile):
    """See the module."""

    format: ClassVar[str] = "cast"
    version: ClassVar[int] = 1
    host_specific: ClassVar[bool] = False

    def needs_child(self, options: Mapping[str, Any]) -> bool:
        """Return True: torch casts."""
        del options
        return True

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:
        """Return False: the file has other numbers."""
        del options
        return False

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return torch."""
        del options
        return ("torch",)

    def claims(self, main: Path, first_bytes: bytes) -> bool:
        """Return False: a file has the dtypes that it has."""
        del main, first_bytes
        return False

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the one file, which may be a shard."""
        check_options(main, options, ("dtype",))
        if options.get("dtype") not in _DTYPES:
            raise ArtifactError(f"{main}: option dtype is one of {', '.join(_DTYPES)}, not {options.get('dtype')!r}")
        return super().files(main, {})

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Lay out what is cast. Raises ArtifactError if nothing is."""
        from trims.formats.torch.mapped import mapped

        file, header, _ = read_header(artifact.files[0])
        dtype = artifact.options["dtype"]
        given = [
            SourceTensor(spec.name, spec.dtype, spec.shape, span=FileSpan(file, header.data_start + spec.offset))
            for spec in header.layout
            if spec.dtype in _FLOATS and spec.dtype != dtype
        ]
        if not given:
            raise ArtifactError(f"{file.path} has no tensor to cast to {dtype}")
        tensors = mapped(given)
        return plan_image(
            [SourceTensor(name, dtype, each.shape, _caster(each, dtype)) for name, each in tensors.items()]
        )


def _caster(tensor: Any, dtype: str) -> Callable[[memoryview], None]:
    def fill(place: memoryview) -> None:
        import torch

        from trims.formats.torch.mapped import TORCH_DTYPES

        torch.frombuffer(place, dtype=TORCH_DTYPES[dtype]).view(tensor.shape).copy_(tensor)

    return fill
