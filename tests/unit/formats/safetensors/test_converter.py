"""safetensors artifacts: single files, shards, and images that are taken up again."""

from __future__ import annotations

import json
import logging
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trims_client.weights import Weights

from trims.core.errors import ArtifactError, ConversionError
from trims.formats.base import Artifact, Limits
from trims.formats.conversion.conversion import start_conversion
from trims.formats.safetensors.converter import SafetensorsConverter
from trims.image.checksum import stamp
from trims.image.plan import SourceTensor, plan_image
from trims.image.program import Program
from trims.testing.converters import LIMITS, artifact_at, convert

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

INDEX = "model.safetensors.index.json"


def save(path: Path, tensors: dict[str, NDArray[Any]], metadata: dict[str, str] | None = None) -> Path:
    """A safetensors file, written by hand so that these tests need no library."""
    names = {"f4": "F32", "i8": "I64", "u1": "U8"}
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in tensors.items():
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": names[array.dtype.str[1:]], "shape": list(array.shape), "data_offsets": span}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def arrays(*names: str) -> dict[str, NDArray[Any]]:
    return {name: np.random.default_rng(seed).random((3, 5), dtype="f4") for seed, name in enumerate(names)}


def converted(main: Path, **options: Any) -> Weights:
    return Weights.map_file(convert(artifact_at(main, **options), main.parent / "image"))


def test_one_file_becomes_an_image_with_the_same_tensors_and_metadata(tmp_path: Path) -> None:
    tensors = {**arrays("a", "b"), "empty": np.zeros((0, 4), "f4"), "scalar": np.array(7, "i8")}
    with converted(save(tmp_path / "m.safetensors", tensors, {"format": "pt"})) as weights:
        assert list(weights) == list(tensors)
        assert all(np.array_equal(weights[name], tensors[name]) for name in tensors)
        assert weights.metadata == {"format": "pt"}
        assert weights.program() is None


def test_no_child_and_no_framework_is_needed_unless_a_module_is_wanted() -> None:
    chosen = SafetensorsConverter()
    assert not chosen.needs_child({})
    assert chosen.frameworks({}) == ()
    assert chosen.needs_child({"module": "m:f"})
    assert chosen.frameworks({"module": "m:f"}) == ("torch", "transformers")


def sharded(folder: Path, **weight_map: str) -> Path:
    main = folder / INDEX
    main.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return main


def test_shards_become_one_image(tmp_path: Path) -> None:
    tensors = arrays("a", "b", "c")
    save(tmp_path / "1.safetensors", {"a": tensors["a"], "b": tensors["b"]}, {"format": "pt"})
    save(tmp_path / "2.safetensors", {"c": tensors["c"]})
    main = sharded(tmp_path, a="1.safetensors", b="1.safetensors", c="2.safetensors")
    assert [path.name for path in artifact_at(main).files] == [INDEX, "1.safetensors", "2.safetensors"]
    with converted(main) as weights:
        assert {name: array.tobytes() for name, array in weights.items()} == {
            name: array.tobytes() for name, array in tensors.items()
        }
        assert weights.metadata == {"format": "pt"}


def test_shards_behind_links_are_followed_as_model_hubs_keep_them_there(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    save(blobs / "0123", arrays("a"))
    (tmp_path / "1.safetensors").symlink_to(blobs / "0123")
    with converted(sharded(tmp_path, a="1.safetensors")) as weights:
        assert list(weights) == ["a"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../1.safetensors", "x/../../1.safetensors", "", "a\0b"])
def test_a_shard_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="which leaves its folder"):
        artifact_at(sharded(tmp_path, a=name))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"gone\.safetensors cannot be read"):
        artifact_at(sharded(tmp_path, a="gone.safetensors"))


def test_a_tensor_that_is_not_in_its_shard_is_named(tmp_path: Path) -> None:
    save(tmp_path / "1.safetensors", arrays("a"))
    save(tmp_path / "2.safetensors", arrays("b"))
    with pytest.raises(ArtifactError, match=r"'b' should be in 1\.safetensors"):
        converted(sharded(tmp_path, a="1.safetensors", b="1.safetensors", c="2.safetensors"))


