"""A daemon that is killed while an operator registers, switches or removes a version: the next one has all or none."""

# fault (daemon): SIGKILL while a version is registered, switched or removed -> `lost_peer`; afterwards the whole
# change or none of it

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from dying_daemon import VERSION_MOMENTS
from looking import wait_until
from trims_client import connect

import trims
from trims.core.errors import TrimsError
from trims.daemon.check import check_store

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from trims.daemon.main import Daemon

#: Moment -> the versions afterwards, the one that the plain name leads to, and the names of the pinned image.
AFTER: dict[str, tuple[list[str], str, tuple[str, ...]]] = {
    "before a version is registered": (["1"], "1", ("m",)),
    "when a version is registered, its rows not moved": (["1", "2"], "1", ("m@1",)),
    "when its rows are moved": (["1", "2"], "1", ("m@1",)),
    "before an alias is switched": (["1", "2"], "1", ("m@1",)),
    "when an alias is switched, not answered": (["1", "2"], "2", ("m@1",)),
    "when opens look up the alias": (["1", "2"], "2", ("m@1",)),
    "when a version is removed, its image not retired": (["2"], "2", ()),
}


def test_every_moment_has_its_outcome() -> None:
    assert AFTER.keys() == VERSION_MOMENTS.keys()


@pytest.mark.parametrize("moment", AFTER)
def test_the_next_daemon_has_the_whole_change_or_none_of_it(
    moment: str,
    folder: Path,
    serve: Callable[..., Daemon],
    start_process: Callable[[str], subprocess.Popen[bytes]],
    checkpoint: Callable[..., Path],
) -> None:
    manifests = [
        {"name": "m", "version": str(number), "artifact": {"path": str(_weights(checkpoint, number))}}
        for number in (1, 2)
    ]
    first = start_process("")
    wait_until(lambda: _answers(folder), "the control door does not answer")
    with trims.admin(folder / "run") as admin:
        admin.add(manifests[0])
        admin.pin("m")
        admin.load("m", "cpu")
    first.terminate()
    assert first.wait(60) == 0
    if "registered" not in moment and "moved" not in moment:
        second = start_process("")
        wait_until(lambda: _answers(folder), "the control door does not answer")
        with trims.admin(folder / "run") as admin:
            admin.add(manifests[1])
        second.terminate()
        assert second.wait(60) == 0
    process = start_process(moment)
    wait_until(lambda: _answers(folder), "the control door does not answer")
    _change(folder, manifests[1])
    assert process.wait(60) == -signal.SIGKILL, "the moment never came"

    daemon = serve(cpu_capacity_bytes="1MiB", disk_capacity_bytes="10MiB")
    versions, default, pinned = AFTER[moment]
    with trims.admin(folder / "run") as admin, connect(folder / "run") as session:
        assert sorted(admin.alias("m").versions) == versions
        with session.open("m") as weights:
            assert int(weights["a"][0]) == int(default)
        for version in versions:
            with session.open(f"m@{version}") as weights:
                assert int(weights["a"][0]) == int(version)
        found = [each.names for each in admin.residents().replicas if each.pinned]
        assert found == ([pinned] if pinned else found)
        if len(versions) == 2:
            other = {"1": "2", "2": "1"}[default]
            assert admin.alias("m", other).versions == ("1", "2")
            with session.open("m") as weights:
                assert int(weights["a"][0]) == int(other)
    assert check_store(daemon.store, verify=True).findings == []


def _answers(folder: Path) -> bool:
    """Return whether the control door answers: it opens after the attach door."""
    try:
        with trims.admin(folder / "run") as admin:
            return admin.status().health.status == "serving"
    except TrimsError:
        return False


def _weights(checkpoint: Callable[..., Path], number: int) -> Path:
    return checkpoint(f"v{number}", {"a": np.full(64, number, np.float32)})


def _change(folder: Path, second: dict[str, Any]) -> None:
    """Do what leads to the moment; the daemon dies under it."""
    with contextlib.suppress(TrimsError), trims.admin(folder / "run") as admin:
        admin.add(second)
        admin.alias("m", "2")
        admin.remove("m@1")
