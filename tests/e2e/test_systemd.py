"""The unit in deploy/: systemd accepts it, and its bounds fit those of the daemon and its endpoint."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from trims.daemon.endpoint import _GRACE_S

UNIT = ROOT / "deploy" / "trims.service"


def service() -> configparser.SectionProxy:
    found = configparser.ConfigParser(interpolation=None, strict=True)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(UNIT)
    return found["Service"]


@pytest.mark.systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = Path(sys.executable).parent / "trims"
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/trims/bin/trims", str(program)))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if UNIT.name in line] == []
    assert done.returncode == 0, done.stderr
    unit.write_text(unit.read_text().replace("OOMPolicy=continue", "OOMPolicy=none"))
    refused = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "Failed to parse OOM policy" in refused, "what is wrong in the unit is seen"


def test_the_service_s_command_is_one_that_trims_has() -> None:
    from trims.cli.main import build_parser

    program, *words = service()["ExecStart"].split()
    assert Path(program).name == "trims"
    assert build_parser().parse_args(words).run


def test_the_service_is_notified_and_its_end_takes_no_longer_than_systemd_waits() -> None:
    unit = service()
    assert (unit["Type"], unit["NotifyAccess"]) == ("notify", "main")
    assert float(unit["TimeoutStopSec"]) >= _GRACE_S + 30, "the daemon leaves its memory in order after the endpoint"
    assert unit["KillMode"] == "mixed", "the daemon ends its endpoint itself"
    assert unit["OOMPolicy"] == "continue", "a predictor that is killed for its memory ends no service"
    assert int(unit["LimitNOFILE"]) >= 1 << 16


def test_the_service_keeps_what_predictors_and_shared_memory_need() -> None:
    breaks = {
        "RestrictNamespaces", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs",
        "ProtectControlGroups", "SystemCallFilter", "PrivateDevices", "PrivateUsers", "MemoryDenyWriteExecute",
        "PrivateNetwork", "PrivateIPC", "RemoveIPC", "DynamicUser", "InaccessiblePaths",
    }  # fmt: skip
    assert not set(service()) & breaks


def test_the_service_writes_where_systemd_makes_folders_for_it() -> None:
    unit = service()
    variables = dict(each.split("=", 1) for each in unit["Environment"].split())
    assert variables["TRIMS_RUNTIME_DIR"] == f"/run/{unit['RuntimeDirectory']}"
    assert variables["TRIMS_STATE_DIR"] == f"/var/lib/{unit['StateDirectory']}"
    assert re.fullmatch("0?700", unit["StateDirectoryMode"])
