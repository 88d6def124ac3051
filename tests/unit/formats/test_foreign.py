"""A file that is not what it was taken for is named for what it is, whichever format was to read it."""

# fault (damage): a pointer of Git LFS, a web page, an archive, another format -> `bad_artifact` (archives:
# `not_supported`) with what it is and the remedy

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest
from safetensors_files import safetensors_file

from trims.core.errors import ArtifactError, NotSupportedError
from trims.formats.base import Artifact
from trims.formats.conversion.conversion import converter, detect, start_conversion
from trims.formats.foreign import describe_archive, describe_failed_download, describe_foreign
from trims.formats.in_place import InPlace
from trims.formats.plugins import formats, naming_foreign
from trims.testing.converters import LIMITS

if TYPE_CHECKING:
    from pathlib import Path

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 438007537\n"
DOWNLOADS = {
    "a pointer of Git LFS": (POINTER, r"a pointer of Git LFS to a file of 438007537 bytes.*git lfs pull"),
    "a page": (b"<!DOCTYPE html>\n<html><head>", "an HTML or XML page"),
    "a page with a comment first": (b"\n <!-- x -->\n<HTML lang='en'>", "an HTML or XML page"),
    "an answer of object storage": (b'<?xml version="1.0"?><Error><Code>AccessDenied', "an HTML or XML page"),
    "an answer of an interface": (b'{"error":"Repository not found"}', "a server's error message"),
}
SUFFIXES = {
    "safetensors": "safetensors", "torch": "bin", "onnx": "onnx", "npz": "npz", "npy": "npy", "mxnet": "params"
}  # fmt: skip


@pytest.mark.parametrize("what", DOWNLOADS)
@pytest.mark.parametrize("suffix", [*SUFFIXES.values(), "pt", "safetensors.index.json", "bin.index.json"])
def test_a_failed_download_is_named_whatever_its_suffix(tmp_path: Path, suffix: str, what: str) -> None:
    content, words = DOWNLOADS[what]
    (tmp_path / f"model.{suffix}").write_bytes(content)
    with pytest.raises(ArtifactError, match=words):
        detect(tmp_path / f"model.{suffix}")


@pytest.mark.parametrize("what", DOWNLOADS)
@pytest.mark.parametrize("name", SUFFIXES)
def test_a_failed_download_is_named_where_the_manifest_says_a_format(tmp_path: Path, name: str, what: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    content, words = DOWNLOADS[what]
    main = tmp_path / f"model.{SUFFIXES[name]}"
    main.write_bytes(content)

    def planned() -> None:
        with naming_foreign(name, [main]):
            files = converter(name).files(main, {})
        with start_conversion(Artifact(name, files), limits=LIMITS) as conversion:
            conversion.plan()

    with pytest.raises(ArtifactError, match=rf"model\.{SUFFIXES[name]} is {words}"):
        planned()
    # Folders are in tests/unit/formats/transformers; bytes are what they are.
    assert set(formats()) == {*SUFFIXES, "transformers", "bytes", "cast"}


def test_a_shard_that_is_a_pointer_is_named_also_in_place(tmp_path: Path) -> None:
    safetensors_file(tmp_path / "1.safetensors", 1)
    (tmp_path / "2.safetensors").write_bytes(POINTER)
    main = tmp_path / "m.safetensors.index.json"
    main.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    artifact = Artifact("safetensors", converter("safetensors").files(main, {}))
    with pytest.raises(ArtifactError, match=r"2\.safetensors is a pointer of Git LFS"):
        InPlace(artifact).plan()
    with (
        pytest.raises(ArtifactError, match=r"2\.safetensors is a pointer of Git LFS"),
        start_conversion(artifact, limits=LIMITS) as conversion,
    ):
        conversion.plan()


def test_a_torch_checkpoint_that_is_read_as_safetensors_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for zip_format in (True, False):
        main = tmp_path / "m.safetensors"
        torch.save({"w": torch.ones(1)}, main, _use_new_zipfile_serialization=zip_format)
        assert detect(main).format == "torch"
        with pytest.raises(ArtifactError, match="of the format torch, not safetensors: write `format: torch`"):
            InPlace(Artifact("safetensors", (main,))).plan()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x1f\x8b\x08" + bytes(300), "compressed by gzip"),
        (b"GGUF" + bytes(300), "a GGUF file"),
        (bytes(257) + b"ustar\0" + bytes(250), "a tar archive"),
    ],
)
def test_an_archive_that_is_called_safetensors_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    main = tmp_path / "m.safetensors"
    main.write_bytes(content)
    with pytest.raises(ArtifactError, match=rf"m\.safetensors is {words}"):
        InPlace(Artifact(detect(main).format, (main,))).plan()
    main.rename(tmp_path / "m.data")
    with pytest.raises(NotSupportedError, match=rf"m\.data is {words}"):
        detect(tmp_path / "m.data")


def test_a_zip_archive_that_is_called_safetensors_is_named(tmp_path: Path) -> None:
    main = tmp_path / "m.safetensors"
    with zipfile.ZipFile(main, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ArtifactError, match=r"m\.safetensors is a zip archive"):
        InPlace(Artifact(detect(main).format, (main,))).plan()


@pytest.mark.parametrize("length", [0x80, 0x0280, 0x8B1F])
def test_a_broken_file_that_begins_like_another_format_keeps_its_error(tmp_path: Path, length: int) -> None:
    main = tmp_path / "m.safetensors"
    main.write_bytes(length.to_bytes(8, "little") + b"{" + bytes(length))
    with pytest.raises(ArtifactError, match="the header is not JSON"):
        InPlace(Artifact("safetensors", (main,))).plan()


def test_an_error_about_a_file_that_is_what_it_should_be_stays(tmp_path: Path) -> None:
    safetensors_file(tmp_path / "m.safetensors", 1)
    error = ArtifactError("it is damaged")
    with pytest.raises(ArtifactError) as caught, naming_foreign("safetensors", [tmp_path / "m.safetensors"]):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("content", [b"", b"{}", b"<", b"<xyz>", b"version 1", bytes(4096), b"hello"])
def test_other_content_is_not_named(content: bytes) -> None:
    assert describe_failed_download(content) is describe_foreign(content) is describe_archive(content) is None
