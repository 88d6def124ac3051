"""Check of an image against every rule of the format: header, index and program against each other.

It is done where an image is sealed or adopted; readers rely on that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trims.core.errors import ImageError
from trims.core.layout import TensorSpec
from trims.image.header import FORMAT_VERSION, METADATA_KEY

if TYPE_CHECKING:
    from trims.image.reader import ImageView


def check_image(image: ImageView) -> None:
    """Raise ImageError naming the first thing that disagrees."""
    image.layout.validate(image.index_header.data_bytes)
    prefix, tied = _own_metadata(image)
    tensors = image.header.layout.tensors
    owners = {spec.offset: spec.end for spec in image.layout if spec.name not in tied and spec.nbytes}
    for spec in image.layout:
        if spec.name in tied:
            if tied[spec.name] != _entry(spec) or owners.get(spec.offset, -1) < spec.end:
                raise ImageError(f"tied tensor {spec.name!r} does not lie on the tensor it is tied to")
        elif tensors.get(spec.name) != spec:
            raise ImageError(f"header and index disagree about tensor {spec.name!r}")
    ours = sum(not name.startswith(prefix) for name in tensors)
    if ours + len(tied) != len(image.layout):
        raise ImageError("header and index list different tensors")
    index = image.index_header
    _check_span(image, f"{prefix}.index", 0, index.index_bytes)
    _check_span(image, f"{prefix}.program", index.program_offset, index.program_bytes)
    image.program()


def _check_span(image: ImageView, name: str, offset: int, n_bytes: int) -> None:
    if image.header.layout.tensors.get(name) != TensorSpec(name, "U8", (n_bytes,), offset):
        raise ImageError(f"header and index disagree about {name!r}")


def _own_metadata(image: ImageView) -> tuple[str, dict[str, object]]:
    """Return the prefix of the image's own tensors, and the tied tensors as the header lists them."""
    try:
        own = json.loads(image.header.metadata[METADATA_KEY])
        prefix, tied, version = own["prefix"], own["tied"], own["version"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ImageError(f"the header's own entry {METADATA_KEY!r} is missing or unreadable") from error
    if version != FORMAT_VERSION:
        raise ImageError(f"the image is of version {version!r}, this trims reads {FORMAT_VERSION}")
    if not isinstance(tied, dict) or not isinstance(prefix, str) or not prefix:
        raise ImageError(f"the header's own entry {METADATA_KEY!r} is not what it should be")
    return prefix, tied


def _entry(spec: TensorSpec) -> dict[str, object]:
    return {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [spec.offset, spec.end]}
