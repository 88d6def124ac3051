"""Commands that need no daemon: convert leaves nothing of a failure, and doctor ends with what to do."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from trims.cli import doctor
from trims.cli.finding import Finding
from trims.cli.main import main
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WELL, AWAY = Finding("ok", "Python"), Finding("note", "no daemon answers", "trims serve")
BAD = Finding("bad", "/dev/shm is small", "docker run --shm-size")


@pytest.mark.parametrize(
    ("findings", "status", "last"),
    [
        ([WELL], 0, "no problems; next: `trims add MODEL`"),
        ([WELL, AWAY], 0, "no problems; next: `trims serve`"),
        ([BAD, AWAY], 1, "1 problem: the lines that begin with `bad` say what to do"),
        ([BAD, WELL, BAD], 1, "2 problems: the lines that begin with `bad` say what to do"),
    ],
)
def test_doctor_fails_if_something_is_bad_and_ends_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    findings: list[Finding],
    status: int,
    last: str,
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda runtime_dir: findings)
    assert main(["doctor"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    assert sum(line.startswith("bad   ") for line in lines) == sum(each is BAD for each in findings)
    assert sum("-> docker run --shm-size" in line for line in lines) == sum(each is BAD for each in findings)
    assert main(["doctor", "--json"]) == status
    assert json.loads(capsys.readouterr().out) == [each.as_json() for each in findings]


def test_convert_writes_to_a_descriptor_that_it_was_given(
    folder: Path, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMS_STATE_DIR", str(folder / "state"))
    main_file, fd = checkpoint("m"), os.memfd_create("image")
    try:
        assert main(["convert", str(main_file), "--to-fd", str(fd)]) == 0
        data = os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)
    assert set(ImageView(memoryview(data)).layout.tensors) == {"weight", "step"}
    assert capsys.readouterr().out == ""


def test_convert_removes_its_file_also_when_it_is_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: str, fd: int) -> int:
        assert (folder / "image").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("trims.control.convert.convert", interrupted)
    assert main(["convert", "m", "-o", str(folder / "image")]) == 130
    assert not (folder / "image").exists()


def test_convert_takes_a_file_or_a_descriptor_and_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["convert", "m"], ["convert", "m", "-o", "f", "--to-fd", "1"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    assert "not allowed with argument -o" in capsys.readouterr().err


def test_a_backup_into_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--backup", ""]) == 1
    assert "--backup is empty; name a folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
