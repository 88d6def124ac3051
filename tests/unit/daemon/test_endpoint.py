"""The endpoint beside the daemon: when one is started, how it is kept, and how it ends. The whole is in tests/e2e."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from looking import wait_until

from trims.core.errors import ConfigError
from trims.daemon import endpoint as module
from trims.daemon.config import build_config
from trims.daemon.endpoint import EndpointKeeper, endpoint_of
from trims.process.packages import install_words
from trims.process.python import run_module
from trims.wire.endpoint_file import EndpointAddress, leave_address

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.config import Config

#: Waits for the end of its input, as an endpoint does whose daemon dies; counts its starts in a file.
WAITS = "import sys; open(sys.argv[1] + '/starts', 'a').write('x'); sys.stdin.read()"
#: Says why it cannot serve.
FAILS = WAITS.partition(" sys.stdin")[0] + " open(sys.argv[1] + '/endpoint.error', 'w').write('no port'); sys.exit(1)"


def keeper(folder: Path, program: str, **more: Any) -> EndpointKeeper:
    return EndpointKeeper([sys.executable, "-c", program, str(folder)], str(folder), **more)


def starts(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text()) if path.exists() else 0


def config_of(folder: Path, **more: object) -> Config:
    settings = {"runtime_dir": folder / "run", "state_dir": folder / "state", "gpus": "none"}
    return build_config({**settings, **more}, environment={})


def test_it_runs_until_it_is_stopped_and_says_where_it_answers(folder: Path) -> None:
    kept = keeper(folder, WAITS)
    assert (kept.where(), kept.off()) == ("", "only `trims serve` starts one")
    kept.start()
    try:
        wait_until(lambda: starts(folder) == 1, "it is started")
        assert (kept.where(), kept.off()) == ("", "it is starting")
        leave_address(str(folder), EndpointAddress(1, "http://another:1"))
        assert kept.where() == ""
        assert kept._process is not None
        leave_address(str(folder), EndpointAddress(kept._process.pid, "http://127.0.0.1:8000"))
        assert (kept.where(), kept.off()) == ("http://127.0.0.1:8000", "")
    finally:
        kept.stop()
    assert kept.where() == ""
    kept.stop()


def test_one_that_dies_is_started_again_and_its_reason_is_said_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = keeper(folder, FAILS, pause_s=0.001)
    kept.start()
    try:
        wait_until(lambda: starts(folder) >= 3, "it is started again")
        wait_until(lambda: kept.off() == "no port", "the reason is told")
    finally:
        kept.stop()
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["there is no endpoint: no port; the daemon serves without it and tries again"]


@pytest.mark.parametrize(("command", "why"), [("/no/python", "cannot be started"), ("/bin/false", "with status 1")])
def test_one_that_cannot_even_begin_is_told(folder: Path, command: str, why: str) -> None:
    kept = EndpointKeeper([command], str(folder))
    kept.start()
    try:
        wait_until(lambda: why in kept.off(), "the reason is told")
    finally:
        kept.stop()


def test_one_that_ignores_its_signal_is_killed(folder: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
    kept = keeper(folder, deaf)
    kept.start()
    wait_until(lambda: starts(folder) == 1, "it is started")
    kept.stop(grace_s=0.01)
    assert kept._process is None


def test_a_pause_between_two_starts_delays_no_end(folder: Path) -> None:
    kept = keeper(folder, FAILS, pause_s=3600.0)
    kept.start()
    wait_until(lambda: kept.off() == "no port", "it has failed")
    kept.stop()
    assert "trims-endpoint" not in [thread.name for thread in threading.enumerate()]


def test_none_is_started_where_the_setting_or_a_missing_package_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for setting, missing, why in (("no", "", "the setting endpoint is no"), ("auto", "no fastapi", "no fastapi")):
        kept = endpoint_of(config_of(folder, endpoint=setting), lambda missing=missing: missing)  # type: ignore[misc]
        kept.start()
        kept.stop()
        assert (kept.where(), kept.off()) == ("", why)
        assert caplog.messages[-1] == f"there is no endpoint: {why}"


def test_a_daemon_that_must_have_one_does_not_start_without_its_packages(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the setting endpoint is yes, but it needs fastapi"):
        endpoint_of(config_of(folder, endpoint="yes"), lambda: "it needs fastapi")


def test_it_gets_the_daemons_folder_and_environments_and_its_own_flags(folder: Path) -> None:
    config = config_of(folder, environments={"mxnet": sys.executable}, endpoint_flags="--port 9000 --preload 'a b'")
    command = list(endpoint_of(config)._command)
    begin = run_module("trims.cli.main", "endpoint", "--supervised")
    assert command[: len(begin)] == begin
    given = command[len(begin) :]
    assert given[:2] == ["--runtime-dir", str(folder / "run")]
    assert given[2:4] == ["--environments-dir", str(config.environments_dir)]
    assert given[4:8] == ["--hide", str(config.state_dir), "--hide", str(config.segment_dir)]
    assert given[8:10] == ["--learned", str(config.state_dir / "learned.json")]
    assert given[10:14] == ["--log-level", "info", "--log-format", "text"]
    assert given[14:16] == ["--grpc-ping-s", "0.1"]
    assert given[16:] == ["--environments", f"mxnet={sys.executable}", "--port", "9000", "--preload", "a b"]


def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._missing() == "" or install_words("trims[endpoint]") in module._missing()
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["pytest; extra == 'endpoint'"])
    assert module._missing() == ""
    stated = ["numpy>=1", "absent-a; extra == 'bench'", "absent-b>=2; extra == 'endpoint'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: stated)
    assert module._missing() == f"it needs absent-b, which is not installed: {install_words('trims[endpoint]')}"

    def unknown(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert "run without being installed" in module._missing()
