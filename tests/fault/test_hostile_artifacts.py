"""Files made to harm their reader: each ends in an error that names it, none in harm.

The rules of single headers have their own table in `test_header_checks`; here whole files go the whole way.
"""

# fault (damage): an artifact is truncated, changed while read, or not what it claims -> `bad_artifact` with file and
# rule; no image
# fault (damage): zip bombs, pickles posing as checkpoints, paths that leave the folder -> `bad_artifact`,
# `conversion`

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ArtifactError, ConversionError, TrimsError
from trims.formats.base import Artifact, Limits
from trims.formats.conversion.conversion import converter, start_conversion
from trims.testing.converters import artifact_at, convert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("forked_starts")


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(begin: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin], "data_offsets": [begin, end]}


SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "an empty file": (b"", "too short"),
    "seven bytes": (b"\0" * 7, "too short"),
    "a length of 100 MB": (raw({"a": tensor(0, 4)}, bytes(4), 100_000_000), "are refused"),
    "a length beyond the file": (raw({"a": tensor(0, 4)}, bytes(4), 10_000), "truncated"),
    "a length of 2^64 - 1": (raw({}, b"", (1 << 64) - 1), "are refused"),
    "data cut off": (raw({"a": tensor(0, 4)}, bytes(3)), "data block has 3"),
    "data left over": (raw({"a": tensor(0, 4)}, bytes(5)), "data block has 5"),
    "an overlap": (raw({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)), "overlaps"),
    "a hole": (raw({"a": tensor(0, 2), "b": tensor(4, 6)}, bytes(6)), "hole"),
    "a tensor of 2^60 bytes": (raw({"a": tensor(0, 1 << 60)}, bytes(6)), "data block has 6"),
    "a name twice": (raw(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'), "'a' twice"),
    "nested lists": (raw(b"[" * 1_000_000), "not JSON"),
}


@pytest.mark.parametrize(("data", "words"), SAFETENSORS.values(), ids=SAFETENSORS.keys())
def test_a_safetensors_file_is_refused_that_has(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=words) as caught:
        convert(Artifact("safetensors", (path,)), tmp_path / "image")
    assert "evil.safetensors" in str(caught.value)


def test_a_header_of_100_mb_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000) + b"{")
        file.truncate(200_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match="claims 100000000 bytes"):
        converter("safetensors").plan(Artifact("safetensors", (path,)))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 50_000_000


def test_a_sparse_file_of_a_terabyte_that_calls_itself_an_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    nothing = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    terabyte = 1 << 40
    header = json.dumps({"a": {**nothing, "shape": [terabyte], "data_offsets": [0, terabyte]}}).encode()
    with path.open("wb") as file:
        file.write(raw(header) + b"TRIMSIX1" + b"\xff" * 56)
        file.truncate(8 + len(header) + terabyte)
    with pytest.raises(ArtifactError, match="contradict"):
        converter("safetensors").plan(Artifact("safetensors", (path,)))


def test_shards_that_name_their_own_index_are_refused(tmp_path: Path) -> None:
    index = tmp_path / "evil.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": index.name}}))
    with pytest.raises(ArtifactError, match=r"evil\.safetensors\.index\.json"):
        converter("safetensors").plan(Artifact("safetensors", (index,)))


def test_a_file_truncated_during_its_conversion_is_an_artifact_error(tmp_path: Path) -> None:
    path = tmp_path / "evil.safetensors"
    path.write_bytes(raw({"a": tensor(0, 40 << 20)}, bytes(40 << 20)))
    with start_conversion(artifact_at(path), limits=Limits()) as conversion, (tmp_path / "image").open("w+b") as image:
        image.truncate(conversion.plan())
        with pytest.raises(ArtifactError, match=r"evil\.safetensors (ended at|was changed)"):
            conversion.write(image.fileno(), lambda _: os.truncate(path, 1000))


# -- zip files ------------------------------------------------------------------------------------------------------


def npy(shape: str, data: bytes) -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target.getvalue()


