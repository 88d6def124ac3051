"""From which size on sharing pays: measured on this host, kept, sent to sessions, and kept to by the loaders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from looking import wait_until
from transparently import installed  # noqa: F401 - a fixture
from trims_client.transparent import file_bytes, outcomes

import trims
from trims.cli.main import main
from trims.core.sharing import LEAST_BYTES, MOST_BYTES
from trims.daemon.sharing import NAME, read_sharing, write_sharing

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon


def doctor(daemon: Daemon, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    status = main(["--runtime-dir", str(daemon.config.runtime_dir), "doctor", "--sharing", "--json", *words])
    found = [each["what"] for each in json.loads(capsys.readouterr().out)]
    assert status == 0
    return found


def greeted_with(daemon: Daemon) -> int:
    """What a session learns with its first answer."""
    with trims.connect(daemon.config.runtime_dir) as session:
        with pytest.raises(trims.errors.ModelNotFoundError):
            session.open("nothing")
        return session.share_from


def record(daemon: Daemon, nbytes: Any) -> None:
    write_sharing(daemon.config.state_dir, {"share_from_bytes": nbytes})


def test_the_doctor_measures_once_and_sessions_learn_the_threshold(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = doctor(daemon, capsys)
    assert [line.partition(":")[0] for line in lines[:5]] == ["64.0 KiB", "256.0 KiB", "1.0 MiB", "4.0 MiB", "16.0 MiB"]
    found = read_sharing(daemon.config.state_dir)
    assert found is not None
    nbytes = found["share_from_bytes"]
    assert LEAST_BYTES <= nbytes <= MOST_BYTES
    wait_until(lambda: greeted_with(daemon) == nbytes, "the daemon follows the record")
    assert doctor(daemon, capsys) == lines
    assert list(daemon.config.state_dir.glob("sharing-*")) == []
    assert daemon.store.read.replicas() == []
    assert (daemon.config.state_dir / NAME).read_text() == json.dumps(found, indent=1) + "\n"
    doctor(daemon, capsys, "--measure")
    assert read_sharing(daemon.config.state_dir) != found


@pytest.mark.parametrize(
    "text",
    ["", "no JSON", "[]", "{}", '{"share_from_bytes": 100000}',
     '{"host": "elsewhere", "release": "0.1.0", "share_from_bytes": 100000}'],
)  # fmt: skip
def test_a_record_that_is_damaged_or_of_another_host_counts_as_none(daemon: Daemon, text: str) -> None:
    record(daemon, 1 << 30)
    wait_until(lambda: greeted_with(daemon) == MOST_BYTES, "the daemon follows the record")
    (daemon.config.state_dir / NAME).write_text(text)
    wait_until(lambda: greeted_with(daemon) == 0, "the daemon follows the record")


def test_without_a_daemon_nothing_is_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runtime-dir", str(folder / "none"), "doctor", "--sharing"]) == 1
    assert "no daemon answers" in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_loaders_keep_to_the_threshold_once_the_daemon_has_said_it(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_bytes, "_measured", [0])
    record(daemon, 4 << 20)
    wait_until(lambda: greeted_with(daemon) == 4 << 20, "the daemon follows the record")
    for name, mib in (("small", 2), ("large", 5)):
        np.save(tmp_path / f"{name}.npy", np.ones(mib << 20, np.uint8))
    for name in ("small", "large", "small", "large"):
        np.load(tmp_path / f"{name}.npy")
    assert outcomes.report().shared == {"numpy.load": 3}
    assert outcomes.report().stepped_aside == {("numpy.load", "too small to pay"): 1}
