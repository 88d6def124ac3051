"""Planning in place: which artifacts are worth a look, and which turn out to need a conversion."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors_files import MANY, a_file, an_image

from trims.core.errors import ArtifactError, InternalError, NotInPlaceError
from trims.formats.base import Artifact, InPlaceFormat
from trims.formats.conversion.conversion import converter
from trims.formats.in_place import InPlace, check_headers, least_image_bytes, may_be_in_place

if TYPE_CHECKING:
    from pathlib import Path


def test_every_format_of_trims_is_worth_a_look() -> None:
    for name in ("safetensors", "torch"):
        assert isinstance(converter(name), InPlaceFormat)
        assert may_be_in_place(converter(name), {})
        assert may_be_in_place(converter(name), {"module": "a:b"})
    for name in ("mxnet", "onnx", "npz", "npy"):
        assert may_be_in_place(converter(name), {})


def test_a_plan_tells_the_length_and_then_the_pages(tmp_path: Path) -> None:
    save_file({"w": np.arange(50)}, tmp_path / "m.safetensors")
    planning = InPlace(Artifact("safetensors", (tmp_path / "m.safetensors",), {}))
    with pytest.raises(InternalError):
        planning.planned()
    assert planning.plan() == planning.planned().nbytes
    with pytest.raises(InternalError, match="is not written"):
        planning.write(-1)
    planning.cancel()
    planning.close()


def test_a_description_too_large_to_parse_here_is_converted(tmp_path: Path) -> None:
    with pytest.raises(NotInPlaceError, match="too large to be parsed here"):
        InPlace(Artifact("safetensors", (a_file(tmp_path, MANY),), {})).plan()


def test_headers_say_the_least_that_an_image_takes(tmp_path: Path) -> None:
    save_file({"w": np.arange(50), "v": np.arange(3, dtype="f4")}, tmp_path / "m.safetensors")
    assert least_image_bytes(Artifact("safetensors", (tmp_path / "m.safetensors",), {})) == 50 * 8 + 3 * 4


def test_a_header_too_large_to_parse_here_says_the_least_by_its_length(tmp_path: Path) -> None:
    assert least_image_bytes(Artifact("safetensors", (a_file(tmp_path, MANY),), {})) == MANY * 8
    assert least_image_bytes(Artifact("safetensors", (an_image(tmp_path, MANY),), {})) == 0, "part of it is no tensor"


def test_nothing_is_said_of_an_image_whose_headers_are_broken(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 100)
    assert least_image_bytes(Artifact("safetensors", (tmp_path / "broken.safetensors",), {})) == 0


def test_headers_are_checked_where_they_are_small_and_say_what_is_wrong(tmp_path: Path) -> None:
    save_file({"w": np.arange(50)}, tmp_path / "m.safetensors")
    check_headers(Artifact("safetensors", (tmp_path / "m.safetensors",), {}))
    check_headers(Artifact("safetensors", (a_file(tmp_path, MANY),), {}))
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:40])
    with pytest.raises(ArtifactError, match="truncated"):
        check_headers(Artifact("safetensors", (tmp_path / "cut.safetensors",), {}))


def test_an_image_is_served_in_place_with_its_program(tmp_path: Path) -> None:
    planning = InPlace(Artifact("safetensors", (an_image(tmp_path, 3),), {}))
    planning.plan()
    assert b"mxnet-symbol" in planning.planned().head


def test_a_format_that_is_never_in_place_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Converted:
        format = "other"

    monkeypatch.setattr("trims.formats.in_place.converter", lambda name: Converted())
    assert not may_be_in_place(Converted(), {})  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="other are never served in place"):
        InPlace(Artifact("other", (tmp_path / "m",), {})).plan()


def test_what_each_process_will_copy_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trims.formats.in_place")
    np.savez(tmp_path / "m.npz", odd=np.ones(1 << 10, "f4"))
    InPlace(Artifact("npz", (tmp_path / "m.npz",), {})).plan()
    (record,) = caplog.records
    assert "m.npz: 4.0 KiB of it are not aligned to their elements: each process copies those" in record.message


def test_a_broken_file_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    with pytest.raises(ArtifactError):
        InPlace(Artifact("safetensors", (tmp_path / "m.safetensors",), {})).plan()
