"""External data files of an ONNX model are found without protobuf, and without reading its weights."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from onnx_files import CONVERTER, linear, located, save, value, varint

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
from trims.formats.onnx import external_data  # noqa: E402
from trims.formats.onnx.external_data import (  # noqa: E402
    count_external,
    external_locations,
    look_at_external,
    names_a_file,
)
from trims.formats.onnx.wire_format import bytes_field  # noqa: E402
from trims.image.source import SourceFile  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "where",
    ["initializer", "attribute", "subgraph", "subgraph list", "sparse values", "function", "training"],
)
def test_external_data_is_found_wherever_a_tensor_can_be(tmp_path: Path, where: str) -> None:
    (tmp_path / "m.onnx").write_bytes(located("w.bin", where=where))
    assert external_locations(tmp_path / "m.onnx") == ("w.bin",)


def test_the_scan_agrees_with_protobuf_on_a_real_graph(tmp_path: Path) -> None:
    main = linear(tmp_path, external="w.bin")
    model = onnx.load(main, load_external_data=False)
    named = {pair.value for t in model.graph.initializer for pair in t.external_data if pair.key == "location"}
    assert set(external_locations(main)) == named == {"w.bin"}


def test_the_scan_does_not_read_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.ones(4 << 20, dtype=np.float32)
    main = save(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["w"], ["y"])],
        [],
        [value("y", TensorProto.FLOAT, [4 << 20])],
        [numpy_helper.from_array(weight, "w")],
    )
    read_bytes, pread = [], os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        read_bytes.append(length)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", counting)
    external_locations(main)
    assert 0 < sum(read_bytes) < 64 << 10


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no graph"),
        (b"\x08\x08", "no graph"),
        (b"PK\x03\x04 a zip file, not a model", "not an ONNX model"),
        (b"\x3a\xff\xff\xff\xff\x7f", "leaves its message"),
        (b"\x3a" + b"\xff" * 10, "has no end"),
        (b"\x3b\x00", "begins no field"),
        (b"\x3a\x04\x2a\x7f\x00\x00", "leaves its message"),
        (located(None), "in no named file"),
        (located("x" * 5000), "more than 4096 bytes"),
        (located(b"\xff\xfe"), "not UTF-8"),
    ],
)
def test_a_hostile_file_is_an_artifact_error(tmp_path: Path, data: bytes, complaint: str) -> None:
    main = tmp_path / "m.onnx"
    main.write_bytes(data)
    with pytest.raises(ArtifactError, match=complaint):
        CONVERTER.files(main, {})


def test_endless_nesting_is_an_artifact_error(tmp_path: Path) -> None:
    data = b"\x2a\x0c\x6a\x0a\x0a\x08location"  # a graph's initializer that names a file
    for _ in range(200):
        for number in (6, 5, 1):
            data = bytes([number << 3 | 2, *varint(len(data))]) + data
    main = tmp_path / "m.onnx"
    main.write_bytes(bytes([7 << 3 | 2, *varint(len(data))]) + data)
    with pytest.raises(ArtifactError, match="nested too deeply"):
        CONVERTER.files(main, {})


def test_external_tensors_are_counted_wherever_they_are(tmp_path: Path) -> None:
    main = tmp_path / "m.onnx"
    main.write_bytes(located("a.bin") + located("a.bin", where="subgraph") + located("b.bin", where="function"))
    assert count_external(main) == 3
    assert external_locations(main) == ("a.bin", "b.bin")


@pytest.mark.parametrize("key", [b"\x0a\x08", b"\x8a\x00\x88\x80\x00"])
def test_a_node_that_names_a_file_in_long_numbers_is_walked_too(key: bytes, tmp_path: Path) -> None:
    plain = located("w.bin", where="attribute")
    assert b"\x0a\x08location" in plain
    assert names_a_file(key + b"location")
    assert not names_a_file(b"\x0a\x09locations" + b"/location/Add")


def test_a_tree_of_numbers_is_stepped_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a million numbers, each a field: walking them would take a second."""
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], nodes_nodeids=list(range(500_000)))
    main = save(tmp_path / "m.onnx", [node], [], [], [])
    monkeypatch.setattr(external_data, "_MAX_FIELDS", 1000)
    assert external_locations(main) == ()


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_truncated_model_never_crashes_the_scan(tmp_path: Path, cut: int) -> None:
    whole = linear(tmp_path, external="w.bin").read_bytes()
    assert len(whole) > 200
    main = tmp_path / "cut.onnx"
    main.write_bytes(whole[: cut % len(whole)])
    with contextlib.suppress(ArtifactError):
        assert set(external_locations(main)) <= {"w.bin"}


