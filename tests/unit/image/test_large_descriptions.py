"""What is large to parse is parsed in a child: the process that serves others never holds its lock for so long."""

from __future__ import annotations

import json
import logging
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import ArtifactError, ConversionError, ImageError
from trims.formats import conversion as conversions
from trims.formats.base import Artifact, Limits
from trims.formats.conversion import converter, detect, start_conversion
from trims.image import apart, plan
from trims.image.look import CHECK_HERE_BYTES, PARSE_HERE_BYTES, described_bytes, without_weights
from trims.image.plan import SourceTensor, plan_image
from trims.image.program import Program
from trims.testing.converters import LIMITS, convert
from trims.tiers import transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Of tensors: the header is some 900 KB.
MANY, FEW = 10_000, 100
NAME = "model.layers.{}.attention.weight"


def safetensors_file(path: Path, tensors: int) -> Path:
    header = {
        NAME.format(number): {"dtype": "F32", "shape": [2], "data_offsets": [8 * number, 8 * number + 8]}
        for number in range(tensors)
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + os.urandom(8 * tensors))
    return path


def a_file(folder: Path, tensors: int) -> Path:
    return safetensors_file(folder / "m.safetensors", tensors)


def shards(folder: Path, tensors: int) -> Path:
    safetensors_file(folder / "1.safetensors", tensors)
    main = folder / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {NAME.format(number): "1.safetensors" for number in range(tensors)}}))
    return main


def an_image(folder: Path, tensors: int, kind: str = "mxnet-symbol") -> Path:
    sources = [SourceTensor(NAME.format(number), "F32", (2,)) for number in range(tensors)]
    planned = plan_image(sources, program=Program(kind, {}, b"body"))
    memory = bytearray(planned.nbytes)
    planned.write_into(memoryview(memory))
    (folder / "i.safetensors").write_bytes(memory)
    return folder / "i.safetensors"


def mxnet_model(folder: Path, tensors: int) -> Path:
    array = struct.pack("<Iiiqiii", 0xF993FAC9, 0, 1, 2, 1, 0, 0) + bytes(8)
    names = [f"arg:{NAME.format(number)}".encode() for number in range(tensors)]
    listed = b"".join(struct.pack("<Q", len(name)) + name for name in names)
    (folder / "m-0000.params").write_bytes(
        struct.pack("<QQQ", 0x112, 0, tensors) + array * tensors + struct.pack("<Q", tensors) + listed
    )
    nodes = [{"op": "null", "name": NAME.format(number)} for number in range(tensors)]
    (folder / "m-symbol.json").write_text(json.dumps({"nodes": nodes}))
    return folder / "m-symbol.json"


