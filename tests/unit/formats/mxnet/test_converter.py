from __future__ import annotations

import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mxnet_files import FLAGS, array, image, params, save
from repository import ROOT, SUPPORT

from trims.core.errors import ArtifactError
from trims.core.layout import DTYPE_BYTES
from trims.formats.mxnet.converter import params_described_bytes, read_params
from trims.image.source import SourceFile

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