def test_files_are_named_once_in_the_order_of_their_first_tensor(tmp_path: Path) -> None:
    main = tmp_path / "m.onnx"
    main.write_bytes(located("b.bin") + located("a.bin") + located("b.bin"))
    assert external_locations(main) == ("b.bin", "a.bin")


def test_a_tensor_that_names_a_file_and_is_stored_inside_needs_no_file(tmp_path: Path) -> None:
    main = tmp_path / "m.onnx"
    inside = located("w.bin").replace(b"\x70\x01", b"\x70\x00")
    main.write_bytes(inside)
    assert external_locations(main) == ()


def with_two_names(first: str, second: str) -> bytes:
    tensor = bytes_field(8, b"w") + b"\x70\x01"
    for name in (first, second):
        tensor += bytes_field(13, bytes_field(1, b"location") + bytes_field(2, name.encode()))
    return bytes_field(7, bytes_field(5, tensor))


@pytest.mark.parametrize("second", ["w.bin", "other.bin"])
def test_a_tensor_that_names_its_file_twice_is_an_artifact_error(second: str, tmp_path: Path) -> None:
    main = tmp_path / "m.onnx"
    main.write_bytes(with_two_names("w.bin", second))
    with pytest.raises(ArtifactError, match="names its file twice"):
        external_locations(main)


def model_folder(root: Path) -> Path:
    """A model's folder with a file of weights, beside a folder that is none of its business."""
    for name in ("model", "other"):
        (root / name).mkdir()
        (root / name / "w.bin").write_bytes(b"weights")
    (root / "model" / "m.onnx").write_bytes(b"")
    return root / "model"


@pytest.mark.parametrize("location", ["w.bin", "link.bin", "./w.bin", "sub/../w.bin", "here/w.bin"])
def test_external_data_beneath_the_models_folder_is_looked_at(location: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "sub").mkdir()
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "here").symlink_to(".")
    assert look_at_external(folder / "m.onnx", location) == replace(
        SourceFile.look(folder / "w.bin"), path=folder / location
    )


@pytest.mark.parametrize("location", ["link.bin", "up/other/w.bin", "beside/../other/w.bin"])
def test_a_link_out_of_the_models_folder_is_refused(location: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "link.bin").symlink_to("../other/w.bin")
    (folder / "up").symlink_to("..")
    (folder / "beside").symlink_to("../other")
    (folder / "other").symlink_to("../other")
    with pytest.raises(ArtifactError, match=f"{location}' leads by a link to .*/other/w.bin, outside"):
        look_at_external(folder / "m.onnx", location)


def test_a_linked_model_may_have_its_data_beside_the_link_or_its_target(tmp_path: Path) -> None:
    folder, snapshot = model_folder(tmp_path), tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "m.onnx").symlink_to("../model/m.onnx")
    (snapshot / "own.bin").write_bytes(b"weights")
    (snapshot / "w.bin").symlink_to("../model/w.bin")
    (snapshot / "third.bin").symlink_to("../other/w.bin")
    for location in ("own.bin", "w.bin"):
        look_at_external(snapshot / "m.onnx", location)
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        look_at_external(snapshot / "m.onnx", "third.bin")
    (folder / "m.onnx").rename(snapshot / "moved")
    (snapshot / "m.onnx").unlink()
    (snapshot / "moved").rename(snapshot / "m.onnx")
    with pytest.raises(ArtifactError, match="outside the model's folder"):
        look_at_external(snapshot / "m.onnx", "w.bin")
