"""ONNX models become images: what is found, what is refused, and that no weight is lost on the way."""

from __future__ import annotations

import os
import struct
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx_files import CONVERTER, image, linear, located, save, value

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from trims.core.errors import ArtifactError  # noqa: E402
from trims.core.layout import DTYPE_BYTES  # noqa: E402
from trims.formats.base import Artifact, Converter  # noqa: E402
from trims.formats.onnx.converter import INLINE_BELOW_BYTES, INLINE_INTEGERS_BELOW_BYTES  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

#: onnx type -> the image's dtype; one tensor of each goes through a conversion.
TYPES = {
    TensorProto.FLOAT: "F32", TensorProto.DOUBLE: "F64", TensorProto.FLOAT16: "F16",
    TensorProto.BFLOAT16: "BF16", TensorProto.INT8: "I8", TensorProto.INT16: "I16",
    TensorProto.INT32: "I32", TensorProto.INT64: "I64",
    TensorProto.UINT8: "U8", TensorProto.UINT16: "U16", TensorProto.UINT32: "U32", TensorProto.UINT64: "U64",
    TensorProto.BOOL: "BOOL", TensorProto.FLOAT8E4M3FN: "F8_E4M3", TensorProto.FLOAT8E5M2: "F8_E5M2",
}  # fmt: skip


def test_the_converter_keeps_the_protocol() -> None:
    assert isinstance(CONVERTER, Converter)
    assert CONVERTER.needs_child({})
    assert CONVERTER.frameworks({}) == ("onnxruntime", "onnx")


def test_a_model_is_claimed_by_its_name(tmp_path: Path) -> None:
    assert CONVERTER.claims(tmp_path / "a.ONNX", b"")
    assert not CONVERTER.claims(tmp_path / "a.pt", b"\x08\x08")


def test_a_model_without_external_data_is_one_file(tmp_path: Path) -> None:
    main = linear(tmp_path)
    assert CONVERTER.files(main, {}) == (main,)


def test_external_data_is_found_once_for_all_its_tensors(tmp_path: Path) -> None:
    main = linear(tmp_path, external="sub.data")
    assert CONVERTER.files(main, {}) == (main, tmp_path / "sub.data")


@pytest.mark.parametrize("location", ["/etc/passwd", "../w.bin", "a/../../w.bin", "", "w\0.bin"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    main = tmp_path / "m.onnx"
    main.write_bytes(located(location))
    with pytest.raises(ArtifactError, match="leaves its folder"):
        CONVERTER.files(main, {})


def test_links_into_one_folder_of_blobs_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(located("w.bin"))
    (tmp_path / "blobs" / "2").write_bytes(b"weights")
    for name, blob in (("m.onnx", "1"), ("w.bin", "2")):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / blob)
    main = tmp_path / "snapshot" / "m.onnx"
    assert CONVERTER.files(main, {}) == (main, tmp_path / "snapshot" / "w.bin")


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    main = linear(tmp_path, external="gone.data")
    (tmp_path / "gone.data").unlink()
    with pytest.raises(ArtifactError, match=r"gone\.data cannot be read"):
        CONVERTER.files(main, {})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"optimise": True}, "unknown options optimise"),
        ({"optimize": "most"}, "option optimize"),
        ({"optimize": 3}, "option optimize"),
        ({"prepack": "yes"}, "option prepack"),
        ({"threads": -1}, "option threads"),
        ({"threads": True}, "option threads"),
    ],
)
def test_an_option_that_is_none_is_refused(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArtifactError, match=complaint):
        CONVERTER.files(linear(tmp_path), options)


def test_large_initializers_become_tensors_and_small_ones_stay_in_the_program(tmp_path: Path) -> None:
    view = image(linear(tmp_path))
    assert list(view.layout.tensors) == ["weight"]
    assert view.tensor("weight") == np.arange(32 * 64, dtype=np.float32).tobytes()
    program = view.program()
    assert program is not None
    model = onnx.load_from_string(program.body)
    assert [t.name for t in model.graph.initializer if t.data_location == TensorProto.DEFAULT] == ["bias"]
    assert len(program.body) < 32 * 64 * 4


def test_the_program_tells_what_to_feed_and_what_it_was_made_for(tmp_path: Path) -> None:
    import onnxruntime

    program = image(linear(tmp_path)).program()
    assert program is not None
    assert program.kind == "onnxruntime"
    assert program.attributes["inputs"] == [{"name": "x", "dtype": "F32", "shape": ["N", 32]}]
    assert program.attributes["outputs"] == [{"name": "y", "dtype": "F32", "shape": ["N", 64]}]
    assert program.attributes["onnxruntime"] == onnxruntime.__version__
    assert program.attributes["cpu"]


