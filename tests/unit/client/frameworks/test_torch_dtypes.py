"""torch's dtype for each dtype of an image: of the same size, or an error that names the tensor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from trims_client.frameworks import _torch_dtypes  # noqa: E402

from trims.core.errors import NotSupportedError  # noqa: E402
from trims.core.layout import DTYPE_BYTES, TensorSpec  # noqa: E402


def test_every_dtype_has_one_of_torch_of_its_size() -> None:
    known = _torch_dtypes.DTYPES
    assert set(DTYPE_BYTES) - set(known) <= {"F8_E8M0"}, "which torch has from 2.7 on"
    for name, dtype in known.items():
        assert _torch_dtypes.dtype_of(TensorSpec("w", name, (1,), 0)) is dtype
        assert dtype.itemsize == DTYPE_BYTES[name], name
    assert len(set(known.values())) == len(known)


def test_a_dtype_that_this_torch_lacks_is_refused_with_the_tensors_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_torch_dtypes.DTYPES, "F8_E5M2")
    with pytest.raises(
        NotSupportedError, match=rf"torch {torch.__version__.split('+')[0]}.* has no F8_E5M2 \(tensor 'w'"
    ):
        _torch_dtypes.dtype_of(TensorSpec("w", "F8_E5M2", (1,), 0))
