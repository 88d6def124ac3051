"""Identity of processes and keys of templates: what tells them apart, and what does not."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.programs.identity import UNREAD, identity_of, interpreter_identity, key_of, mounts, unread_values

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Shell that says when it is there, and ends with its standard input.
SHELL = ("sh", "-c", "echo ready; read line")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do that")


@contextlib.contextmanager
def waiting(*command: str) -> Iterator[int]:
    """Run a command that prints `ready`; gives its number. Skips if this machine cannot."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"this machine has no {command[0]}")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"ready\n":
                pytest.skip(f"this machine cannot run {' '.join(command)}")
            yield process.pid
        finally:
            process.communicate(timeout=60)


def test_a_child_process_may_run_in_the_place_of_its_parent() -> None:
    own = identity_of()
    assert own == identity_of(os.getpid())
    with waiting(*SHELL) as pid:
        assert identity_of(pid) == own


@pytest.mark.parametrize("how", ["unshare --user --map-root-user", "setpriv --no-new-privs"])
def test_a_process_in_a_sandbox_of_its_own_is_another(how: str) -> None:
    with waiting(*how.split(), *SHELL) as pid:
        assert identity_of(pid) != identity_of()


@needs_root
@pytest.mark.parametrize(
    "how",
    [
        "unshare --mount", "unshare --ipc", "unshare --uts", "unshare --net", "unshare --cgroup",
        "setpriv --clear-groups --regid 12345", "setpriv --reuid 12345 --clear-groups", "setpriv --groups 4,24",
        "setpriv --bounding-set -chown",
    ],
)  # fmt: skip
def test_a_process_with_another_user_or_namespace_is_another(how: str) -> None:
    with waiting(*how.split(), *SHELL) as pid:
        assert identity_of(pid) != identity_of()


@needs_root
def test_a_process_with_another_root_folder_is_another(tmp_path: Path) -> None:
    code = "import os, sys; os.chroot(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    with waiting(sys.executable, "-c", code, str(tmp_path)) as pid:
        assert identity_of(pid) != identity_of()


@pytest.fixture
def group() -> Iterator[Path]:
    """Control group below this process's own."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        made = Path("/sys/fs/cgroup", names.removeprefix("name="), path.lstrip("/"), f"trims-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            made.mkdir()
            break
    else:
        pytest.skip("this process may make no control group")
    yield made
    made.rmdir()


def test_a_process_in_another_control_group_is_another(group: Path) -> None:
    join = f"echo $$ > {group}/cgroup.procs && {SHELL[2]}"
    with waiting("sh", "-c", join) as pid:
        assert identity_of(pid) != identity_of()


def test_a_process_that_has_ended_has_no_identity() -> None:
    with waiting(*SHELL) as pid:
        pass
    with pytest.raises(OSError):
        identity_of(pid)


def test_mounts_are_those_of_this_process() -> None:
    assert mounts() == os.readlink("/proc/self/ns/mnt")
    assert mounts() in identity_of()


def test_a_key_is_one_of_the_wire_and_the_same_each_time() -> None:
    key = key_of(["a", 1], {"B": "2", "A": "1"})
    assert key == key_of(["a", 1], {"A": "1", "B": "2"})
    assert len(bytes.fromhex(key)) == 16


@pytest.mark.parametrize(
    ("parts", "environment"),
    [
        (["b"], {"A": "1"}),
        (["a", ""], {"A": "1"}),
        ([["a"]], {"A": "1"}),
        (["a"], {}),
        (["a"], {"A": "2"}),
        (["a"], {"A": "1", "B": ""}),
        (["a"], {"A": "\udcff"}),
    ],
)
def test_a_key_counts_all_parts_and_variables(parts: list[object], environment: dict[str, str]) -> None:
    assert key_of(parts, environment) != key_of(["a"], {"A": "1"})


def test_a_key_leaves_out_variables_that_no_import_reads_and_ignored_ones() -> None:
    key = key_of([], {"A": "1"})
    assert key_of([], {"A": "1", **dict.fromkeys(UNREAD, "x")}) == key
    assert key_of([], {"A": "1", "B": "2", "C": "3"}, ["B", "C", "D"]) == key
    assert key_of([], {"A": "1", "B": "2"}, ["C"]) != key


def test_a_key_counts_the_identity_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of([], {})
    monkeypatch.setattr("trims.programs.identity.identity_of", lambda: "another")
    assert key_of([], {}) != key


@pytest.mark.parametrize(
    ("environment", "ignored", "expected"),
    [
        ({}, [], {}),
        ({"A": "1"}, [], {}),
        ({"TERM": "xterm", "COLUMNS": "80"}, [], {"COLUMNS": "80", "TERM": "xterm"}),
        ({"TERM": "xterm", "COLUMNS": "80"}, ["TERM", "A"], {"COLUMNS": "80"}),
        ({"TERM": "x" * 5000}, [], {"TERM": "x" * 1024}),
        ({"TERM": "\udcff", "LINES": "a\nb", "SHLVL": "\0", "COLUMNS": ""}, [], {"COLUMNS": ""}),
    ],
)
def test_values_that_should_not_tell_apart_are_short_and_printable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    ignored: list[str],
    expected: dict[str, str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert unread_values(environment, ignored) == {**expected, "": str(tmp_path)}


def test_a_working_folder_whose_name_cannot_be_printed_tells_nothing_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a\nb").mkdir()
    monkeypatch.chdir(tmp_path / "a\nb")
    assert unread_values({}) == {}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Interpreter of a virtual environment."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "python3").write_text("an interpreter")
    path = tmp_path / "venv" / "bin" / "python"
    path.symlink_to(tmp_path / "python3")
    return path


def test_an_interpreter_stays_the_same_while_nothing_changes(python: Path) -> None:
    assert interpreter_identity(str(python)) == interpreter_identity(str(python))
    assert interpreter_identity(str(python))[0] == str(python)


@pytest.mark.parametrize("what", ["its settings", "no settings", "its file", "another file", "another path"])
def test_an_interpreter_is_another_once_anything_changes(python: Path, tmp_path: Path, what: str) -> None:
    before = interpreter_identity(str(python))
    if what == "its settings":
        (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/local/bin\n")
    elif what == "no settings":
        (tmp_path / "venv" / "pyvenv.cfg").unlink()
    elif what == "its file":
        (tmp_path / "python3").write_text("another interpreter")
    elif what == "another file":
        (tmp_path / "python4").write_text("an interpreter")
        (tmp_path / "python4").replace(tmp_path / "python3")
    else:
        python = python.rename(python.with_name("python3"))
    assert interpreter_identity(str(python)) != before


def test_an_interpreter_that_is_not_there_has_its_path_alone(tmp_path: Path) -> None:
    assert interpreter_identity(str(tmp_path / "bin" / "python")) == (str(tmp_path / "bin" / "python"),)
