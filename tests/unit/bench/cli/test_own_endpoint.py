"""An endpoint that a command starts for itself: it answers, is not found by others, and ends with the command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest
from endpoints import is_gone
from trims_bench.cli import own_endpoint as module
from trims_bench.cli.own_endpoint import own_endpoint

from trims.core.errors import PredictorError
from trims.process.ends import ProcessEnd
from trims.process.python import run_code
from trims.wire.endpoint_file import EndpointAddress, leave_address, read_address

if TYPE_CHECKING:
    from trims.daemon.main import Daemon

OPTIONS = argparse.Namespace(environments="", environments_dir=None)


def ready(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=30) as answer:
        return int(answer.status)


def test_it_answers_within_the_block_and_the_daemons_own_endpoint_is_found_as_before(daemon: Daemon) -> None:
    runtime_dir = str(daemon.config.runtime_dir)
    theirs = EndpointAddress(os.getpid(), "http://127.0.0.1:1")
    leave_address(runtime_dir, theirs)
    with own_endpoint(runtime_dir, OPTIONS) as url:
        assert ready(url) == 200
        assert read_address(runtime_dir) == theirs
    assert read_address(runtime_dir) == theirs
    with pytest.raises(OSError):
        ready(url)


def test_an_endpoint_that_does_not_start_says_why(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    options = argparse.Namespace(environments="mxnet=/nonexistent/python", environments_dir=None)
    with (
        pytest.raises(PredictorError, match="/nonexistent/python"),
        own_endpoint(str(daemon.config.runtime_dir), options),
    ):
        raise AssertionError
    monkeypatch.setattr(module, "_START_S", 0.0)
    with pytest.raises(PredictorError, match="within 0 s"), own_endpoint(str(daemon.config.runtime_dir), OPTIONS):
        raise AssertionError


def test_it_ends_with_a_command_that_is_killed(daemon: Daemon) -> None:
    code = (
        "import argparse, sys, time\n"
        "from trims_bench.cli.own_endpoint import own_endpoint\n"
        "options = argparse.Namespace(environments='', environments_dir=None)\n"
        "with own_endpoint(sys.argv[1], options) as url:\n"
        "    print(url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = run_code(code, str(daemon.config.runtime_dir))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert ready(process.stdout.readline().strip()) == 200
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            endpoint = int(file.read().split()[0])
        with ProcessEnd(endpoint) as end:
            process.send_signal(signal.SIGKILL)
            assert end.wait(50)
    assert is_gone(endpoint)