@pytest.mark.parametrize("optimize", ["none", False])
def test_without_optimization_the_image_is_bound_to_no_host(tmp_path: Path, optimize: str | bool) -> None:
    program = image(linear(tmp_path), optimize=optimize).program()
    assert program is not None
    assert program.attributes["cpu"] is None
    assert program.attributes["onnxruntime"] is None
    assert [node.op_type for node in onnx.load_from_string(program.body).graph.node] == ["Gemm"]


def test_extended_optimization_is_bound_to_the_release_only(tmp_path: Path) -> None:
    program = image(linear(tmp_path), optimize="extended").program()
    assert program is not None
    assert program.attributes["cpu"] is None
    assert program.attributes["onnxruntime"]


def test_external_data_ends_up_in_the_image(tmp_path: Path) -> None:
    inside, outside = image(linear(tmp_path)), image(linear(tmp_path, external="w.bin"))
    assert inside.tensor("weight") == outside.tensor("weight")


def test_truncated_external_data_is_an_artifact_error(tmp_path: Path) -> None:
    main = linear(tmp_path, external="w.bin")
    os.truncate(tmp_path / "w.bin", 100)
    with pytest.raises(ArtifactError, match=r"linear\.onnx: ONNX Runtime"):
        image(main)


def test_a_file_that_is_no_model_is_an_artifact_error_of_the_conversion(tmp_path: Path) -> None:
    main = tmp_path / "m.onnx"
    main.write_bytes(b"\x3a\x02\x0a\x00")
    with pytest.raises(ArtifactError, match="refuses it"):
        CONVERTER.plan(Artifact("onnx", (main,)))


@pytest.mark.parametrize("onnx_type", TYPES, ids=TYPES.values())
def test_every_dtype_arrives_bit_for_bit(tmp_path: Path, onnx_type: int) -> None:
    n_bytes = INLINE_INTEGERS_BELOW_BYTES
    data = bytes(2) + struct.pack(f"<{n_bytes // 4 - 1}I", *range(n_bytes // 4 - 1)) + bytes(2)
    data = bytes(byte & 1 for byte in data) if onnx_type == TensorProto.BOOL else data
    shape = [n_bytes // DTYPE_BYTES[TYPES[onnx_type]] // 8, 8]
    main = save(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["w"], ["y"])],
        [],
        [value("y", onnx_type, shape)],
        [helper.make_tensor("w", onnx_type, shape, data, raw=True)],
    )
    view = image(main, optimize="none")
    spec = view.spec("w")
    assert (spec.dtype, spec.shape) == (TYPES[onnx_type], tuple(shape))
    assert bytes(view.tensor("w")) == data


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 7), np.float32),
        np.float32(3.5).reshape(()),
        np.ones(INLINE_BELOW_BYTES // 4 - 1, np.float32),
    ],
    ids=["zero-size", "scalar", "just below the threshold"],
)
def test_tiny_initializers_stay_in_the_program(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    main = save(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["w"], ["y"])],
        [],
        [value("y", TensorProto.FLOAT, list(array.shape))],
        [numpy_helper.from_array(array, "w")],
    )
    view = image(main, optimize="none")
    program = view.program()
    assert program is not None
    (kept,) = onnx.load_from_string(program.body).graph.initializer
    assert len(view.layout) == 0
    np.testing.assert_array_equal(numpy_helper.to_array(kept), array)


def test_strings_and_4_bit_numbers_stay_in_the_program(tmp_path: Path) -> None:
    text = helper.make_tensor("s", TensorProto.STRING, [400], [b"word"] * 400)
    nibbles = helper.make_tensor("q", TensorProto.INT4, [64, 64], bytes(range(256)) * 8, raw=True)
    main = save(
        tmp_path / "m.onnx",
        [
            helper.make_node("Identity", ["s"], ["y"]),
            helper.make_node("DequantizeLinear", ["q", "scale"], ["z"]),
        ],
        [],
        [value("y", TensorProto.STRING, [400]), value("z", TensorProto.FLOAT, [64, 64])],
        [text, nibbles, numpy_helper.from_array(np.float32(0.5).reshape(()), "scale")],
    )
    model = onnx.load(main)
    model.opset_import[0].version = 21
    onnx.save(model, main)
    view = image(main, optimize="none")
    program = view.program()
    assert program is not None
    kept = {t.name: t for t in onnx.load_from_string(program.body).graph.initializer}
    assert len(view.layout) == 0
    assert list(kept["s"].string_data) == [b"word"] * 400
    assert kept["q"].raw_data == bytes(range(256)) * 8


