"""Identity of processes and keys of templates: what tells them apart, and what does not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trims.programs.identity import (
    UNREAD,
    identity_of,
    interpreter_identity,
    key_of,
    mounts,
    unread_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Says that it is there, and ends with its standard input.
WAITS = "echo ready; read line"


@contextlib.contextmanager
def waiting(command: Sequence[str] = ()) -> Iterator[int]:
    """Run a shell, behind a command that executes it; gives its number."""
    with subprocess.Popen(
        [*command, "sh", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                pytest.skip(f"this machine has no {' '.join(command)}")
            yield process.pid
        finally:
            process.communicate(timeout=60)


def test_a_child_process_may_run_in_the_place_of_its_parent() -> None:
    own = identity_of()
    assert own == identity_of(os.getpid())
    with waiting() as pid:
        assert identity_of(pid) == own


@pytest.mark.parametrize(
    "how",
    [
        "unshare --mount", "unshare --ipc", "unshare --uts", "unshare --net", "unshare --cgroup",
        "unshare --user --map-root-user", "setpriv --no-new-privs", "setpriv --clear-groups --regid 12345",
        "setpriv --reuid 12345 --clear-groups", "setpriv --groups 4,24", "setpriv --bounding-set -chown", "chroot /.//",
    ],
)  # fmt: skip
def test_a_process_in_other_surroundings_that_stay_is_another(how: str) -> None:
    if how.startswith("chroot"):
        pytest.skip("the same folder is no other root") if os.stat("/").st_ino == os.stat("/.//").st_ino else None
    if os.geteuid() != 0 and "no-new-privs" not in how and "--user" not in how:
        pytest.skip("only root may do that")
    with waiting(how.split()) as pid:
        assert identity_of(pid) != identity_of()
