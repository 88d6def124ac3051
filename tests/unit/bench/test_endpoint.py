"""An endpoint that a command starts for itself: it answers, is not found by others, and ends with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest
from endpoints import is_gone
from trims_bench import endpoint as module
from trims_bench.endpoint import EndpointProcess

from trims.core.errors import PredictorError
from trims.process.ends import ProcessEnd
from trims.process.python import run_code
from trims.wire.endpoint_file import EndpointAddress, leave_address, read_address

if TYPE_CHECKING:
    from trims.daemon.main import Daemon


def ready(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=30) as answer:
        return int(answer.status)


def test_it_answers_within_the_block_and_the_daemons_own_endpoint_is_found_as_before(daemon: Daemon) -> None:
    runtime_dir = str(daemon.config.runtime_dir)
    theirs = EndpointAddress(os.getpid(), "http://127.0.0.1:1")
    leave_address(runtime_dir, theirs)
    with EndpointProcess(runtime_dir) as endpoint:
        assert ready(endpoint.url) == 200
        assert read_address(runtime_dir) == theirs
    assert read_address(runtime_dir) == theirs
    with pytest.raises(OSError):
        ready(endpoint.url)


def test_an_endpoint_that_does_not_start_says_why(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_dir = daemon.config.runtime_dir
    wrong = EndpointProcess(runtime_dir, "--environments", "mxnet=/nonexistent/python")
    with pytest.raises(PredictorError, match="/nonexistent/python"), wrong:
        raise AssertionError
    monkeypatch.setattr(module, "_START_S", 0.0)
    with pytest.raises(PredictorError, match="within 0 s"), EndpointProcess(runtime_dir):
        raise AssertionError


def test_it_ends_with_a_command_that_is_killed(daemon: Daemon) -> None:
    code = (
        "import sys, time\n"
        "from trims_bench.endpoint import EndpointProcess\n"
        "with EndpointProcess(sys.argv[1]) as endpoint:\n"
        "    print(endpoint.url, flush=True)\n"
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
