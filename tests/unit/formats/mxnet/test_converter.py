"""MXNet's files become images without MXNet: every generation of the format is read, every lie refused."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet_files import CONVERTER, FLAGS, SYMBOL, array, image, params, save
from repository import ROOT, SUPPORT

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES
from trims.formats.base import Artifact, Converter
from trims.formats.mxnet.converter import is_params, params_described_bytes, read_params
from trims.image.source import SourceFile
from trims.manifests.serving import ANY_RANK, Signature, TensorType

# MXNet's params file: every generation of the format is read without MXNet, every lie refused.

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))


@pytest.mark.parametrize("dtype", FLAGS)
@pytest.mark.parametrize("generation", range(4))
def test_every_dtype_of_every_generation_arrives(tmp_path: Path, dtype: str, generation: int) -> None:
    arrays = {"arg:a": array(dtype, (3, 5), 1, generation=generation)}
    arrays["arg:w"] = array(dtype, (7,), 0, generation=generation)
    view = image(save(tmp_path, arrays))
    spec = view.spec("a")
    assert (spec.dtype, spec.shape) == (dtype, (3, 5))
    assert bytes(view.tensor("a")) == bytes([1]) * 15 * DTYPE_BYTES[dtype]
    assert bytes(view.tensor("w")) == bytes(7 * DTYPE_BYTES[dtype])


def test_numpy_shapes_allow_scalars_and_empty_arrays(tmp_path: Path) -> None:
    arrays = {f"arg:{n}": array("F32", s, generation=3) for n, s in {"s": (), "e": (0, 4), "w": (2,)}.items()}
    view = image(save(tmp_path, arrays))
    assert [spec.shape for spec in view.layout] == [(), (0, 4), (2,)]


WHOLE = params({"arg:w": array("F32", (2,)), "aux:m": array("F32", (2,))})


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    main = save(tmp_path, WHOLE[:cut])
    with pytest.raises(ArtifactError, match=r"m-0000\.params"):
        image(main)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\x13" + WHOLE[1:], "does not begin"),
        (WHOLE + b"\0", "1 bytes are left over"),
        (struct.pack("<QQQ", 0x112, 0, 1 << 60), "claims"),
        (params({"arg:w": array("F32", (2,))[:-8] + b"\0" * 4}), "behind the file|left over|names"),
        (
            params({"arg:w": struct.pack("<Iii3q", 0xF993FAC9, 0, 3, 1 << 40, 1 << 40, 1 << 40) + bytes(12)}),
            "behind",
        ),
        (params({"arg:w": struct.pack("<Iiiq", 0xF993FAC9, 0, 1, -1) + bytes(12)}), "impossible shape"),
        (params({"arg:w": struct.pack("<Iiiq", 0xF993FAC9, 0, 1, 0) + bytes(12)}), "impossible shape"),
        (params({"arg:w": struct.pack("<Iii", 0xF993FAC9, 0, 33) + bytes(300)}), "33 dimensions"),
        (params({"arg:w": struct.pack("<I", 0x7FFFFFFF) + bytes(300)}), "2147483647 dimensions"),
        (params({"arg:w": struct.pack("<Iii", 0xF993FAC9, 0, 0) + bytes(12)}), "holds nothing"),
        (params({"arg:w": struct.pack("<Iii", 0xF993FACA, 0, -1) + bytes(12)}), "holds nothing"),
        (params({"arg:w": struct.pack("<Ii", 0xF993FAC9, 1) + bytes(64)}), "sparse"),
        (params({"arg:w": struct.pack("<Iiiqiii", 0xF993FAC9, 0, 1, 2, 1, 0, 99) + bytes(8)}), "dtype 99"),
        (WHOLE[: -len("arg:waux:m") - 24] + struct.pack("<Q", 0), "2 arrays and 0 names"),
        (WHOLE[:-13] + struct.pack("<Q", 1 << 40) + b"aux:m", "a name claims"),
        (WHOLE[:-1] + b"\xff", "not UTF-8"),
    ],
)
def test_a_file_that_lies_is_refused_by_what_it_lies_about(tmp_path: Path, data: bytes, complaint: str) -> None:
    main = save(tmp_path, data)
    with pytest.raises(ArtifactError, match=complaint):
        image(main)


@pytest.mark.mxnet
def test_what_mxnet_itself_saves_is_read_as_mxnet_reads_it(tmp_path: Path) -> None:
    if not MXNET_PYTHON.exists():
        pytest.skip(f"no MXNet environment at {MXNET_PYTHON}: make mxnet-env")
    script = SUPPORT / "mxnet_side.py"
    done = subprocess.run(
        [MXNET_PYTHON, script, "save", tmp_path], capture_output=True, text=True, check=True, timeout=300
    )
    saved = json.loads(done.stdout.splitlines()[-1])
    for name, expected in saved.items():
        file = SourceFile.look(tmp_path / name)
        data = file.path.read_bytes()
        found = {a.name: [a.dtype, list(a.shape), data[a.offset : a.end].hex()] for a in read_params(file)}
        assert found == expected
    assert len(saved) == 2


@given(
    st.lists(
        st.tuples(st.text(max_size=10), st.sampled_from(sorted(FLAGS)), st.lists(st.integers(1, 4), max_size=3)),
        max_size=5,
        unique_by=lambda described: described[0],
    )
)
def test_names_dtypes_shapes_and_offsets_are_read_and_the_numbers_lie_there(
    described: list[tuple[str, str, list[int]]],
) -> None:
    arrays = {
        name: array(dtype, tuple(shape), number + 1, generation=3)
        for number, (name, dtype, shape) in enumerate(described)
    }
    data = params(arrays)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        found = read_params(SourceFile.look(Path(file.name)))
    assert [(each.name, each.dtype, list(each.shape)) for each in found] == described
    for number, each in enumerate(found):
        assert set(data[each.offset : each.end]) == {number + 1}


def test_what_describes_the_arrays_is_guessed_from_their_number_and_the_files_length(tmp_path: Path) -> None:
    path = tmp_path / "m-0000.params"
    for data, guess in (
        (b"short", 0),
        (bytes(1000), 0),
        (struct.pack("<QQQ", 0x112, 0, 7) + bytes(5000), 700),
        (struct.pack("<QQQ", 0x112, 0, 1 << 50), 24),
    ):
        path.write_bytes(data)
        assert params_described_bytes(SourceFile.look(path)) == guess


def test_the_converter_keeps_the_protocol_and_needs_nothing() -> None:
    assert isinstance(CONVERTER, Converter)
    assert not CONVERTER.needs_child({})
    assert CONVERTER.frameworks({}) == ()


def test_a_model_is_claimed_by_the_symbols_name_or_the_first_bytes(tmp_path: Path) -> None:
    data = params({"arg:w": array("F32", (2,))})
    assert is_params(data)
    assert CONVERTER.claims(tmp_path / "m-symbol.json", b"{")
    assert CONVERTER.claims(tmp_path / "m-0000.params", data[:64])
    assert not CONVERTER.claims(tmp_path / "m.json", b"{")
    assert not CONVERTER.claims(tmp_path / "m.params", b"\x80\x02")


def test_either_file_finds_the_other(tmp_path: Path) -> None:
    symbol = save(tmp_path, {"arg:w": array("F32", (2,))}, epoch=12)
    other = tmp_path / "m-0012.params"
    assert CONVERTER.files(symbol, {}) == (symbol, other)
    assert CONVERTER.files(other, {}) == (other, symbol)


def test_the_epoch_chooses_among_several_files(tmp_path: Path) -> None:
    save(tmp_path, {"arg:w": array("F32", (2,), 1)}, epoch=3)
    symbol = save(tmp_path, {"arg:w": array("F32", (2,), 2)}, epoch=7)
    assert CONVERTER.files(symbol, {"epoch": 7})[1].name == "m-0007.params"
    assert bytes(image(symbol, epoch=3).tensor("w")) == bytes([1]) * 8
    with pytest.raises(ArtifactError, match=r"m-0003\.params, m-0007\.params; the option epoch"):
        CONVERTER.files(symbol, {})


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("m-symbol.json", {}, "there is none"),
        ("m-symbol.json", {"epoch": 1}, r"m-0001\.params cannot be read"),
        ("m-symbol.json", {"epoch": "1"}, "option epoch is a number"),
        ("m-symbol.json", {"epoch": -1}, "option epoch is a number"),
        ("m-symbol.json", {"epoch": True}, "option epoch is a number"),
        ("m-symbol.json", {"ctx": "gpu"}, "unknown options ctx"),
        ("weights.params", {}, r"PREFIX-NNNN\.params"),
        ("m-0000.params", {"epoch": 0}, "needs no option epoch"),
        ("n-0000.params", {}, r"n-symbol\.json cannot be read"),
    ],
)
def test_a_missing_file_or_a_wrong_option_is_named(
    tmp_path: Path, name: str, options: dict[str, Any], complaint: str
) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(ArtifactError, match=complaint):
        CONVERTER.files(tmp_path / name, options)


def test_tensors_take_the_names_the_graph_knows(tmp_path: Path) -> None:
    main = save(tmp_path, {"arg:w": array("F32", (2, 3)), "aux:mean": array("F64", (3,), 7)})
    view = image(main)
    program = view.program()
    assert list(view.layout.tensors) == ["w", "mean"]
    assert bytes(view.tensor("mean")) == bytes([7]) * 24
    assert program is not None
    assert program.kind == "mxnet-symbol"
    assert program.attributes == {"auxiliary": ["mean"], "inputs": ["data"]}
    assert json.loads(program.body) == SYMBOL


@pytest.mark.parametrize(
    "symbol",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"nodes": []}',
        b'{"nodes": [1]}',
        b'{"nodes": [{"op": "null"}]}',
        b'{"nodes": [{"op": "null", "name": 3}]}',
        b'{"nodes": 5}',
    ],
)
def test_a_symbol_that_is_none_is_refused(tmp_path: Path, symbol: bytes) -> None:
    main = save(tmp_path, {"arg:w": array("F32", (2,))}, symbol)
    with pytest.raises(ArtifactError, match="is not a symbol"):
        image(main)


def test_a_file_that_changes_before_it_is_read_is_refused(tmp_path: Path) -> None:
    main = save(tmp_path, {"arg:w": array("F32", (2,))})
    plan = CONVERTER.plan(Artifact("mxnet", CONVERTER.files(main, {})))
    save(tmp_path, {"arg:w": array("F32", (3,))})
    with pytest.raises(ArtifactError, match="changed"):
        plan.write_into(memoryview(bytearray(plan.nbytes)))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (params({"w": array("F32", (2,))}), "neither arg:NAME nor aux:NAME"),
        (params({"arg:": array("F32", (2,))}), "neither arg:NAME nor aux:NAME"),
        (params({"arg:w": array("F32", (2,)), "aux:w": array("F32", (2,))}), "'w' is there twice"),
    ],
)
def test_a_name_that_the_graph_cannot_know_is_refused(tmp_path: Path, data: bytes, complaint: str) -> None:
    main = save(tmp_path, data)
    with pytest.raises(ArtifactError, match=complaint):
        image(main)


def signature(folder: Path, *stated: dict[str, str]) -> Signature:
    """Return the signature of a model whose inputs have these attributes."""
    inputs = [{"op": "null", "name": f"x{index}", "attrs": each} for index, each in enumerate(stated)]
    symbol = {"nodes": [*inputs, {"op": "null", "name": "w"}, {"op": "abs", "name": "y"}]}
    main = save(folder, {"arg:w": array("F32", (2,))}, symbol)
    return CONVERTER.signature(Artifact("mxnet", CONVERTER.files(main, {})))


def test_inputs_are_known_if_each_variable_states_shape_and_type(tmp_path: Path) -> None:
    whole, half = {"__shape__": "(0, 3)", "__dtype__": "6"}, {"__shape__": "[4]", "__dtype__": "2"}
    assert signature(tmp_path, whole, half).inputs == (
        TensorType("x0", "INT64", (-1, 3)),
        TensorType("x1", "FP16", (4,)),
    )
    hints = (TensorType("x0", "INT64", (-1, 3)), TensorType("x1", "FP32", (ANY_RANK,)))
    for other in ({}, {"__shape__": "(1,)"}, {"__shape__": "()", "__dtype__": "0"}, {**whole, "__dtype__": "12"}):
        assert signature(tmp_path, whole, other) == Signature(hints, seen=True)


@pytest.mark.parametrize(("dtypes", "hint"), [(("F64",), "FP64"), (("I32",), "INT32"), (("F32", "F64"), "FP32")])
def test_an_input_is_taken_to_have_the_type_of_the_parameters(
    tmp_path: Path, dtypes: tuple[str, ...], hint: str
) -> None:
    arrays = {f"arg:w{dtype}": array(dtype, (2,)) for dtype in dtypes}
    symbol = {"nodes": [{"op": "null", "name": name} for name in ("data", *(f"w{dtype}" for dtype in dtypes))]}
    main = save(tmp_path, arrays, symbol)
    (found,) = CONVERTER.signature(Artifact("mxnet", CONVERTER.files(main, {}))).inputs
    assert (found.name, found.dtype) == ("data", hint)


def test_the_label_of_a_loss_is_no_input_of_a_request(tmp_path: Path) -> None:
    symbol = {"nodes": [{"op": "null", "name": name} for name in ("data", "w", "softmax_label")]}
    main = save(tmp_path, {"arg:w": array("F32", (2,))}, symbol)
    found = CONVERTER.signature(Artifact("mxnet", CONVERTER.files(main, {})))
    assert [each.name for each in found.inputs] == ["data"]
