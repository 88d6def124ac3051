"""Finding the keeper of a device: the one that serves, a new one where none does, or the reason why none starts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from keepers import UUID, Served

from trims.core.errors import NotSupportedError
from trims.keeper import launch

if TYPE_CHECKING:
    from pathlib import Path


def test_a_keeper_that_serves_is_found_and_no_other_is_started(
    folder: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_start", lambda path, options: pytest.fail("another keeper was started"))
    (folder / f"{UUID}.sock").symlink_to(served.path)
    assert launch.find_keeper(folder, UUID) == folder / f"{UUID}.sock"


def test_the_options_of_the_keeper_are_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(launch, "_start", lambda path, options: started.append((path, options)))
    (folder / f"{UUID}.sock").write_bytes(b"")  # left by a keeper that was killed: nothing answers there
    path = launch.find_keeper(folder, UUID, cuda="fake:/x", driver="ipc", idle_s=2.5)
    assert started == [(path, ["--device", UUID, "--cuda", "fake:/x", "--driver", "ipc", "--idle-s", "2.5"])]


def test_a_keeper_that_does_not_start_says_the_end_of_its_log(folder: Path, kind: str) -> None:
    with pytest.raises(NotSupportedError, match=r"the keeper at .*GPU-none\.sock did not start: .*GPU-none is not"):
        launch.find_keeper(folder, "GPU-none", cuda=kind)


def test_a_keeper_that_says_nothing_is_told_as_that(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, said in (("", "it gave no reason"), ("echo early >&2; ", "early")):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{words}exit 3\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        with pytest.raises(NotSupportedError, match=f"did not start: {said}$"):
            launch.find_keeper(folder, UUID)


def test_a_keeper_that_hangs_at_its_start_is_told_with_its_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(launch, "_START_S", 0.05)
    with pytest.raises(NotSupportedError, match=rf"did not serve at .* see {folder}/{UUID}\.log"):
        launch.find_keeper(folder, UUID)
