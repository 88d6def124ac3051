"""Checking an image in a process of its own: errors are reported, and a child that fails proves nothing."""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import TYPE_CHECKING

import pytest
from safetensors_files import FEW, MANY, NAME, an_image

from trims.core.errors import CapacityError, ConversionError, ImageError
from trims.image import check_in_child
from trims.image.check_in_child import check_apart
from trims.testing.descriptors import few_descriptors
from trims.tiers import transfer

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_child_that_cannot_finish_a_check_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = an_image(tmp_path, MANY)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConversionError, match="the process that checks an image exited with status 1"):
        checked(path)
    monkeypatch.setattr(check_in_child, "_TIME_S", 0.01)
    (tmp_path / "sleeps").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "sleeps").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "sleeps"))
    with pytest.raises(ConversionError, match="was not checked within"):
        checked(path)


def test_a_child_and_this_process_find_the_same_fault(tmp_path: Path) -> None:
    path = an_image(tmp_path, FEW)
    with path.open("r+b") as file:
        nbytes = path.stat().st_size
        for check in (check_in_child.check_apart, check_in_child.check_here):
            check(file.fileno(), nbytes)
        data = path.read_bytes()
        os.pwrite(file.fileno(), b'"I32"', data.index(b'"F32"'))
        told = []
        for check in (check_in_child.check_apart, check_in_child.check_here):
            with pytest.raises(ImageError) as caught:
                check(file.fileno(), nbytes)
            told.append(str(caught.value))
    assert told[0] == told[1] == f"header and index disagree about tensor {NAME.format(0)!r}"


def test_a_child_starts_no_environment_of_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not the standard library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = an_image(tmp_path, FEW)
    with path.open("rb") as file:
        check_in_child.check_apart(file.fileno(), path.stat().st_size)


WORDS = r"no descriptor left: this process may have \d+ open files; raise the limit \(`ulimit -n`, LimitNOFILE=\)"


@pytest.fixture
def main(tmp_path: Path) -> Path:
    text = json.dumps({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    return tmp_path / "m.safetensors"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Popen of Python 3.10 leaks what it opened before it failed")
@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_check_that_cannot_be_made_proves_nothing_against_the_image(left: int, main: Path) -> None:
    with main.open("rb") as file:
        nbytes = main.stat().st_size
        with few_descriptors(left=left), pytest.raises(CapacityError, match=WORDS):
            check_apart(file.fileno(), nbytes)
