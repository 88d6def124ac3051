"""Laying out an artifact in place: an image whose tensors are pages of the artifact's own files."""

from __future__ import annotations

import json
import mmap
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from in_place_files import put_together
from safetensors.numpy import save_file

from trims.core.errors import ImageError, NotInPlaceError
from trims.core.layout import TensorSpec
from trims.formats.base import Artifact
from trims.formats.safetensors.converter import SafetensorsConverter
from trims.image import in_place
from trims.image.in_place import InPlacePlan, plan_in_place
from trims.image.plan import Contents, SourceTensor
from trims.image.program import Program
from trims.image.reader import ImageView
from trims.image.source import FileSpan, SourceFile

if TYPE_CHECKING:
    from pathlib import Path


def contents_of(main: Path) -> Contents:
    converter = SafetensorsConverter()
    return converter.contents(Artifact("safetensors", converter.files(main, {}), {}))


def checked(plan: InPlacePlan) -> ImageView:
    """Return a checked view of the image, put together as a session maps it."""
    for part in plan.pages:
        assert part.begin % mmap.PAGESIZE == part.offset % mmap.PAGESIZE == 0
        assert part.begin >= len(plan.head)
    view = ImageView(memoryview(put_together(plan)))
    view.layout.validate(view.index_header.data_bytes)
    view.program()
    # JSON states trims' own parts, and the tensors as one: nothing that reads an artifact in place looks for more.
    index, told = view.index_header, view.header.layout.tensors
    assert told["__trims__.index"] == TensorSpec("__trims__.index", "U8", (index.index_bytes,), 0)
    program = TensorSpec("__trims__.program", "U8", (index.program_bytes,), index.program_offset)
    assert told["__trims__.program"] == program
    assert all(spec.offset >= program.end for spec in view.layout if spec.nbytes)
    return view


def tensors_of(count: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(count)
    made = {f"layer.{number}": chance.random((number % 7 + 1, 13)).astype("f4") for number in range(count)}
    return {**made, "half": chance.random(5).astype("f2"), "scalar": np.array(3, "i8"), "empty": np.zeros((0, 4), "f4")}


@pytest.mark.parametrize("count", [0, 1, 50, 2000])
def test_every_tensor_is_found_where_the_file_has_it(count: int, tmp_path: Path) -> None:
    tensors = tensors_of(count)
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "np"})
    view = checked(plan_in_place(contents_of(tmp_path / "m.safetensors")))
    assert {spec.name: (spec.shape, bytes(view.tensor(spec.name))) for spec in view.layout} == {
        name: (array.shape, array.tobytes()) for name, array in tensors.items()
    }
    assert view.metadata == {"format": "np"}
    assert view.program() is None


def test_shards_lie_one_behind_the_other(tmp_path: Path) -> None:
    tensors = tensors_of(9)
    names = sorted(tensors)
    for number in range(3):
        save_file({name: tensors[name] for name in names[number::3]}, tmp_path / f"{number}.safetensors")
    weight_map = {name: f"{index % 3}.safetensors" for index, name in enumerate(names)}
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": weight_map}))
    plan = plan_in_place(contents_of(main))
    assert len(plan.pages) == 3
    view = checked(plan)
    assert all(bytes(view.tensor(name)) == tensors[name].tobytes() for name in names)


def test_more_shards_than_may_be_open_are_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "MAX_FILES", 1)
    for number in range(2):
        save_file({f"t{number}": np.ones(3)}, tmp_path / f"{number}.safetensors")
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {f"t{number}": f"{number}.safetensors" for number in range(2)}}))
    with pytest.raises(NotInPlaceError, match="2 files; more than 1"):
        plan_in_place(contents_of(main))


