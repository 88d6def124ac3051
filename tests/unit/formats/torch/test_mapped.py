"""Tensors over mappings of files, for converters that need their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

from trims.core.errors import NotSupportedError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.formats.safetensors.converter import SafetensorsConverter  # noqa: E402
from trims.formats.torch import mapped as under_test  # noqa: E402
from trims.formats.torch.mapped import mapped  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.plan import SourceTensor

STATE = {"a": torch.rand(3, 4), "b": torch.arange(5, dtype=torch.uint8), "c": torch.rand(2), "d": torch.empty(0, 2)}


def sources(folder: Path) -> list[SourceTensor]:
    save_file(STATE, folder / "m.safetensors")
    return list(SafetensorsConverter().contents(Artifact("safetensors", (folder / "m.safetensors",))).sources)


def test_values_are_those_of_the_file_wherever_they_begin(tmp_path: Path) -> None:
    found = mapped(sources(tmp_path))
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], each) for name, each in STATE.items())


def test_a_write_to_private_mappings_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    listed = sources(tmp_path)
    mapped(listed, writable=True)["a"].zero_()
    assert torch.equal(mapped(listed)["a"], STATE["a"])


def test_a_dtype_that_torch_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(under_test.TORCH_DTYPES, "F32")
    with pytest.raises(NotSupportedError, match="has no F32"):
        mapped(sources(tmp_path))
