"""`trims env`: what it prints, and its exit status. Environments here were made by hand; nothing is installed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from made_environments import put

from trims.cli.main import main
from trims.environments import checking, create
from trims.environments.environment_store import hold

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.environments.create import Request
    from trims.environments.environment_store import EnvironmentStore, Made

    Env = Callable[..., tuple[int, str, str]]


@pytest.fixture
def env_store_folder(tmp_path: Path) -> Path:
    return tmp_path / "environments"


@pytest.fixture
def env(env_store_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Env:
    """`trims env` where no daemon runs; returns (status, standard output, standard error)."""

    def once(action: str, *words: str) -> tuple[int, str, str]:
        folders = ["--environments-dir", str(env_store_folder), "--runtime-dir", str(tmp_path / "run")]
        status = main(["env", action, *folders, *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    return once


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, env_store_folder: Path) -> list[Request]:
    """Return the requests to the maker, which is not run."""
    seen: list[Request] = []

    def make(env_store: EnvironmentStore, request: Request, tell: Callable[[str], None]) -> tuple[Made, bool]:
        tell("resolving")
        seen.append(request)
        fresh = not env_store.all()
        return (put(env_store_folder, torch="2.4.1", numpy="2.0") if fresh else env_store.all()[0]), fresh

    monkeypatch.setattr(create, "make", make)
    return seen


def test_create_tells_where_the_environment_is_and_whether_it_was_there(env: Env, requests: list[Request]) -> None:
    status, out, err = env("create", "torch==2.4.1", "pillow", "--python", "3.10", "--no-index")
    name = out.split()[0]
    assert (status, err) == (0, "resolving\n")
    assert out.startswith(f"{name} is ready: torch 2.4.1, numpy 2.0\n  python: ")
    assert (requests[0].requirements, requests[0].python) == (("torch==2.4.1", "pillow"), "3.10")
    assert requests[0].offline
    assert env("create", "torch==2.4.1")[1].startswith(f"{name} is there already: ")
    told = json.loads(env("create", "torch", "--json")[1])
    assert (told["name"], told["fresh"], told["frameworks"]["torch"]) == (name, False, "2.4.1")


def test_create_reads_requirements_from_a_file(env: Env, requests: list[Request], tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("torch==2.4.1\n")
    assert env("create", "-r", str(tmp_path / "r.txt"), "pillow")[0] == 0
    assert requests[0].requirements == ("pillow", "torch==2.4.1")


@pytest.mark.parametrize("words", [[], ["torch", "--lock", "FILE"]])
def test_create_takes_either_requirements_or_a_lock(env: Env, requests: list[Request], words: list[str]) -> None:
    status, _, err = env("create", *words)
    assert (status, requests) == (1, [])
    assert "write either requirements, such as torch==2.4.1, or --lock FILE" in err


def test_an_empty_list_says_what_to_do(env: Env) -> None:
    assert env("list") == (0, "there are no environments; `trims env create` makes one\n", "")
    assert env("check")[:2] == (0, "there are no environments; `trims env create` makes one\n")
    assert env("list", "--json")[1] == "[]\n"
    assert env("list", "--names")[1] == ""


def test_a_list_tells_frameworks_python_size_and_state(env: Env, env_store_folder: Path) -> None:
    made = put(env_store_folder, 2.0, torch="2.4.1", numpy="2.0")
    gone = put(env_store_folder, 1.0, mxnet="1.9.1")
    gone.python.unlink()
    spoilt = put(env_store_folder, name="spoilt", numpy="1.0")
    (spoilt.folder / "environment.json").write_text("{}")
    status, out, err = env("list")
    lines = [line.split("  ") for line in out.splitlines()]
    assert status == 0
    assert [line[0] for line in lines] == ["environment", made.name, gone.name, "spoilt"]
    assert out.splitlines()[1].split() == [
        made.name, "torch", "2.4.1,", "numpy", "2.0", made.python_version, "4.0", "KiB", "?", "ready",
    ]  # fmt: skip
    assert [line[-1].strip() for line in lines[2:]] == ["broken", "broken"]
    assert "no daemon answers, so which models use them is not known" in err
    found = json.loads(env("list", "--json")[1])
    assert [each["state"] for each in found] == ["ready", "broken", "broken"]
    assert (found[0]["used_by"], found[0]["packages"]) == (None, {"torch": "2.4.1", "numpy": "2.0"})
    assert env("list", "--names")[1].split() == [made.name, gone.name]


def test_a_check_fails_for_each_fault_and_names_the_remedy(
    env: Env, env_store_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_OURS", {})
    well, ill = put(env_store_folder, 2.0, torch="2.0"), put(env_store_folder, 1.0, torch="1.0")
    assert env("check", well.name[:9])[:2] == (0, f"ok    {well.name}\n")
    ill.python.unlink()
    status, out, _ = env("check")
    assert status == 1
    assert out.splitlines()[:2] == [f"ok    {well.name}", f"bad   {ill.name}"]
    assert f"its interpreter {ill.python} cannot be started" in out
    assert f"-> trims env rm {ill.name}, then make it again as it was: trims env create --lock {ill.lock_file}" in out
    (ill.folder / "environment.json").write_text("{}")
    assert f"-> trims env rm --force {ill.name}" in env("check", ill.name)[1]
    told = json.loads(env("check", "--json")[1])
    assert (told[well.name], len(told[ill.name])) == ([], 1)


def test_rm_removes_by_the_beginning_of_a_name(env: Env, env_store_folder: Path) -> None:
    made, other = put(env_store_folder, torch="2.0"), put(env_store_folder, mxnet="1.0")
    status, out, err = env("rm", "torch")
    assert (status, out) == (0, f"removed {made.name}\n")
    assert "whether a registered model needs it is not known" in err
    assert os.listdir(env_store_folder) == [other.name]
    assert re.search(r"no environment is called 'torch'; there are: mxnet", env("rm", "torch")[2])


def test_rm_refuses_what_is_in_use_and_obeys_force(env: Env, env_store_folder: Path) -> None:
    made = put(env_store_folder, torch="2.0")
    fd = hold(made.python)
    assert fd is not None
    status, _, err = env("rm", made.name)
    assert (status, made.python.exists()) == (1, True)
    assert f"the environment {made.name} is in use by" in err
    assert env("rm", made.name, "--force")[0] == 0
    assert not made.folder.exists()
    os.close(fd)


def test_each_command_removes_what_a_killed_one_has_left(env: Env, env_store_folder: Path) -> None:
    made = put(env_store_folder, torch="2.0")
    for words in (["list"], ["check", made.name], ["rm", made.name]):
        half = replace(made, folder=env_store_folder / "torch-3")
        half.python.parent.mkdir(parents=True)
        (half.folder / "lock").touch()
        assert "removed torch-3, which an earlier command did not finish" in env(*words)[2]
        assert not half.folder.exists()
