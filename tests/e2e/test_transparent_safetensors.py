"""`safetensors.numpy.load_file` over shared memory returns what it returns alone, to the bit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from transparently import counted, installed  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("daemon", "installed")
#: Originals, where no adapter finds them.
PLAIN = {"load_file": safetensors.numpy.load_file}


def saved(path: Path) -> Path:
    random = np.random.default_rng(3)
    kinds = ["f8", "f4", "f2", "i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1", "?", "c8"]
    tensors = {f"{99 - at} ü": (random.standard_normal((3, at + 1)) * 9).astype(kind) for at, kind in enumerate(kinds)}
    more = {"scalar": np.array(7, np.int64)}
    safetensors.numpy.save_file(tensors | more, path, {"format": "np"})
    return path


def contents(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (name, type(each), each.dtype, each.shape, each.strides, str(each.flags), each.tobytes())
        for name, each in found.items()
    ]


def test_load_file_returns_what_it_returns_alone(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    assert contents(safetensors.numpy.load_file(path)) == contents(PLAIN["load_file"](path))
    assert counted() == (1, [])


def test_an_empty_tensor_is_one(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"empty": np.zeros((0, 4), np.float32), "w": np.ones(3, np.float32)}, path)
    ours, alone = safetensors.numpy.load_file(path), PLAIN["load_file"](path)
    assert sorted(contents(ours)) == sorted(
        contents(alone)
    )  # of two at one place the library picks the first by chance
    assert counted() == (1, [])


def test_a_tensor_that_is_not_aligned_is_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    described = {
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "f": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    header = json.dumps(described).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(9)))
    assert contents(safetensors.numpy.load_file(path)) == contents(PLAIN["load_file"](path))
    assert counted() == (1, [])


def test_what_a_program_writes_no_other_load_sees(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    for each in safetensors.numpy.load_file(path).values():
        each[...] = 0
    assert contents(safetensors.numpy.load_file(path)) == contents(PLAIN["load_file"](path))
    assert counted() == (2, [])


def test_a_file_that_is_replaced_while_it_is_opened_is_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = saved(tmp_path / "m.safetensors"), tmp_path / "n.safetensors"
    safetensors.numpy.save_file({name: np.zeros_like(each) for name, each in PLAIN["load_file"](path).items()}, other)

    def replaces(*args: Any, **kwargs: Any) -> Any:
        if other.exists():
            other.rename(path)
        return safetensors.safe_open(*args, **kwargs)

    monkeypatch.setattr(safetensors.numpy, "safe_open", replaces)
    assert not any(each.any() for each in safetensors.numpy.load_file(path).values())
    assert counted() == (0, ["changed meanwhile"])


def test_a_stated_backend_is_the_callers(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors")
    assert contents(safetensors.numpy.load_file(path, backend="pread")) == contents(PLAIN["load_file"](path))
    assert counted() == (0, ["an argument that the adapter does not know"])


@pytest.mark.parametrize(
    "content", [b"", b"\x02", b"\x02\0\0\0\0\0\0\0{]", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0{}x"], ids=repr
)
def test_errors_are_the_librarys(content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "m.safetensors").write_bytes(content)
    found = []
    for load in (PLAIN["load_file"], safetensors.numpy.load_file):
        with pytest.raises(safetensors.SafetensorError) as error:
            load(path)
        found.append((str(error.value), error.value.__context__))
    assert found[0] == found[1]


def test_a_dtype_that_numpy_lacks_is_the_librarys_error(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3, dtype=torch.bfloat16)}, path := tmp_path / "m.safetensors")
    found = []
    for load in (PLAIN["load_file"], safetensors.numpy.load_file):
        try:
            found.append(contents(load(path)))
        except Exception as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]
