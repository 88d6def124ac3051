"""Commands about the daemon: every setting has a flag, and what a daemon answers is said in full."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from operators import DEVICE, STATUS, Operator

from trims.cli import daemon_commands
from trims.cli.main import main
from trims.control import Report
from trims.control.answers import Tenant
from trims.daemon import main as daemon_main
from trims.daemon.config import Config
from trims.tenants import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Operator]:
    """Have a daemon that gives these answers."""

    def given(**answers: Any) -> Operator:
        made = Operator(**answers)
        monkeypatch.setattr(daemon_commands, "admin", made.admin)
        return made

    return given


def test_every_setting_has_a_flag_except_one_that_is_for_tests() -> None:
    settings = {item.name for item in fields(Config)} - {"runtime_dir", "verify"}
    assert {flag.replace("-", "_") for flag in daemon_commands._FLAGS} == settings


def test_serve_runs_a_daemon_with_flags_over_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []
    monkeypatch.setattr(daemon_main, "serve", served.append)
    (folder / "c.yaml").write_text(f"state_dir: {folder / 'state'}\nconverters: 3\nworkers: 4\n")
    words = ["serve", "--config", folder / "c.yaml", "--runtime-dir", folder / "run", "--workers", "5"]
    assert main([*map(str, words)]) == 0
    (config,) = served
    assert (config.converters, config.workers) == (3, 5)
    assert (config.runtime_dir, config.state_dir) == (folder / "run", folder / "state")


def test_a_setting_that_cannot_be_is_refused_before_anything_is_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(daemon_main, "serve", lambda config: pytest.fail("served"))
    assert main(["--runtime-dir", str(folder / "run"), "serve", "--workers", "many"]) == 1
    assert "workers" in capsys.readouterr().err


def test_status_says_only_what_is_worth_saying(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(status=STATUS)
    assert main(["status"]) == 0
    plain = capsys.readouterr().out
    assert plain.startswith("serving: process 42, trims 0.1.0, up 5.00 s, 2 sessions, 3 leases\n")
    assert "descriptors: 100 at most; 2 of 10 for sessions, 1 of 20 for images" in plain
    assert "25 %" in plain
    assert "still to be read" not in plain
    assert "no gpu tier" not in plain
    assert "endpoint" not in plain
    answer(status=replace(STATUS, stats=replace(STATUS.stats, endpoint="http://127.0.0.1:8000")))
    assert main(["status"]) == 0
    assert "\nendpoint: http://127.0.0.1:8000\n" in capsys.readouterr().out
    stats = replace(
        STATUS.stats,
        endpoint_off="a port is taken",
        unverified_bytes=2048,
        gpu_off="no device",
        devices=(DEVICE,),
        tiers=(),
    )
    answer(status=replace(STATUS, stats=stats))
    assert main(["status"]) == 0
    told = capsys.readouterr().out
    for words in (
        "still to be read: 2.0 KiB",
        "no gpu tier: no device",
        "gpu:0 is H200",
        "no endpoint: a port is taken",
    ):
        assert words in told


@pytest.mark.parametrize(("findings", "status"), [((), 0), (("replica x is gone",), 1)])
def test_check_fails_if_there_are_findings_and_lists_them(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str], findings: tuple[str, ...], status: int
) -> None:
    daemon = answer(check=Report(findings, 3, 2048, {"products": 1024, "blake3": 1024}))
    assert main(["check", "--verify"]) == status
    told = capsys.readouterr().out
    well = "all is well: 3 replicas, 2.0 KiB verified (1.0 KiB by blake3, 1.0 KiB by products)\n"
    assert told == ("- replica x is gone\n" if findings else well)
    assert main(["check", "--json"]) == status
    assert [named for _, _, named in daemon.orders] == [{"verify": True}, {"verify": False}]


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["drain"], ("drain", (), {})),
        (["shutdown", "--no-wait"], ("shutdown", (), {"purge": False})),
        (["shutdown", "--no-wait", "--purge"], ("shutdown", (), {"purge": True})),
    ],
)
def test_an_order_is_passed_on_and_told_on_standard_error_only(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str], words: list[str], order: object
) -> None:
    daemon = answer(status=STATUS)
    assert main(words) == 0
    assert [each for each in daemon.orders if each[0] != "status"] == [order]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_tenants_are_told_with_what_they_may_hold(
    answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]
) -> None:
    blue = Tenant("blue", 1, 2, 3 << 20, 4 << 20, 5, None, None, 8 << 20)
    answer(status=replace(STATUS, stats=replace(STATUS.stats, tenants=(blue,))))
    assert main(["tenants"]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.split() == ["blue", "1", "of", "5", "2", "3.0", "MiB", "4.0", "MiB", "of", "8.0", "MiB"]
    assert main(["tenants", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["most_resident_bytes"] == 8 << 20


def test_a_daemon_without_tenants_says_so(answer: Callable[..., Operator], capsys: pytest.CaptureFixture[str]) -> None:
    answer(status=STATUS)
    assert main(["tenants"]) == 0
    assert "no tenants: this daemon serves one user without limits" in capsys.readouterr().out


def test_a_token_is_turned_into_what_the_tenants_file_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("0123456789abcdef\n"))
    assert main(["tenants", "--hash"]) == 0
    assert capsys.readouterr().out == f"{hash_of('0123456789abcdef')}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("short\n"))
    assert main(["tenants", "--hash"]) == 1
    assert "at least 16 characters" in capsys.readouterr().err


def test_a_tier_that_found_no_room_on_the_machine_is_full() -> None:
    assert [daemon_commands._share(*each) for each in ((0, 0), (1, 4), (4, 4))] == ["100 %", "25 %", "100 %"]