def nested_bomb() -> bytes:
    return zipped({"inner.zip": zipped({"a.npy": npy("(100000000,)", bytes(100_000_000))})})


def lying_directory() -> bytes:
    """The archive's directory claims 4 GB where there are ten bytes."""
    data = bytearray(zipped({"a.npy": npy("(4000000000,)", bytes(10))}))
    at = data.index(b"PK\x01\x02")
    data[at + 20 : at + 28] = struct.pack("<II", 4_000_000_000, 4_000_000_000)
    return bytes(data)


def overlapping() -> bytes:
    """Two members that are the same bytes of the file."""
    data = bytearray(zipped({"a.npy": npy("(3,)", b"abc"), "b.npy": npy("(3,)", b"abc")}, zipfile.ZIP_STORED))
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[second + 42 : second + 46] = struct.pack("<I", 0)
    return bytes(data)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "a bomb in a zip": nested_bomb,
    "a lying directory": lying_directory,
    "overlapping members": overlapping,
    "a name twice": lambda: zipped({"a.npy": npy("(1,)", b"x"), "b.npy": b""}).replace(b"b.npy", b"a.npy"),
    "a pickle": lambda: zipped({"a.npy": npy("(1,)", b"x").replace(b"'|u1'", b"'|O' ")}),
}


@pytest.mark.parametrize("make", ARCHIVES.values(), ids=ARCHIVES.keys())
def test_an_archive_is_refused_that_is(tmp_path: Path, make: Callable[[], bytes]) -> None:
    path = tmp_path / "evil.npz"
    path.write_bytes(make())
    with pytest.raises(TrimsError, match=r"evil\.npz|described twice") as caught:
        convert(Artifact("npz", (path,)), tmp_path / "image")
    assert caught.value.code in ("bad_artifact", "conversion", "bad_image")


def test_a_bomb_is_planned_with_its_true_size_and_costs_its_own_child_only(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(zipped({"a.npy": npy("(500000000,)", bytes(500_000_000))}))
    assert path.stat().st_size < 1_000_000
    with start_conversion(Artifact("npz", (path,)), limits=Limits(memory_bytes=300 << 20)) as conversion:
        assert conversion.plan() > 500_000_000  # the store knows before it gives any memory


def test_a_fortran_ordered_bomb_meets_the_memory_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    data = npy("(25000, 25000)", bytes(625_000_000)).replace(b"'fortran_order': False", b"'fortran_order': True ")
    path.write_bytes(zipped({"a.npy": data}))
    with pytest.raises(
        ConversionError,
        match=r"bomb\.npz: .* its memory limit of 400\.0 MiB \(raise the setting converter_memory_bytes\)",
    ):
        convert(Artifact("npz", (path,)), tmp_path / "image", limits=Limits(memory_bytes=400 << 20))


# -- pickles ----------------------------------------------------------------------------------------------------------


class Runs:
    """Object whose pickle calls `os.system`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_bare_pickle_called_a_checkpoint_is_not_run(tmp_path: Path, protocol: int) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Runs(f"touch {tmp_path}/harm"), protocol))
    with pytest.raises(ArtifactError, match=r"evil\.pt"):
        convert(Artifact("torch", (path,)), tmp_path / "image")
    assert not (tmp_path / "harm").exists()


def test_a_checkpoint_whose_code_kills_the_converter_when_allowed_kills_nothing_else(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "evil.pt"
    torch.save({"w": torch.ones(1), "x": Runs("kill -SEGV $PPID")}, path)
    with pytest.raises(ArtifactError, match="allow_pickle"):
        convert(Artifact("torch", (path,)), tmp_path / "image")
    with pytest.raises(ConversionError, match=r"evil\.pt: the child process was ended by SIGSEGV"):
        convert(Artifact("torch", (path,), {"allow_pickle": True}), tmp_path / "image")


def test_a_checkpoint_that_claims_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "evil.pt"
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, path)
    with start_conversion(Artifact("torch", (path,)), limits=Limits()) as conversion:
        assert conversion.plan() > 1 << 42  # a view of four bytes as 4 TiB: the store refuses such an image by its size
