"""Commands reach the daemon of their runtime folder, and import its client only then."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from trims.cli.connect import admin
from trims.core.errors import DaemonAwayError

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Long to import, and of use to some commands only.
HEAVY = {
    "grpc", "rich", "yaml", "asyncio", "importlib.metadata", "msgspec", "trims_predictors", "trims_bench",
    "urllib.request",
}  # fmt: skip


def test_a_command_asks_the_daemon_of_its_runtime_folder(daemon: Daemon, folder: Path) -> None:
    with admin(str(daemon.config.runtime_dir)) as client:
        assert client.status().health.status
    with pytest.raises(DaemonAwayError), admin(str(folder / "none")) as client:
        client.status()


@pytest.mark.parametrize(("words", "needed"), [("--version", set()), ("env list --names", set()), ("ps", {"grpc"})])
def test_a_command_imports_what_it_needs(tmp_path: Path, words: str, needed: set[str]) -> None:
    program = (
        "import sys; from trims.cli.main import main; main(sys.argv[1:])\n"
        f"print(*sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    )
    command = [sys.executable, "-c", program, "--runtime-dir", str(tmp_path), *words.split()]
    if words == "--version":
        command[3:5] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMS_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert set(done.stderr.splitlines()[-1].split()) - {"asyncio"} == needed
