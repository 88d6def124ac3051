"""Where environments lie: what counts as one, what holds one, what is left over and what is left alone."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from made_environments import put

from trims.core.errors import CallerError, ConfigError, InUseError, NotSupportedError
from trims.environments.environment_store import Shelf, default_folder, hold

HOLD = (
    "import sys; from trims.environments.environment_store import hold; "
    "print(hold(sys.argv[1]) is not None, flush=True); input()"
)


def leftover(shelf: Shelf, name: str) -> Path:
    """What a maker that was killed leaves."""
    folder = shelf.folder / name
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "requirements.lock").touch()
    return folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TRIMS_ENVIRONMENTS_DIR": "/e", "XDG_DATA_HOME": "/d"}, Path("/e")),
        ({"XDG_DATA_HOME": "/d"}, Path("/d/trims/environments")),
        ({}, Path.home() / ".local" / "share" / "trims" / "environments"),
    ],
)
def test_environments_lie_where_variables_say_else_with_the_users_data(
    variables: dict[str, str], expected: Path
) -> None:
    assert default_folder(variables) == expected


def test_a_user_without_a_home_has_no_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", home)
    assert Shelf(default_folder({})).all() == []


def test_a_folder_that_may_not_be_listed_is_warned_of_once_and_counts_as_empty(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(shelf.folder, torch="2.0")

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    assert [shelf.all(), shelf.all()] == [[], []]
    assert len(caplog.records) == 1
    assert "cannot be seen: [Errno 13]" in caplog.text


def test_a_shelf_that_is_not_there_is_empty(shelf: Shelf) -> None:
    assert (shelf.state(), shelf.all(), shelf.sweep(), shelf.unreadable()) == ((), [], [], {})
    with pytest.raises(CallerError, match="there are none; trims env create makes one"):
        shelf.find("torch")


def test_a_record_that_was_written_is_read_and_the_newest_comes_first(shelf: Shelf) -> None:
    older, newer = put(shelf.folder, 1.0, torch="2.0"), put(shelf.folder, 2.0, torch="1.0")
    assert shelf.all() == [newer, older]
    assert newer.python.exists()
    assert newer.site.is_dir()


def test_the_state_changes_when_an_environment_becomes_ready_and_when_it_goes(shelf: Shelf) -> None:
    leftover(shelf, "torch-1")
    before = shelf.state()
    made = put(shelf.folder, torch="2.0")
    ready = shelf.state()
    shelf.remove(made.name)
    assert (before, shelf.state()) == ((), ())
    assert [name for name, _ in ready] == [made.name]


def test_a_name_may_be_the_beginning_of_one_name_only(shelf: Shelf) -> None:
    for name in ("torch-1", "torch-10", "numpy-2"):
        put(shelf.folder, name=name, numpy="2.0")
    assert [shelf.find(each) for each in ("num", "torch-1", "torch-10")] == ["numpy-2", "torch-1", "torch-10"]
    with pytest.raises(CallerError, match="'torch' begins the names of 2 environments: torch-1, torch-10"):
        shelf.find("torch")
    for name in ("mxnet", "", "../torch-1"):
        with pytest.raises(CallerError, match="no environment is called"):
            shelf.find(name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layout": 99}', '{"layout": 1, "requested": 3}', "null"])
def test_a_record_that_cannot_be_read_is_told_and_does_not_count(
    shelf: Shelf, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = put(shelf.folder, torch="2.0")
    (made.folder / "environment.json").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"trims env rm --force {made.name}")):
        shelf.read(made.name)
    assert shelf.all() == []
    assert made.name in caplog.text
    assert list(shelf.unreadable()) == [made.name]
    assert shelf.sweep() == []


def test_an_unreadable_field_in_a_record_is_told(shelf: Shelf) -> None:
    made = put(shelf.folder, torch="2.0")
    record = json.loads((made.folder / "environment.json").read_text())
    (made.folder / "environment.json").write_text(json.dumps({**record, "versions": "2.0"}))
    with pytest.raises(ConfigError, match="a field has the wrong type"):
        shelf.read(made.name)


def test_an_environment_in_use_is_removed_only_by_force_and_its_user_is_named(shelf: Shelf) -> None:
    made = put(shelf.folder, torch="2.0")
    user = subprocess.Popen(
        [sys.executable, "-c", HOLD, made.python], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout is not None
        assert user.stdout.readline() == "True\n"
        with pytest.raises(InUseError, match=f"in use by process {user.pid}; end it, or use --force"):
            shelf.remove(made.name)
        assert made.python.exists()
        shelf.remove(made.name, force=True)
        assert os.listdir(shelf.folder) == []
        user.kill()


def test_an_environment_may_be_removed_once_its_user_was_killed(shelf: Shelf) -> None:
    made = put(shelf.folder, torch="2.0")
    user = subprocess.Popen(
        [sys.executable, "-c", HOLD, made.python], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout is not None
        user.stdout.readline()
        user.kill()
        user.wait()
        shelf.remove(made.name)
    assert shelf.state() == ()


def test_only_a_made_environment_is_held(shelf: Shelf, tmp_path: Path) -> None:
    made = put(shelf.folder, torch="2.0")
    fd = hold(made.python)
    assert fd is not None
    os.close(fd)
    assert [hold(each) for each in (None, sys.executable, "", "python", tmp_path / "venv" / "bin" / "python")] == [
        None
    ] * 5


def test_an_environment_that_is_being_removed_or_made_is_not_held(shelf: Shelf) -> None:
    made = put(shelf.folder, torch="2.0")
    with (made.folder / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotSupportedError, match="is being removed"):
            hold(made.python)
    (made.folder / "environment.json").unlink()
    with pytest.raises(NotSupportedError, match="is being removed"):
        hold(made.python)


def test_leftovers_are_swept_and_environments_are_not(shelf: Shelf) -> None:
    made = put(shelf.folder, torch="2.0")
    leftover(shelf, "torch-3")
    leftover(shelf, ".work-x")
    leftover(shelf, ".gone-x")
    (shelf.folder / ".gone-x" / "environment.json").touch()
    assert sorted(shelf.sweep()) == [".gone-x", ".work-x", "torch-3"]
    assert os.listdir(shelf.folder) == [made.name]
    assert shelf.sweep() == []


def test_what_is_being_made_is_not_swept(shelf: Shelf) -> None:
    with shelf.claimed("torch-3") as fd, shelf.workplace() as (folder, _):
        assert fd is not None
        assert shelf.sweep() == []
        assert folder.is_dir()
    assert shelf.sweep() == ["torch-3"]
    assert os.listdir(shelf.folder) == []


@pytest.mark.parametrize("name", ["photos", "torch-3", ".gone-x"])
def test_a_folder_that_holds_anything_else_is_left_alone(shelf: Shelf, name: str) -> None:
    folder = leftover(shelf, name)
    (folder / "thesis.txt").touch()
    (shelf.folder / "a-file").touch()
    (shelf.folder / "empty").mkdir()
    (shelf.folder / "another" / "venv").mkdir(parents=True)
    assert shelf.sweep() == []
    assert (folder / "thesis.txt").exists()
    assert (shelf.folder / "another" / "venv").exists()


def test_of_two_makers_of_one_environment_the_second_waits_and_finds_it(shelf: Shelf) -> None:
    found: list[int | None] = []

    def second() -> None:
        with shelf.claimed("torch-2") as fd:
            found.append(fd)

    with shelf.claimed("torch-2") as fd:
        assert fd is not None
        waiting = threading.Thread(target=second)
        waiting.start()
        made = put(shelf.folder / "elsewhere", torch="2.0")
        (made.folder / "environment.json").rename(shelf.folder / "torch-2" / "environment.json")
        assert found == []
    waiting.join()
    assert found == [None]


def test_the_second_maker_makes_it_if_the_first_one_fails(shelf: Shelf) -> None:
    found: list[int | None] = []

    def second() -> None:
        with shelf.claimed("torch-2") as fd:
            found.append(fd)

    with shelf.claimed("torch-2"):
        waiting = threading.Thread(target=second)
        waiting.start()
    shelf.sweep()
    waiting.join()
    assert found[0] is not None


def test_a_folder_that_a_sweep_takes_while_it_is_claimed_is_made_again(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.folder.mkdir(parents=True)
    make = os.mkdir

    def swept(path: Path, *mode: int) -> None:
        if path.name == "torch-2":
            monkeypatch.setattr(os, "mkdir", make)
            raise FileExistsError(17, "File exists", str(path))  # and then it is gone
        make(path, *mode)

    monkeypatch.setattr(os, "mkdir", swept)
    with shelf.claimed("torch-2") as fd:
        assert fd is not None
    (shelf.folder / "torch-3").touch()
    with pytest.raises(FileExistsError), shelf.claimed("torch-3"):
        pass


def test_a_ready_environment_is_found_at_once_though_it_is_in_use(shelf: Shelf) -> None:
    made = put(shelf.folder, torch="2.0")
    fd = hold(made.python)
    assert fd is not None
    with shelf.claimed(made.name) as claimed:
        assert claimed is None
    os.close(fd)


def test_an_error_within_a_claim_comes_out_as_it_is(shelf: Shelf) -> None:
    with pytest.raises(FileNotFoundError, match="lost"), shelf.claimed("torch-2"):
        raise FileNotFoundError("lost")
    shelf.sweep()