KINDS = {"a file": a_file, "shards": shards, "an image": an_image, "an MXNet model": mxnet_model}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def make(request: pytest.FixtureRequest) -> Callable[[Path, int], Path]:
    found: Callable[[Path, int], Path] = request.param
    return found


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Lengths of all JSON that this process reads or writes from now on, and of all tables of tensors."""
    found = [0]
    loads, dumps = json.loads, json.dumps

    def counted_loads(text: Any, **options: Any) -> Any:
        found.append(len(text))
        return loads(text, **options)

    def counted_dumps(value: Any, **options: Any) -> str:
        text = dumps(value, **options)
        found.append(len(text))
        return text

    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", counted_loads)
        patched.setattr(json, "dumps", counted_dumps)
        yield found


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*anything: object, **more: object) -> None:
        pytest.fail("a child was started")

    monkeypatch.setattr(subprocess, "Popen", refuses)


def taken_in(main: Path) -> bytes:
    """All that a daemon does with an artifact, up to the checked image."""
    chosen = detect(main)
    artifact = Artifact(chosen.format, chosen.files(main, {}), {})
    with start_conversion(artifact, limits=LIMITS) as conversion:
        nbytes = conversion.plan()
        fd = os.memfd_create("image")
        try:
            os.truncate(fd, nbytes)
            conversion.write(fd)
            transfer.check_bytes(fd, nbytes)
            return os.pread(fd, nbytes, 0)
        finally:
            os.close(fd)


def test_nothing_large_is_parsed_in_the_process_that_serves_others(
    make: Callable[[Path, int], Path], tmp_path: Path, lengths: list[int]
) -> None:
    main = make(tmp_path, MANY)
    lengths.clear()
    assert len(taken_in(main)) > PARSE_HERE_BYTES
    assert max(lengths) <= PARSE_HERE_BYTES


@pytest.mark.usefixtures("no_child")
def test_a_small_artifact_is_converted_and_checked_without_a_child(
    make: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    assert len(taken_in(make(tmp_path, FEW))) > 0


def test_a_child_makes_the_same_image_as_this_process(
    make: Callable[[Path, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = make(tmp_path, MANY)
    in_child = taken_in(main)
    monkeypatch.setattr(conversions, "PARSE_HERE_BYTES", 1 << 40)
    assert taken_in(main) == in_child


@pytest.mark.parametrize("entries", [1, plan._DUMPED - 1, plan._DUMPED, plan._DUMPED + 1, 3 * plan._DUMPED])
def test_a_header_written_in_pieces_is_the_one_written_at_once(entries: int) -> None:
    head = {f'ü"{number}\\': {"dtype": "F32", "shape": [number, 2], "x": None} for number in range(entries)}
    assert plan._dump(head) == json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_large_header_that_lies_is_told_as_a_small_one_is(tmp_path: Path) -> None:
    main = a_file(tmp_path, MANY)
    data = bytearray(main.read_bytes())
    at = data.index(b'"F32"')
    data[at : at + 5] = b'"F99"'
    main.write_bytes(data)
    artifact = Artifact("safetensors", (main,), {})
    with (
        start_conversion(artifact, limits=LIMITS) as conversion,
        pytest.raises(ArtifactError, match=r"m\.safetensors: tensor .* has the unsupported dtype 'F99'"),
    ):
        conversion.plan()


def test_a_large_index_that_leaves_its_folder_is_told_as_a_small_one_is(tmp_path: Path) -> None:
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {NAME.format(number): "../x.safetensors" for number in range(MANY)}}))
    with pytest.raises(ArtifactError, match=r"'\.\./x\.safetensors', which leaves its folder"):
        converter("safetensors").files(main, {})


def test_an_index_of_more_shards_than_are_published_is_refused(tmp_path: Path) -> None:
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {NAME.format(number): f"{number}" for number in range(MANY)}}))
    with pytest.raises(ArtifactError, match="it names 10000 files; more than 4096 shards are refused"):
        converter("safetensors").files(main, {})


def test_what_a_child_warns_of_is_logged_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    main = an_image(tmp_path, MANY, "torch-skeleton")
    with caplog.at_level(logging.WARNING):
        convert(Artifact("safetensors", (main,), {}), tmp_path / "image")
    assert "torch-skeleton was left out" in caplog.text


def test_a_large_conversion_keeps_to_its_limits_and_says_why_it_was_stopped(tmp_path: Path) -> None:
    artifact = Artifact("safetensors", (a_file(tmp_path, MANY),), {})
    with (
        start_conversion(artifact, limits=Limits(time_s=0.01)) as conversion,
        pytest.raises(ConversionError, match="not done within the time limit"),
    ):
        conversion.plan()
    with start_conversion(artifact, limits=LIMITS) as conversion:
        conversion.plan()
        conversion.cancel("the daemon is shutting down")
        with pytest.raises(ConversionError, match="its conversion was stopped: the daemon is shutting down"):
            conversion.write(0)


# -- checking images -------------------------------------------------------------------------------------------------


def checked(path: Path) -> None:
    with path.open("rb") as file:
        transfer.check_bytes(file.fileno(), path.stat().st_size)


def test_a_large_image_that_is_wrong_is_found_out_by_the_child(tmp_path: Path) -> None:
    path = an_image(tmp_path, MANY)
    checked(path)
    data = bytearray(path.read_bytes())
    data[data.index(b'"F32"') : data.index(b'"F32"') + 5] = b'"I32"'
    path.write_bytes(data)
    with pytest.raises(ImageError, match="header and index disagree about tensor"):
        checked(path)


def test_an_image_that_is_truncated_while_it_is_checked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = an_image(tmp_path, FEW)
    nbytes, pread = path.stat().st_size, os.pread

    def truncates(fd: int, length: int, offset: int) -> bytes:
        if offset > 0:
            os.truncate(path, offset + 10)
        return pread(fd, length, offset)

    monkeypatch.setattr(os, "pread", truncates)
    with path.open("rb") as file, pytest.raises(ImageError, match=r"too short for an index|truncated"):
        transfer.check_bytes(file.fileno(), nbytes)


def test_a_child_that_cannot_finish_a_check_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = an_image(tmp_path, MANY)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConversionError, match="the process that checks an image ended with status 1"):
        checked(path)
    monkeypatch.setattr(apart, "_TIME_S", 0.01)
    (tmp_path / "sleeps").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "sleeps").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "sleeps"))
    with pytest.raises(ConversionError, match="was not checked within"):
        checked(path)


def test_an_image_is_as_large_as_what_must_be_parsed_of_it(tmp_path: Path) -> None:
    for tensors, program, large in ((FEW, 100, False), (FEW, 20 << 20, True), (MANY, 100, True)):
        sources = [SourceTensor(NAME.format(number), "F32", (2,)) for number in range(tensors)]
        planned = plan_image(sources, program=Program("mxnet-symbol", {}, bytes(program)))
        with (tmp_path / "image").open("w+b") as file:
            file.truncate(planned.nbytes)
            planned.write(file.fileno())
            assert (described_bytes(file.fileno(), planned.nbytes, "image") > CHECK_HERE_BYTES) is large


def test_a_copy_without_weights_has_all_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "image"
    data = os.urandom(100_000)
    planned = plan_image(
        [SourceTensor("w", "U8", (len(data),), lambda place: place.__setitem__(slice(None), data))],
        program=Program("mxnet-symbol", {}, b"body"),
    )
    path.write_bytes(bytes(planned.nbytes))
    with path.open("r+b") as file:
        planned.write(file.fileno())
        copy = without_weights(file.fileno(), planned.nbytes)
    whole = path.read_bytes()
    at = whole.index(data)
    assert copy[:at].rstrip(b"\0") == whole[:at].rstrip(b"\0")
    assert copy[at : at + len(data)] == bytes(len(data))
    assert copy[at + len(data) :] == whole[at + len(data) :]
    copy.close()
