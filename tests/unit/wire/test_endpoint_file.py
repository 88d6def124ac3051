"""The file that says where an endpoint answers."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from trims.wire.endpoint_file import (
    ENDPOINT_FILE,
    EndpointAddress,
    leave_address,
    leave_text,
    read_address,
    read_text,
    withdraw_address,
)

if TYPE_CHECKING:
    from pathlib import Path

ADDRESS = EndpointAddress(7, "http://127.0.0.1:8000", "127.0.0.1:8001")


def test_what_was_said_is_read_until_the_process_that_said_it_withdraws_it(tmp_path: Path) -> None:
    assert read_address(str(tmp_path)) is None
    leave_address(str(tmp_path), ADDRESS)
    assert read_address(str(tmp_path)) == ADDRESS
    withdraw_address(str(tmp_path), 8)
    assert read_address(str(tmp_path)) == ADDRESS, "another process said it"
    withdraw_address(str(tmp_path), 7)
    withdraw_address(str(tmp_path), 7)
    assert os.listdir(tmp_path) == []


def test_the_endpoint_that_was_there_before_has_its_place_again_if_it_still_runs(tmp_path: Path) -> None:
    folder, runs = str(tmp_path), EndpointAddress(os.getppid(), "http://127.0.0.1:8000")
    leave_address(folder, ADDRESS)
    withdraw_address(folder, 7, runs)
    assert read_address(folder) == runs
    child = subprocess.Popen(["true"])
    child.wait(timeout=60)
    leave_address(folder, ADDRESS)
    withdraw_address(folder, 7, EndpointAddress(child.pid, "http://127.0.0.1:8002"))
    assert read_address(folder) is None


def test_it_is_for_this_user_only(tmp_path: Path) -> None:
    leave_address(str(tmp_path), ADDRESS)
    assert (tmp_path / ENDPOINT_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": 1}', '{"pid": null, "url": "", "grpc": ""}', "\xff", "[" * 9999]
)
def test_anything_else_in_its_place_is_no_address(tmp_path: Path, text: str) -> None:
    (tmp_path / ENDPOINT_FILE).write_text(text, encoding="latin-1")
    assert read_address(str(tmp_path)) is None


def test_a_text_that_is_not_there_is_empty(tmp_path: Path) -> None:
    path = str(tmp_path / "error")
    assert read_text(path) == ""
    leave_text(path, "why")
    assert read_text(path) == "why"
