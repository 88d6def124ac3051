"""MXNet's files become images without MXNet: every generation of the format is read, every lie refused."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT, SUPPORT

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.formats.base import Artifact, Converter
from trims.formats.mxnet import MxnetConverter
from trims.formats.mxnet_params import is_params, read_params
from trims.image.check import check_image
from trims.image.reader import ImageView
from trims.image.source import SourceFile

MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))
CONVERTER = MxnetConverter()
FLAGS = {"F32": 0, "F64": 1, "F16": 2, "U8": 3, "I32": 4, "I8": 5, "I64": 6, "BOOL": 7}
SYMBOL = {"nodes": [{"op": "null", "name": "data"}, {"op": "null", "name": "w"}, {"op": "abs", "name": "y"}]}


def array(dtype: str, shape: tuple[int, ...], fill: int = 1, *, generation: int = 2) -> bytes:
    """One dense array as MXNet stores it: generation 0 is the oldest."""
    data = bytes([fill]) * (element_count(shape) * DTYPE_BYTES[dtype])
    tail = struct.pack("<iii", 1, 0, FLAGS[dtype]) + data
    if generation == 0:
        return struct.pack(f"<I{len(shape)}I", len(shape), *shape) + tail
    storage = b"" if generation == 1 else struct.pack("<i", 0)
    head = struct.pack("<I", 0xF993FAC7 + generation) + storage
    return head + struct.pack(f"<i{len(shape)}q", len(shape), *shape) + tail


def params(arrays: dict[str, bytes]) -> bytes:
    names = b"".join(struct.pack("<Q", len(name.encode())) + name.encode() for name in arrays)
    count = struct.pack("<Q", len(arrays))
    return struct.pack("<QQ", 0x112, 0) + count + b"".join(arrays.values()) + count + names


def save(folder: Path, arrays: dict[str, bytes] | bytes, symbol: Any = None, *, epoch: int = 0) -> Path:
    """Both files; returns the symbol's path."""
    data = arrays if isinstance(arrays, bytes) else params(arrays)
    (folder / f"m-{epoch:04d}.params").write_bytes(data)
    main = folder / "m-symbol.json"
    main.write_bytes(symbol if isinstance(symbol, bytes) else json.dumps(symbol or SYMBOL).encode())
    return main


def image(main: Path, **options: Any) -> ImageView:
    plan = CONVERTER.plan(Artifact("mxnet", CONVERTER.files(main, options), options))
    target = bytearray(plan.nbytes)
    plan.write_into(memoryview(target))
    view = ImageView(memoryview(bytes(target)))
    check_image(view)
    return view


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
        (params({"w": array("F32", (2,))}), "neither arg:NAME nor aux:NAME"),
        (params({"arg:": array("F32", (2,))}), "neither arg:NAME nor aux:NAME"),
        (params({"arg:w": array("F32", (2,)), "aux:w": array("F32", (2,))}), "'w' is there twice"),
        (WHOLE[: -len("arg:waux:m") - 24] + struct.pack("<Q", 0), "2 arrays and 0 names"),
        (WHOLE[:-13] + struct.pack("<Q", 1 << 40) + b"aux:m", "a name claims"),
        (WHOLE[:-1] + b"\xff", "not UTF-8"),
    ],
)
def test_a_file_that_lies_is_refused_by_what_it_lies_about(tmp_path: Path, data: bytes, complaint: str) -> None:
    main = save(tmp_path, data)
    with pytest.raises(ArtifactError, match=complaint):
        image(main)


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


@pytest.mark.mxnet
def test_what_mxnet_itself_saves_is_read_as_mxnet_reads_it(tmp_path: Path) -> None:
    if not MXNET_PYTHON.exists():
        pytest.skip(f"no MXNet environment at {MXNET_PYTHON}: make mxnet-env")
    script = SUPPORT / "mxnet_side.py"
    done = subprocess.run(
        [MXNET_PYTHON, script, "save", tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    saved = json.loads(done.stdout.splitlines()[-1])
    for name, expected in saved.items():
        file = SourceFile.look(tmp_path / name)
        data = file.path.read_bytes()
        found = {a.name: [a.dtype, list(a.shape), data[a.offset : a.end].hex()] for a in read_params(file)}
        assert found == expected
    assert len(saved) == 2
