"""An image whose every byte a test may change."""

from __future__ import annotations

import pytest
from images import image_of, tensor

from trims.image.plan import SourceTensor
from trims.image.program import Program


@pytest.fixture
def image() -> bytearray:
    """Two tensors, one that is tied, and a program."""
    sources = [tensor("a"), tensor("b", bytes(16), "F32", (2, 2)), SourceTensor("t", "U8", (4,), tied_to="a")]
    return image_of(sources, program=Program("test", {}, b"body"))
