"""Scratch folders of converters: removed when no process holds them, and nothing else ever is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ConversionError
from trims.formats.conversion import scratch
from trims.formats.conversion.scratch import Scratch, sweep_scratch

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys
from trims.formats.conversion.scratch import Scratch
print(Scratch().path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    made = folder / "tmp"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def left_behind(temporary: Path, name: str = "abc", uid: int | None = None) -> Path:
    """Make the folder that a killed daemon leaves."""
    made = temporary / f"trims-child-{os.geteuid() if uid is None else uid}-{name}"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "file").write_text("rubbish")
    return made


def test_a_folder_that_no_process_holds_is_removed_with_all_that_is_in_it(temporary: Path) -> None:
    left_behind(temporary, "one")
    left_behind(temporary, "two")
    assert sweep_scratch() == 2
    assert os.listdir(temporary) == []


def test_a_folder_is_held_until_it_is_removed(temporary: Path) -> None:
    held = Scratch()
    assert sweep_scratch() == 0
    assert os.listdir(held.path) == []
    held.remove()
    held.remove()
    assert os.listdir(temporary) == []


def test_another_process_holds_its_folder_as_long_as_it_lives(temporary: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as holder:
        assert holder.stdout is not None
        path = holder.stdout.readline().decode().strip()
        assert sweep_scratch() == 0
        assert os.path.isdir(path)
        holder.kill()
    assert sweep_scratch() == 1
    assert not os.path.exists(path)


def test_what_only_looks_like_it_is_left_alone(temporary: Path) -> None:
    mine = f"trims-child-{os.geteuid()}-"
    (temporary / f"{mine}file").write_text("no folder")
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "precious").write_text("keep")
    (temporary / f"{mine}link").symlink_to(temporary / "elsewhere")
    (temporary / "trims-child-abc").mkdir()
    before = sorted(os.listdir(temporary))
    assert sweep_scratch() == 0
    assert sorted(os.listdir(temporary)) == before
    assert (temporary / "elsewhere" / "precious").exists()


def test_a_link_in_a_folder_goes_and_what_it_points_to_stays(temporary: Path) -> None:
    (temporary / "precious").mkdir()
    (temporary / "precious" / "file").write_text("keep")
    (left_behind(temporary) / "link").symlink_to(temporary / "precious")
    assert sweep_scratch() == 1
    assert (temporary / "precious" / "file").read_text() == "keep"


def test_a_folder_of_another_user_is_not_removed_whatever_its_name(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.geteuid() + 1
    theirs = left_behind(temporary, uid=me)  # my name on it, but this process's user made it
    monkeypatch.setattr(os, "geteuid", lambda: me)
    assert sweep_scratch() == 0
    assert theirs.exists()


def test_a_folder_swept_before_it_is_held_is_made_again(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, swept = scratch._hold, []

    def hold_too_late(path: str) -> int:
        if not swept:
            monkeypatch.setattr(scratch, "_hold", hold)
            swept.append(path)
            assert sweep_scratch() == 1
        return hold(path)

    monkeypatch.setattr(scratch, "_hold", hold_too_late)
    made = Scratch()
    assert swept != [made.path]
    assert os.path.isdir(made.path)
    made.remove()


def test_a_temporary_folder_without_locks_is_an_error_with_the_remedy(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(ConversionError, match="point TMPDIR at one where flock works"):
        Scratch()
    assert os.listdir(temporary) == []


def test_a_temporary_folder_that_cannot_be_listed_is_left_as_it_is(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    assert sweep_scratch() == 0


def test_a_folder_that_cannot_be_removed_is_named_and_no_obstacle(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    left = left_behind(temporary)
    monkeypatch.setattr("shutil.rmtree", refuse)
    assert sweep_scratch() == 0
    assert f"{left} was left by a converter whose daemon died, and cannot be removed" in caplog.text
