"""Inference servers of other projects: installed apart, awaited, ended with all their workers; stand-ins for them."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from endpoints import is_gone
from looking import wait_until
from trims_bench.others.serving import LITSERVE, MLSERVER, Other, OtherMissingError, install, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Answers everything, and has a child that is not ended with it: so do servers with workers.
ANSWERS = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("child", "w").write(str(child.pid))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def stand_in(program: str) -> Other:
    def command(python: Path, folder: Path, weights: Path, port: int) -> Sequence[str]:
        return [str(python), "-c", program, str(port)]

    return Other("StandIn", ("trims-stand-in==1",), "/predict", False, command)


def test_a_server_is_there_in_the_block_and_gone_with_its_workers_after_it(tmp_path: Path) -> None:
    with serving(stand_in(ANSWERS), Path(sys.executable), tmp_path, tmp_path) as url:
        with urllib.request.urlopen(url) as answer:
            assert answer.status == 200
        child = int((tmp_path / "child").read_text())
        assert url.endswith("/predict")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)
    wait_until(lambda: is_gone(child), "the worker has ended")


def test_a_server_that_ends_as_it_starts_is_told_with_its_last_words(tmp_path: Path) -> None:
    program = "raise SystemExit('no such model')"
    with (
        pytest.raises(OtherMissingError, match=r"StandIn ended with status 1 as it started; it said: no such model"),
        serving(stand_in(program), Path(sys.executable), tmp_path, tmp_path),
    ):
        pass


@pytest.mark.bench_smoke
def test_a_server_that_cannot_be_installed_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(OtherMissingError, match=r"StandIn cannot be installed: .*trims-stand-in"):
        install(stand_in(""), tmp_path / "environment")
    assert (tmp_path / "environment" / "bin" / "python").exists()


def test_each_server_is_started_with_its_weights_and_its_port(tmp_path: Path) -> None:
    python, weights = tmp_path / "bin" / "python", tmp_path / "small.npz"
    command = LITSERVE.command(python, tmp_path, weights, 1234)
    assert command[-2:] == [str(weights), "1234"]
    assert MLSERVER.command(python, tmp_path, weights, 1234) == [
        str(tmp_path / "bin" / "mlserver"), "start", str(tmp_path)
    ]  # fmt: skip
    assert '"http_port": 1234' in (tmp_path / "settings.json").read_text()
    assert str(weights) in (tmp_path / "model-settings.json").read_text()
