"""PyTorch checkpoints read without PyTorch: the same tensors as `torch.load` gives, or a reason for a conversion."""

# fault (in place): a damaged or hostile checkpoint or archive -> nothing of it is run; read in a child with limits

from __future__ import annotations

import collections
import io
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from damages import refusals_of_random_damage

from trims.core.errors import ArtifactError, NotInPlaceError
from trims.core.layout import TensorSpec
from trims.formats import zip_members
from trims.formats.base import Artifact
from trims.formats.torch.converter import TorchConverter, read_checkpoint
from trims.formats.torch.tensors import DTYPES
from trims.image.in_place import plan_in_place
from trims.image.peek import PARSE_HERE_BYTES
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from pathlib import Path

    from trims.image.plan import Contents

torch = pytest.importorskip("torch")


def saved(value: Any, folder: Path, **how: Any) -> Path:
    path = folder / "m.pt"
    torch.save(value, path, **how)
    return path


def bytes_of(contents: Contents) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of every tensor, read from the file."""
    sources = {source.name: source for source in contents.sources}
    found = {}
    for name, source in sources.items():
        span = (sources[source.tied_to] if source.tied_to else source).span
        assert span is not None
        nbytes = TensorSpec(name, source.dtype, source.shape, 0).nbytes
        found[name] = (source.dtype, source.shape, span.file.read(nbytes, span.offset) if nbytes else b"")
    return found


def expected(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return name -> dtype, shape and bytes of all tensors by way of a conversion."""
    plan = TorchConverter().plan(Artifact("torch", (path,), {}))
    memory = memoryview(bytearray(plan.nbytes))
    plan.write_into(memory)
    view = ImageView(memory)
    return {spec.name: (spec.dtype, spec.shape, bytes(view.tensor(spec.name))) for spec in view.layout}


def all_dtypes() -> dict[str, Any]:
    return {name: torch.randn(3, 5).abs().to(getattr(torch, name)) for name in DTYPES}


def a_training_checkpoint() -> dict[str, Any]:
    module = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    return {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "lr": 0.1, "big": 1 << 70}


def views() -> dict[str, Any]:
    whole = torch.randn(6, 4)
    return {"whole": whole, "again": whole, "first rows": whole[:2], "apart": torch.randn(3), "none": torch.empty(0, 7)}


