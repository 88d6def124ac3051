"""The keeper as a command: it serves until its end is asked for, or says in one line why it cannot."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from keepers import UUID, Served

from trims.keeper.client import KeeperConnection
from trims.keeper.main import _await, _parse, main

if TYPE_CHECKING:
    from pathlib import Path


def test_a_keeper_without_its_device_says_so_in_one_line_and_fails(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--socket", str(folder / "k.sock"), "--device", "GPU-none", "--cuda", kind]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("trims-keeper: ")
    assert "GPU-none is not visible" in told.err
    assert told.err.count("\n") == 1


def test_a_second_keeper_says_that_another_one_serves(
    served: Served, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--socket", str(served.path), "--device", UUID, "--cuda", kind]) == 1
    assert capsys.readouterr().err == f"trims-keeper: another keeper serves at {served.path}\n"


def test_a_keeper_that_is_terminated_frees_all_and_ends_well(folder: Path, kind: str) -> None:
    path, log = folder / "k.sock", folder / "k.log"
    words = ["--socket", str(path), "--device", UUID, "--cuda", kind]
    with log.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", "trims.keeper.main", *words], stderr=said)
    try:
        assert _await(process.pid, path) == 0
        with KeeperConnection(path) as connection:
            connection.create(4096)
            process.terminate()
            assert connection.wait_for_end(60)
    finally:
        assert process.wait(60) == 0
    assert not path.exists()


@pytest.mark.parametrize(("status", "told"), [(3, 3), (0, 1)])
def test_a_keeper_that_ends_before_it_serves_is_a_failure(folder: Path, status: int, told: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"])
    assert _await(process.pid, folder / "k.sock") == told
    process.wait()


def test_socket_and_device_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--device", UUID], ["--socket", "k.sock"]):
        with pytest.raises(SystemExit) as ended:
            _parse(words)
        assert ended.value.code == 2
    assert "required: --device" in capsys.readouterr().err
    options = _parse(["--socket", "k.sock", "--device", UUID])
    assert (options.driver, options.cuda, options.idle_s, options.detach) == ("auto", "driver", 10.0, None)