def test_a_tensor_that_is_in_two_shards_is_named(tmp_path: Path) -> None:
    save(tmp_path / "1.safetensors", arrays("a", "b"))
    save(tmp_path / "2.safetensors", arrays("b"))
    with pytest.raises(ArtifactError, match=r"'b' is in 1\.safetensors and again in 2\.safetensors"):
        converted(sharded(tmp_path, a="1.safetensors", b="2.safetensors"))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}', "[" * 100_000]
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ArtifactError, match=INDEX):
        artifact_at(tmp_path / INDEX)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modul": "x"}, "unknown options modul; known are allow_pickle, ignore, module"),
        ({"allow_pickle": 1}, "true or false"),
    ],
)
def test_options_it_does_not_know_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    main = save(tmp_path / "m.safetensors", arrays("a"))
    with pytest.raises(ArtifactError, match=words):
        SafetensorsConverter().files(main, options)
    with pytest.raises(ArtifactError, match=words):
        SafetensorsConverter().plan(Artifact("safetensors", (main,), options))


# -- images -----------------------------------------------------------------------------------------------------


def write_image(path: Path, kind: str | None) -> Path:
    data = bytes(range(8))
    sources = [
        SourceTensor("a", "U8", (8,), fill=lambda place: place.__setitem__(slice(None), data)),
        SourceTensor("empty", "F32", (0,)),
        SourceTensor("tied", "I8", (4,), tied_to="a"),
        SourceTensor("z", "F64", (3,)),
    ]
    plan = plan_image(sources, program=Program(kind, {}, b"\0body") if kind else None, metadata={"who": "us"})
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    stamp(memoryview(memory))
    path.write_bytes(memory)
    return path


@pytest.mark.parametrize("kind", [None, "mxnet-symbol"])
def test_an_image_is_taken_up_byte_by_byte(tmp_path: Path, kind: str | None) -> None:
    main = write_image(tmp_path / "m.safetensors", kind)
    convert(artifact_at(main), tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == main.read_bytes()


def test_a_program_that_is_code_is_left_out_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    main = write_image(tmp_path / "m.safetensors", "torch-skeleton")
    with caplog.at_level(logging.WARNING), converted(main) as weights:
        assert weights.program() is None
        assert bytes(weights.raw("tied")) == bytes(range(4))
    assert "torch-skeleton was left out" in caplog.text


def test_a_program_that_is_code_is_kept_when_the_manifest_allows_it(tmp_path: Path) -> None:
    main = write_image(tmp_path / "m.safetensors", "torch-skeleton")
    convert(artifact_at(main, allow_pickle=True), tmp_path / "image")
    assert (tmp_path / "image").read_bytes() == main.read_bytes()


def test_an_image_that_lies_is_refused(tmp_path: Path) -> None:
    main = write_image(tmp_path / "m.safetensors", None)
    data = main.read_bytes()
    at = data.index(b"TRIMSIX1") + 8
    main.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    with pytest.raises(ArtifactError, match=r"m\.safetensors: the index claims"):
        converted(main)


# -- one interface with those that need a child -----------------------------------------------------------------


def test_cancelling_stops_the_writing_between_two_pieces(tmp_path: Path) -> None:
    main = save(tmp_path / "m.safetensors", {"a": np.zeros(40 << 20, "u1")})
    image = tmp_path / "image"
    with start_conversion(artifact_at(main), limits=LIMITS) as conversion:
        image.write_bytes(bytes(conversion.plan()))
        with image.open("r+b") as target, pytest.raises(ConversionError) as caught:
            conversion.write(target.fileno(), lambda _: conversion.cancel("the daemon is shutting down"))
        conversion.close()
    assert str(caught.value) == f"{main}: its conversion was stopped: the daemon is shutting down"


def test_a_closed_conversion_neither_plans_nor_writes(tmp_path: Path) -> None:
    artifact = artifact_at(save(tmp_path / "m.safetensors", arrays("a")))
    conversion = start_conversion(artifact, limits=LIMITS)
    conversion.close()
    conversion.close()
    with pytest.raises(ConversionError, match="its conversion was stopped: it was closed before its end"):
        conversion.plan()
    with pytest.raises(ConversionError, match="its conversion was stopped: it was closed before its end"):
        conversion.write(0)


def test_the_time_limit_holds_without_a_child_too(tmp_path: Path) -> None:
    artifact = artifact_at(save(tmp_path / "m.safetensors", arrays("a")))
    with (
        start_conversion(artifact, limits=Limits(time_s=0.0)) as conversion,
        pytest.raises(ConversionError, match="not done within the time limit of 0 s"),
    ):
        conversion.plan()
