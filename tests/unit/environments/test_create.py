"""Making environments of local wheels: by content, once, again from a lock, and nothing is left of a failure."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_environments import MINOR, PLATFORM, write_wheel

from trims.core.errors import ConfigError, NotSupportedError
from trims.environments.create import Request, bytes_under, make

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims.environments.environment_store import EnvironmentStore, Made

WAIT_S = 120
MAKE = """
import sys
from pathlib import Path
from trims.environments.create import Request, make
from trims.environments.environment_store import EnvironmentStore
folder, wheels, wanted = sys.argv[1:]
make(EnvironmentStore(Path(folder)), Request((wanted,), links=(Path(wheels),), offline=True))
"""


def request(wheels: Path, *requirements: str) -> Request:
    return Request(requirements, links=(wheels,), offline=True, trims="1.2.3")


def version_in(made: Made, module: str) -> str:
    command = [str(made.python), "-c", f"import {module}; print({module}.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_two_versions_stand_side_by_side_and_a_request_made_twice_is_one(
    env_store: EnvironmentStore, wheels: Path
) -> None:
    old, first = make(env_store, request(wheels, "torch<901"))
    new, _ = make(env_store, request(wheels, "torch"))
    again, fresh = make(env_store, request(wheels, "torch==900.0", "numpy"))
    assert (first, fresh, again) == (True, False, old)
    assert [version_in(each, "torch") for each in (old, new)] == ["900.0", "901.0"]
    assert (old.versions.get("helper"), new.versions.get("helper")) == (None, "2.5")
    assert set(old.versions) == {"torch", "numpy", "ml-dtypes"}
    assert [each.name for each in env_store.all()] == [new.name, old.name]
    assert (old.requested, old.trims, old.tool.split()[0]) == (("torch<901",), "1.2.3", "uv")
    assert old.nbytes > 0
    assert sorted(os.listdir(env_store.folder)) == sorted([old.name, new.name])


def test_an_environment_is_made_again_from_its_lock(env_store: EnvironmentStore, wheels: Path, tmp_path: Path) -> None:
    made, _ = make(env_store, request(wheels, "torch<901"))
    lock = tmp_path / "kept.lock"
    lock.write_bytes(made.lock_file.read_bytes())
    assert "--hash=sha256:" in lock.read_text()
    env_store.remove(made.name)
    again, fresh = make(env_store, replace(request(wheels), lock=lock))
    assert fresh
    assert replace(again, created_s=made.created_s, nbytes=made.nbytes) == made
    assert again.lock_file.read_bytes() == lock.read_bytes()
    assert make(env_store, replace(request(tmp_path), lock=lock)) == (
        again,
        False,
    )  # needs no wheels


# fault (environments): a wheel is not the locked one -> `not_supported` with uv's words; nothing stays
def test_a_file_that_is_not_the_locked_one_is_not_installed(env_store: EnvironmentStore, wheels: Path) -> None:
    made, _ = make(env_store, request(wheels, "torch<901"))
    lock = wheels / "kept.lock"
    shutil.copy(made.lock_file, lock)
    env_store.remove(made.name)
    write_wheel(wheels, "torch", "900.0", code="__version__ = 'forged'\n")
    with pytest.raises(NotSupportedError, match="uv could not install"):
        make(env_store, replace(request(wheels), lock=lock))
    assert os.listdir(env_store.folder) == []


@pytest.mark.parametrize("wanted", ["torch==5", "torch>=901,<900", "no-such-package"])
def test_what_cannot_be_had_is_named_and_nothing_is_left(
    env_store: EnvironmentStore, wheels: Path, wanted: str
) -> None:
    with pytest.raises(NotSupportedError, match=r"no versions can be found that fit together for (torch|no-such)"):
        make(env_store, request(wheels, wanted))
    assert os.listdir(env_store.folder) == []


def test_an_environment_that_is_there_but_broken_is_not_handed_out(env_store: EnvironmentStore, wheels: Path) -> None:
    made, _ = make(env_store, request(wheels, "torch==900.0"))
    made.python.unlink()
    with pytest.raises(NotSupportedError, match=rf"{made.name} is there, but its interpreter .* is gone; trims env rm"):
        make(env_store, request(wheels, "torch==900.0"))


def test_a_lock_for_another_python_is_refused_with_the_remedy(
    env_store: EnvironmentStore, wheels: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    lock.write_text("# python: 3.10\n# platform: linux-z80\n# requested: torch\ntorch==900.0\n")
    with pytest.raises(ConfigError, match=r"is for Python 3\.10 on linux-z80.*trims env create torch$"):
        make(env_store, replace(request(wheels), lock=lock, python=sys.executable))
    lock.write_text("# python: 3.10\n# platform: linux-z80\n")
    with pytest.raises(ConfigError, match="names no package"):
        make(env_store, replace(request(wheels), lock=lock))
    with pytest.raises(ConfigError, match="no lock can be read from"):
        make(env_store, replace(request(wheels), lock=tmp_path / "missing"))


# fault (environments): two commands make the same environment -> nothing; one environment
def test_two_makers_of_one_environment_make_it_once(env_store: EnvironmentStore, wheels: Path) -> None:
    found: list[tuple[Made, bool]] = []
    makers = [
        threading.Thread(target=lambda: found.append(make(env_store, request(wheels, "torch==900.0"))))
        for _ in range(3)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert sorted(fresh for _, fresh in found) == [False, False, True]
    assert len({made.name for made, _ in found}) == 1


def await_(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"in vain: {what}"
        time.sleep(0.01)


def is_group_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


# fault (environments): `trims env create` is killed, or only its installer works on -> nothing; the next command
# removes what is left once it rests
def test_a_maker_that_is_killed_leaves_nothing_that_counts(env_store: EnvironmentStore, wheels: Path) -> None:
    command = [sys.executable, "-c", MAKE, str(env_store.folder), str(wheels), "torch==900.0"]
    with subprocess.Popen(command, start_new_session=True) as maker:
        await_(lambda: any(env_store.folder.glob("torch-*/venv/bin")), "the maker works in a folder")
        os.killpg(maker.pid, signal.SIGKILL)
    assert env_store.all() == []
    assert os.listdir(env_store.folder) != []
    await_(lambda: is_group_gone(maker.pid), "the maker's programs are gone")
    made, fresh = make(env_store, request(wheels, "torch==900.0"))
    assert fresh
    assert os.listdir(env_store.folder) == [made.name]
    assert version_in(made, "torch") == "900.0"


FAKE_UV = """#!/bin/sh
if [ "$1" = --version ]; then echo uv 1.0; exit; fi
echo started >{folder}/started
read _ <{folder}/gate
"""


# fault (environments): `trims env create` is killed, or only its installer works on
def test_a_folder_in_which_uv_works_on_is_not_swept_though_its_maker_was_killed(
    env_store: EnvironmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "uv").write_text(FAKE_UV.format(folder=tmp_path))
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    lock = tmp_path / "lock"
    lock.write_text(f"# python: {MINOR}\n# platform: {PLATFORM}\ntorch==900.0\n")
    code = "import sys; from pathlib import Path; from trims.environments.environment_store import EnvironmentStore\n"
    code += "from trims.environments.create import Request, make\n"
    code += "make(EnvironmentStore(Path(sys.argv[1])), Request(lock=Path(sys.argv[2])))"
    with subprocess.Popen([sys.executable, "-c", code, str(env_store.folder), str(lock)]) as maker:
        await_((tmp_path / "started").exists, "uv has started")
        maker.kill()
    (name,) = os.listdir(env_store.folder)
    assert env_store.sweep() == []
    (tmp_path / "gate").write_text("go on\n")
    await_(lambda: env_store.sweep() == [name], "uv has ended")
    assert os.listdir(env_store.folder) == []


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, wheels: Path) -> None:
    from trims.environments.environment_store import EnvironmentStore

    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make(EnvironmentStore(Path(tmp_path / "file" / "environments")), request(wheels, "torch"))


def test_a_file_counts_once_and_links_are_not_followed(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * 100_000)
    (inside / "file").write_bytes(b"x" * 50_000)
    alone = bytes_under(tmp_path / "a")
    (inside / "again").hardlink_to(inside / "file")
    (inside / "link").symlink_to(tmp_path / "outside")
    assert 50_000 <= alone <= bytes_under(tmp_path / "a") < 100_000