def test_weights_of_a_subgraph_stay_in_the_program(tmp_path: Path) -> None:
    program = image(branching(tmp_path)).program()
    assert program is not None
    (node,) = (n for n in onnx.load_from_string(program.body).graph.node if n.op_type == "If")
    inner = [t for a in node.attribute for t in a.g.initializer]
    assert sorted(len(t.raw_data) for t in inner) == [4000, 4000]
    assert all(t.data_location == TensorProto.DEFAULT for t in inner)


def branching(folder: Path) -> Path:
    """`y = x + 1 if c else x - 1`, with the ones in the branches."""
    ones = np.ones(1000, np.float32)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["x", f"{name}_w"], [f"{name}_y"])],
            name,
            [],
            [value(f"{name}_y", TensorProto.FLOAT, [1000])],
            [numpy_helper.from_array(ones, f"{name}_w")],
        )
        for name, kind in (("then", "Add"), ("else", "Sub"))
    }
    return save(
        folder / "if.onnx",
        [helper.make_node("If", ["c"], ["y"], **branches)],
        [value("x", TensorProto.FLOAT, [1000]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [1000])],
        [],
    )


def test_the_models_own_strings_are_kept(tmp_path: Path) -> None:
    main = linear(tmp_path)
    model = onnx.load(main)
    helper.set_model_props(model, {"task": "testing"})
    onnx.save(model, main)
    assert dict(image(main).metadata) == {"task": "testing"}


@pytest.mark.parametrize("broken", [False, True], ids=["after success", "after a refusal"])
def test_no_scratch_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    main = linear(tmp_path, external="w.bin")
    if broken:
        os.truncate(tmp_path / "w.bin", 100)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(scratch))
    try:
        CONVERTER.plan(Artifact("onnx", CONVERTER.files(main, {})))
    except ArtifactError:
        assert broken
    assert not list(scratch.iterdir())


def test_the_same_model_gives_the_same_image(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    main, other = linear(tmp_path), linear(tmp_path / "elsewhere")
    first, again, elsewhere = image(main), image(main), image(other)
    assert bytes(first._data) == bytes(again._data) == bytes(elsewhere._data)
    assert bytes(first._data) != bytes(image(main, optimize="none")._data)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_more_than_2_gib_of_external_data_is_streamed(tmp_path: Path) -> None:
    rows, width = 5000, 1 << 18
    data = tmp_path / "w.bin"
    with data.open("wb") as file:
        file.truncate(2 * rows * width)
        os.pwrite(file.fileno(), b"\x07", 2 * rows * width - 1)
    tensors = [TensorProto(name=f"w{n}", data_type=TensorProto.UINT8, dims=[rows, width]) for n in range(2)]
    for number, tensor in enumerate(tensors):
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": "w.bin", "offset": str(number * rows * width), "length": str(rows * width)}
        tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in place.items())
    main = save(
        tmp_path / "m.onnx",
        [helper.make_node("Gather", [f"w{n}", "i"], [f"y{n}"]) for n in range(2)],
        [value("i", TensorProto.INT64, [1])],
        [value(f"y{n}", TensorProto.UINT8, [1, width]) for n in range(2)],
        tensors,
    )
    plan = CONVERTER.plan(Artifact("onnx", CONVERTER.files(main, {})))
    assert plan.nbytes > 2 << 30
    with (tmp_path / "image").open("w+b") as file:
        file.truncate(plan.nbytes)
        plan.write(file.fileno())
        assert os.pread(file.fileno(), 1, len(plan.head) + plan.layout.tensors["w1"].end - 1) == b"\x07"


def test_a_model_in_a_hubs_cache_of_links_is_converted(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    main = linear(tmp_path / "plain", external="w.bin")
    expected = image(main).tensor("weight")
    for name in (main.name, "w.bin"):
        (tmp_path / "plain" / name).rename(tmp_path / "blobs" / f"{name}.blob")
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / f"{name}.blob")
    assert image(tmp_path / "snapshot" / main.name).tensor("weight") == expected