# fault (in place): tensors unaligned, or not in the file as in memory -> nothing; copied or converted; the log says
# why
def test_a_tensor_that_is_not_aligned_to_its_element_stays_and_is_counted(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\1\2\3\4")
    assert (8 + len(header)) % 4, "else it is aligned"
    plan = plan_in_place(contents_of(path))
    assert plan.unaligned_bytes == 4
    view = ImageView(memoryview(put_together(plan)))
    assert view.spec("a").offset % 4 == (8 + len(header)) % 4
    assert bytes(view.tensor("a")) == b"\1\2\3\4"
    with pytest.raises(ImageError, match=r"'a' starts at .*, unaligned for F32"):
        view.layout.validate(view.index_header.data_bytes)


def test_a_skeleton_over_tensors_that_are_not_aligned_is_converted(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(64))
    sources = [SourceTensor("a", "F32", (2,), span=FileSpan(SourceFile.look(tmp_path / "raw"), 3))]
    assert plan_in_place(Contents(sources, Program("torch-builder"))).unaligned_bytes == 8
    with pytest.raises(NotInPlaceError, match="its skeleton refers to tensors that are not aligned"):
        plan_in_place(Contents(sources, Program("torch-skeleton")))


def test_a_program_alone_needs_no_pages() -> None:
    plan = plan_in_place(Contents([SourceTensor("none", "F32", (0, 3))], Program("onnx-original", {}, b"graph")))
    assert (plan.pages, plan.nbytes, plan.unaligned_bytes) == ((), len(plan.head), 0)
    view = checked(plan)
    assert view.program() == Program("onnx-original", {}, b"graph")
    assert view.spec("none").shape == (0, 3)


def test_tied_tensors_share_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "raw"
    path.write_bytes(bytes(range(64)))
    file = SourceFile.look(path)
    sources = [
        SourceTensor("owner", "U8", (8,), span=FileSpan(file, 16)),
        SourceTensor("tied", "U8", (2, 2), tied_to="owner"),
        SourceTensor("other", "U8", (4,), span=FileSpan(file, 40)),
    ]
    view = checked(plan_in_place(Contents(sources)))
    assert bytes(view.tensor("owner")) == bytes(range(16, 24))
    assert bytes(view.tensor("tied")) == bytes(range(16, 20))
    assert bytes(view.tensor("other")) == bytes(range(40, 44))


def test_a_program_lies_in_the_head(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(range(64)))
    sources = [SourceTensor("a", "U8", (8,), span=FileSpan(SourceFile.look(tmp_path / "raw"), 3))]
    program = Program("mxnet-symbol", {"inputs": ["x"]}, b"body" * 5000)
    plan = plan_in_place(Contents(sources, program, {"by": "a test"}))
    view = checked(plan)
    assert view.program() == program
    assert len(plan.head) > len(program.body)
    assert bytes(view.tensor("a")) == bytes(range(3, 11))


@pytest.mark.parametrize("what", ["a tensor that is produced", "nothing in files", "zeros"])
def test_an_image_with_parts_that_lie_in_no_file_is_converted(what: str, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(64))
    sources = [SourceTensor("a", "U8", (8,), span=FileSpan(SourceFile.look(tmp_path / "raw"), 0))]
    if what == "a tensor that is produced":
        sources.append(SourceTensor("b", "U8", (8,), fill=lambda target: None))
    elif what == "zeros":
        sources.append(SourceTensor("b", "U8", (8,)))
    else:
        sources = [SourceTensor("empty", "U8", (0,))]
    with pytest.raises(NotInPlaceError, match=r"lies in a file|lies in no file of it"):
        plan_in_place(Contents(sources))


def test_tensors_that_share_a_part_of_their_bytes_are_converted(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(64))
    file = SourceFile.look(tmp_path / "raw")
    sources = [SourceTensor(f"t{at}", "U8", (16,), span=FileSpan(file, at)) for at in (0, 15)]
    with pytest.raises(NotInPlaceError, match="'t15' shares a part of its bytes"):
        plan_in_place(Contents(sources))


@pytest.mark.parametrize("owner", ["missing", "small"])
def test_a_tie_to_what_cannot_own_it_is_refused(owner: str, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(64))
    small = SourceTensor("small", "U8", (2,), span=FileSpan(SourceFile.look(tmp_path / "raw"), 0))
    with pytest.raises(ImageError, match=f"'b' is tied to '{owner}', which is not there or smaller"):
        plan_in_place(Contents([small, SourceTensor("b", "U8", (8,), tied_to=owner)]))
