"""PyTorch tensors on their way into an image: what is copied, tied and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_files import CONVERTER, assert_equal, image_of, saved, tensors_of

from trims.formats.torch.tensors import describe, dtype_of

torch = pytest.importorskip("torch")


from trims_client.frameworks._torch_dtypes import DTYPES as _DTYPES  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
from trims.core.layout import DTYPES  # noqa: E402


def one_of_each_dtype() -> dict[str, torch.Tensor]:
    raw = torch.randint(0, 2, (2, 3, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = {f"{name}.weight": raw.view(_DTYPES[name]).clone() for name in DTYPES}
    return found | {"scalar": torch.tensor(3.5), "empty": torch.empty((0, 4), dtype=torch.bfloat16)}


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_every_dtype_scalar_and_empty_tensor_comes_out_bit_for_bit(tmp_path: Path, zip_format: bool) -> None:
    wanted = one_of_each_dtype()
    if not zip_format:  # torch's legacy format knows no storages of these
        unknown = ("U16", "U32", "U64", "F8")
        wanted = {name: tensor for name, tensor in wanted.items() if not name.startswith(unknown)}
    path = saved(tmp_path, wanted, _use_new_zipfile_serialization=zip_format)
    assert CONVERTER.claims(path, path.read_bytes()[:4096])
    assert_equal(tensors_of(image_of(path)), wanted)


def test_non_contiguous_views_become_dense(tmp_path: Path) -> None:
    base = torch.arange(24.0).view(4, 6)
    wanted = {"t": base.t(), "step": base[::2, 1::2], "conj": torch.tensor([1 + 2j]).conj(), "last": base[3]}
    assert_equal(tensors_of(image_of(saved(tmp_path, wanted))), {n: t.resolve_conj() for n, t in wanted.items()})


def test_only_the_same_memory_seen_the_same_way_is_tied(tmp_path: Path) -> None:
    base = torch.arange(16.0).view(4, 4)
    state = {"a": base, "same": base, "turned": base.t(), "part": base[0], "equal": base.clone(), "e": base[:0]}
    tensors = image_of(saved(tmp_path, state)).layout.tensors
    offsets = {name: tensors[name].offset for name in state}
    assert offsets["a"] == offsets["same"]
    assert len({offsets[name] for name in ("a", "turned", "part", "equal")}) == 4


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore:.*(deprecated|beta|prototype).*")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (quantized, "'w' is quantized; save it dense"),
        (lambda: torch.eye(3).to_sparse(), "'w' is sparse_coo; save it dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "'w' is sparse_csr"),
        (lambda: torch.empty(3, device="meta"), "is on device meta: it has no bytes"),
        (lambda: torch.ones(2, dtype=torch.complex128), "dtype torch.complex128, which images do not know"),
    ],
)
def test_a_tensor_that_is_not_plain_bytes_is_refused_by_name(tmp_path: Path, make: Any, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        image_of(saved(tmp_path, {"w": make()}))


def test_a_tensor_of_a_subclass_is_refused_by_name() -> None:
    class Special(torch.Tensor):  # type: ignore[misc]
        pass

    with pytest.raises(ArtifactError, match=r"m\.pt: tensor 'w' is a Special; only plain tensors can be shared"):
        dtype_of(torch.ones(2).as_subclass(Special), "w", Path("m.pt"))


def test_a_parameter_that_is_trained_is_copied_row_by_row() -> None:
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    (source,) = describe({"w": parameter}, Path("m.pt"))
    assert (source.dtype, source.shape, source.tied_to) == ("F32", (3, 2), None)
    place = bytearray(24)
    assert source.fill is not None
    source.fill(memoryview(place))
    assert torch.frombuffer(place, dtype=torch.float32).tolist() == [0, 3, 1, 4, 2, 5]