CHECKPOINTS: dict[str, Any] = {
    "every dtype": all_dtypes,
    "a state dict": lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict(),
    "parameters": lambda: dict(torch.nn.Linear(3, 4).named_parameters()),
    "a training checkpoint": a_training_checkpoint,
    "views of one storage": views,
    "scalars": lambda: {"one": torch.tensor(1.5), "two": torch.tensor([[2]], dtype=torch.int64)},
    "other values": lambda: {"w": torch.ones(2), "size": torch.Size([1, 2]), "dtype": torch.float16, "none": None},
    "rows of a permutation": lambda: {"w": torch.randn(1, 7, 1).permute(2, 1, 0)},
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_tensors_are_those_of_a_conversion(name: str, tmp_path: Path) -> None:
    path = saved(CHECKPOINTS[name](), tmp_path)
    found = read_checkpoint(path)
    assert bytes_of(found) == expected(path)
    plan_in_place(found)


def test_what_is_ignored_is_named_as_by_a_conversion(tmp_path: Path) -> None:
    path = saved(a_training_checkpoint(), tmp_path)
    plan = TorchConverter().plan(Artifact("torch", (path,), {}))
    memory = memoryview(bytearray(plan.nbytes))
    plan.write_into(memory)
    assert dict(read_checkpoint(path).metadata) == dict(ImageView(memory).metadata) != {}


def test_tensors_that_begin_at_one_byte_are_tied(tmp_path: Path) -> None:
    found = {source.name: source.tied_to for source in read_checkpoint(saved(views(), tmp_path)).sources}
    assert found == {"whole": None, "again": "whole", "first rows": "whole", "apart": None, "none": None}


NOT_HERE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "the legacy format": (lambda: {"w": torch.ones(2)}, {"_use_new_zipfile_serialization": False}, "zip directory"),
    "columns": (lambda: {"w": torch.randn(3, 4).t()}, {}, "'w' is not dense"),
    "one element many times": (lambda: {"w": torch.ones(1).expand(4)}, {}, "'w' is not dense"),
    "a sparse tensor": (lambda: {"w": torch.eye(3).to_sparse()}, {}, "not as torch.save writes it"),
    "a quantized tensor": (
        lambda: {"w": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, {}, "not as torch.save writes it"
    ),
    "a whole module": (lambda: torch.nn.Linear(2, 2), {}, "not as torch.save writes it"),
    "another protocol": (lambda: {"w": torch.ones(2)}, {"pickle_protocol": 4}, "protocol 4"),
    "a list": (lambda: [torch.ones(2)], {}, "but a list"),
    "a tensor": (lambda: torch.ones(2), {}, "neither a state dict"),
    "a name that is a number": (lambda: {1: torch.ones(2)}, {}, "which is no string"),
    "a key that is a tuple": (lambda: {"w": torch.ones(2), "x": {(1, 2): 3}}, {}, "neither a string nor a number"),
    "a counter": (lambda: {"w": torch.ones(2), "x": collections.Counter("ab")}, {}, "names collections.Counter"),
    "conjugated numbers": (lambda: {"w": torch.ones(2, dtype=torch.complex64).conj()}, {}, "marked .'conj'"),
    "negated numbers": (lambda: {"w": torch._neg_view(torch.ones(2))}, {}, "marked .'neg'"),
    "complex numbers of 128 bits": (lambda: {"w": torch.ones(2, dtype=torch.complex128)}, {}, "ComplexDoubleStorage"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NOT_HERE)
def test_what_only_torch_can_read_is_left_to_it(name: str, tmp_path: Path) -> None:
    make, how, why = NOT_HERE[name]
    with pytest.raises(NotInPlaceError, match=why):
        read_checkpoint(saved(make(), tmp_path, **how))


def test_members_that_have_one_name_but_for_the_archives_own(tmp_path: Path) -> None:
    path = saved({"w": torch.ones(4)}, tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("another/data/0", b"")
    with pytest.raises(NotInPlaceError, match="two of its members have one name"):
        read_checkpoint(path)


def test_views_that_overlap_are_converted(tmp_path: Path) -> None:
    whole = torch.randn(8)
    found = read_checkpoint(saved({"a": whole[:6], "b": whole[4:]}, tmp_path))
    with pytest.raises(NotInPlaceError, match="shares a part of its bytes"):
        plan_in_place(found)


def test_a_file_with_random_damage_gives_an_error_or_tensors_inside_it(tmp_path: Path) -> None:
    path = saved({f"layer.{number}": torch.randn(3, 4) for number in range(20)}, tmp_path)
    assert 100 < refusals_of_random_damage(path, lambda: plan_in_place(read_checkpoint(path))) < 400


def rewritten(path: Path, change: Any) -> Path:
    """The archive again, each member as `change(name, data)` gives it: (data, how it is packed) or None."""
    packed = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w") as new:
        for info in old.infolist():
            changed = change(info.filename.partition("/")[2], old.read(info))
            if changed is not None:
                new.writestr(info.filename, changed[0], compress_type=changed[1])
    path.write_bytes(packed.getvalue())
    return path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda name, data: (data, zipfile.ZIP_DEFLATED), "is packed"),
        (lambda name, data: None if name == "data.pkl" else (data, 0), "no member data.pkl"),
        (lambda name, data: None if name == "version" else (data, 0), "no member version"),
        (lambda name, data: None if name == "data/0" else (data, 0), "bytes are missing"),
        (lambda name, data: (data[:-1] if name == "data/0" else data, 0), "bytes are missing"),
        (lambda name, data: (b"big" if name == "byteorder" else data, 0), "not little endian"),
        (lambda name, data: (bytes(PARSE_HERE_BYTES + 1) if name == "data.pkl" else data, 0), "too large to be parsed"),
    ],
    ids=["compressed", "no pickle", "no version", "no bytes", "bytes missing", "big endian", "a large pickle"],
)
def test_an_archive_that_is_not_as_torch_writes_it(change: Any, why: str, tmp_path: Path) -> None:
    path = rewritten(saved({"w": torch.ones(4)}, tmp_path), change)
    with pytest.raises(NotInPlaceError, match=why):
        read_checkpoint(path)


def test_an_archive_behind_other_bytes_is_left_to_a_conversion(tmp_path: Path) -> None:
    path = saved({"w": torch.ones(4)}, tmp_path)
    path.write_bytes(b"PK\x03\x04".ljust(64, b"\0") + path.read_bytes())
    with pytest.raises(NotInPlaceError, match="does not begin at its first byte"):
        read_checkpoint(path)


@pytest.mark.parametrize("field", [20, 24], ids=["packed length", "length"])
def test_a_stored_member_of_two_lengths_is_left_to_a_conversion(field: int, tmp_path: Path) -> None:
    path = saved({"w": torch.ones(4)}, tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + field] ^= 8
    path.write_bytes(data)
    with pytest.raises(NotInPlaceError, match="is packed"):
        read_checkpoint(path)


@pytest.mark.parametrize("offset", [-1, 1 << 40, (1 << 64) - 1])
def test_a_member_at_an_offset_that_cannot_be_is_left_to_a_conversion(
    offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved({"w": torch.ones(4)}, tmp_path)
    listed = zipfile.ZipFile.infolist

    def moved(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
        infos = listed(archive)
        infos[0].header_offset = offset
        return infos

    monkeypatch.setattr(zipfile.ZipFile, "infolist", moved)
    with pytest.raises(NotInPlaceError, match="not where the directory says"):
        read_checkpoint(path)


def test_a_directory_too_large_to_be_parsed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved({"w": torch.ones(4)}, tmp_path)
    monkeypatch.setattr(zip_members, "DIRECTORY_BYTES", 100)
    with pytest.raises(NotInPlaceError, match="too large"):
        read_checkpoint(path)


def test_a_missing_file_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        read_checkpoint(tmp_path / "m.pt")
