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
from trims.environments.environment_store import EnvironmentStore, default_folder, hold

HOLD = (
    "import sys; from trims.environments.environment_store import hold; "
    "print(hold(sys.argv[1]) is not None, flush=True); input()"
)


def leftover(env_store: EnvironmentStore, name: str) -> Path:
    """Make the files that a killed maker leaves."""
    folder = env_store.folder / name
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
    assert EnvironmentStore(default_folder({})).all() == []


def test_a_folder_that_may_not_be_listed_is_warned_of_once_and_counts_as_empty(
    env_store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(env_store.folder, torch="2.0")

    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    assert [env_store.all(), env_store.all()] == [[], []]
    assert len(caplog.records) == 1
    assert "cannot be seen: [Errno 13]" in caplog.text


def test_a_environment_store_that_is_not_there_is_empty(env_store: EnvironmentStore) -> None:
    assert (
        env_store.state(),
        env_store.all(),
        env_store.sweep(),
        env_store.unreadable(),
    ) == ((), [], [], {})
    with pytest.raises(CallerError, match="there are none; trims env create makes one"):
        env_store.find("torch")


def test_a_record_that_was_written_is_read_and_the_newest_comes_first(env_store: EnvironmentStore) -> None:
    older, newer = put(env_store.folder, 1.0, torch="2.0"), put(env_store.folder, 2.0, torch="1.0")
    assert env_store.all() == [newer, older]
    assert newer.python.exists()
    assert newer.site.is_dir()


def test_the_state_changes_when_an_environment_becomes_ready_and_when_it_goes(
    env_store: EnvironmentStore,
) -> None:
    leftover(env_store, "torch-1")
    before = env_store.state()
    made = put(env_store.folder, torch="2.0")
    ready = env_store.state()
    env_store.remove(made.name)
    assert (before, env_store.state()) == ((), ())
    assert [name for name, _ in ready] == [made.name]


def test_a_name_may_be_the_beginning_of_one_name_only(env_store: EnvironmentStore) -> None:
    for name in ("torch-1", "torch-10", "numpy-2"):
        put(env_store.folder, name=name, numpy="2.0")
    assert [env_store.find(each) for each in ("num", "torch-1", "torch-10")] == [
        "numpy-2",
        "torch-1",
        "torch-10",
    ]
    with pytest.raises(CallerError, match="'torch' begins the names of 2 environments: torch-1, torch-10"):
        env_store.find("torch")
    for name in ("mxnet", "", "../torch-1"):
        with pytest.raises(CallerError, match="no environment is called"):
            env_store.find(name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layout": 99}', '{"layout": 1, "requested": 3}', "null"])
def test_a_record_that_cannot_be_read_is_told_and_does_not_count(
    env_store: EnvironmentStore, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = put(env_store.folder, torch="2.0")
    (made.folder / "environment.json").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"trims env rm --force {made.name}")):
        env_store.read(made.name)
    assert env_store.all() == []
    assert made.name in caplog.text
    assert list(env_store.unreadable()) == [made.name]
    assert env_store.sweep() == []


def test_an_unreadable_field_in_a_record_is_told(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, torch="2.0")
    record = json.loads((made.folder / "environment.json").read_text())
    (made.folder / "environment.json").write_text(json.dumps({**record, "versions": "2.0"}))
    with pytest.raises(ConfigError, match="a field has the wrong type"):
        env_store.read(made.name)


# fault (environments): one in use is removed -> `in_use` with the process; `--force` removes it, what runs goes on
def test_an_environment_in_use_is_removed_only_by_force_and_its_user_is_named(
    env_store: EnvironmentStore,
) -> None:
    made = put(env_store.folder, torch="2.0")
    user = subprocess.Popen(
        [sys.executable, "-c", HOLD, made.python], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout is not None
        assert user.stdout.readline() == "True\n"
        with pytest.raises(InUseError, match=f"in use by process {user.pid}; end it, or use --force"):
            env_store.remove(made.name)
        assert made.python.exists()
        env_store.remove(made.name, force=True)
        assert os.listdir(env_store.folder) == []
        user.kill()


def test_an_environment_may_be_removed_once_its_user_was_killed(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, torch="2.0")
    user = subprocess.Popen(
        [sys.executable, "-c", HOLD, made.python], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout is not None
        user.stdout.readline()
        user.kill()
        user.wait()
        env_store.remove(made.name)
    assert env_store.state() == ()


def test_only_a_made_environment_is_held(env_store: EnvironmentStore, tmp_path: Path) -> None:
    made = put(env_store.folder, torch="2.0")
    fd = hold(made.python)
    assert fd is not None
    os.close(fd)
    assert [hold(each) for each in (None, sys.executable, "", "python", tmp_path / "venv" / "bin" / "python")] == [
        None
    ] * 5


def test_an_environment_that_is_being_removed_or_made_is_not_held(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, torch="2.0")
    with (made.folder / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(NotSupportedError, match="is being removed"):
            hold(made.python)
    (made.folder / "environment.json").unlink()
    with pytest.raises(NotSupportedError, match="is being removed"):
        hold(made.python)


def test_leftovers_are_swept_and_environments_are_not(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, torch="2.0")
    leftover(env_store, "torch-3")
    leftover(env_store, ".work-x")
    leftover(env_store, ".gone-x")
    (env_store.folder / ".gone-x" / "environment.json").touch()
    assert sorted(env_store.sweep()) == [".gone-x", ".work-x", "torch-3"]
    assert os.listdir(env_store.folder) == [made.name]
    assert env_store.sweep() == []


def test_what_is_being_made_is_not_swept(env_store: EnvironmentStore) -> None:
    with env_store.claimed("torch-3") as fd, env_store.workplace() as (folder, _):
        assert fd is not None
        assert env_store.sweep() == []
        assert folder.is_dir()
    assert env_store.sweep() == ["torch-3"]
    assert os.listdir(env_store.folder) == []


@pytest.mark.parametrize("name", ["photos", "torch-3", ".gone-x"])
def test_a_folder_that_holds_anything_else_is_left_alone(env_store: EnvironmentStore, name: str) -> None:
    folder = leftover(env_store, name)
    (folder / "thesis.txt").touch()
    (env_store.folder / "a-file").touch()
    (env_store.folder / "empty").mkdir()
    (env_store.folder / "another" / "venv").mkdir(parents=True)
    assert env_store.sweep() == []
    assert (folder / "thesis.txt").exists()
    assert (env_store.folder / "another" / "venv").exists()


def test_of_two_makers_of_one_environment_the_second_waits_and_finds_it(env_store: EnvironmentStore) -> None:
    found: list[int | None] = []

    def second() -> None:
        with env_store.claimed("torch-2") as fd:
            found.append(fd)

    with env_store.claimed("torch-2") as fd:
        assert fd is not None
        waiting = threading.Thread(target=second)
        waiting.start()
        made = put(env_store.folder / "elsewhere", torch="2.0")
        (made.folder / "environment.json").rename(env_store.folder / "torch-2" / "environment.json")
        assert found == []
    waiting.join()
    assert found == [None]


def test_the_second_maker_makes_it_if_the_first_one_fails(env_store: EnvironmentStore) -> None:
    found: list[int | None] = []

    def second() -> None:
        with env_store.claimed("torch-2") as fd:
            found.append(fd)

    with env_store.claimed("torch-2"):
        waiting = threading.Thread(target=second)
        waiting.start()
    env_store.sweep()
    waiting.join()
    assert found[0] is not None


def test_a_folder_that_a_sweep_takes_while_it_is_claimed_is_made_again(
    env_store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    env_store.folder.mkdir(parents=True)
    make = os.mkdir

    def swept(path: Path, *mode: int) -> None:
        if path.name == "torch-2":
            monkeypatch.setattr(os, "mkdir", make)
            raise FileExistsError(17, "File exists", str(path))  # and then it is gone
        make(path, *mode)

    monkeypatch.setattr(os, "mkdir", swept)
    with env_store.claimed("torch-2") as fd:
        assert fd is not None
    (env_store.folder / "torch-3").touch()
    with pytest.raises(FileExistsError), env_store.claimed("torch-3"):
        pass


def test_a_ready_environment_is_found_at_once_though_it_is_in_use(env_store: EnvironmentStore) -> None:
    made = put(env_store.folder, torch="2.0")
    fd = hold(made.python)
    assert fd is not None
    with env_store.claimed(made.name) as claimed:
        assert claimed is None
    os.close(fd)


def test_an_error_within_a_claim_comes_out_as_it_is(env_store: EnvironmentStore) -> None:
    with pytest.raises(FileNotFoundError, match="lost"), env_store.claimed("torch-2"):
        raise FileNotFoundError("lost")
    env_store.sweep()
