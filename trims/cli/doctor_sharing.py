"""Examination of when sharing pays on this host (`trims doctor --sharing`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.finding import Finding
from trims.core.errors import CallerError
from trims.core.sharing import break_even, fit
from trims.core.units import format_bytes, format_seconds
from trims.process.python import run_ours
from trims.programs.launch import our_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 300.0


def examine_sharing(runtime_dir: str | None, *, measure: bool) -> Iterator[Finding]:
    """Yield what a file costs from shared memory and by itself, by size, and from which size on sharing pays.

    Args:
        runtime_dir: The daemon's.
        measure: Measure again although there is a record.

    Raises:
        DaemonAwayError: There is none to measure with.
        CallerError: The measurement failed.
    """
    from trims.control import admin
    from trims.daemon.sharing import SCRATCH, read_sharing, write_sharing

    with admin(runtime_dir) as daemon:
        state = Path(daemon.status().health.state_dir)
        found = None if measure else read_sharing(state)
        if found is None:
            found = write_sharing(state, _measured(runtime_dir, state))
            for name in [name for each in daemon.residents().replicas for name in each.names]:
                if f":{state}/{SCRATCH}" in name:
                    daemon.evict(name)
    for nbytes, shared_s, alone_s in found["files"]:
        times = f"{format_seconds(shared_s)} from shared memory, {format_seconds(alone_s)} read from the page cache"
        yield Finding("ok", f"{format_bytes(nbytes)}: {times}")
    for name, what in (("shared", "from shared memory"), ("alone", "read from the page cache")):
        fixed_s, byte_s = found[name]
        yield Finding("ok", f"{what}: {format_seconds(fixed_s)}, and {format_seconds(byte_s * (1 << 20))} for each MiB")
    day = time.strftime("%Y-%m-%d", time.localtime(found["measured_at_s"]))
    yield Finding("ok", f"sharing pays from {format_bytes(found['share_from_bytes'])} on (measured {day})")


def _measured(runtime_dir: str | None, state: Path) -> dict[str, Any]:
    from trims.daemon.sharing import SCRATCH

    command = run_ours("trims_client.transparent.measure", str(state / SCRATCH), packages=our_packages())
    env = {**os.environ, **({"TRIMS_RUNTIME_DIR": runtime_dir} if runtime_dir else {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True, env=env)
        files: list[tuple[int, float, float]] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        raise CallerError(f"nothing can be measured: {(error.stderr.strip().splitlines() or ['?'])[-1]}") from error
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise CallerError(f"nothing can be measured with {sys.executable}: {error}") from error
    shared, alone = fit([(size, took) for size, took, _ in files]), fit([(size, took) for size, _, took in files])
    return {
        "measured_at_s": int(time.time()), "place": "cpu", "files": files, "shared": shared, "alone": alone,
        "share_from_bytes": break_even(shared, alone),
    }  # fmt: skip
