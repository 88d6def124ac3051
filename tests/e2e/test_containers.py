"""A client in a container with only the attach folder reads weights. Bubblewrap stands in for a container's runtime."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from in_namespaces import namespaces
from looking import wait_until
from repository import ROOT

from trims.control import admin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_MOUNTED = "/run/trims"
#: Program that reads a model's bytes at every line of standard input, and prints what it sees.
_CLIENT = """
import json, os, sys
import trims
session = trims.connect(wait_s=60)
for line in sys.stdin:
    weights = session.open("m", place="cpu")  # and keep it until the end
    told = {"place": weights.place, "sum": sum(weights.raw("x")), "of": len(weights.raw("x"))}
    told |= {
        "runtime": sorted(os.listdir(os.environ["TRIMS_RUNTIME_DIR"])),
        "shm": os.listdir("/dev/shm"),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "root": sorted(os.listdir("/")),
        "seen": [path for path in json.loads(line) if os.path.exists(path)],
        "uid": os.getuid(),
        "numpy": "numpy" in sys.modules,
    }
    print(json.dumps(told), flush=True)
"""


def contained(attach: Path, code: str) -> list[str]:
    """Python with the client's packages and one folder of the daemon's, in a root of its own."""
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    command += ["--uid", "1000", "--gid", "1000", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64"):
        command += ["--ro-bind-try", folder, folder]
    command += ["--ro-bind", sys.base_prefix, "/python"]
    for package in (ROOT / "trims", ROOT / "client" / "trims_client"):
        command += ["--ro-bind", str(package), f"/packages/{package.name}"]
    command += ["--ro-bind", str(attach), _MOUNTED, "--setenv", "TRIMS_RUNTIME_DIR", _MOUNTED]
    command += ["--setenv", "PYTHONPATH", "/packages", "--setenv", "LD_LIBRARY_PATH", "/python/lib"]
    command += ["--remount-ro", "/", "--", f"/python/bin/python3.{sys.version_info.minor}", "-c", code]
    return command


class Served:
    """A daemon in process ids of its own, so that it sees its clients' as 0, as in a container."""

    def __init__(self, folder: Path) -> None:
        self.runtime, self.state = folder / "run", folder / "state"
        self._process: subprocess.Popen[bytes] | None = None
        self._boot = ""

    def start(self) -> None:
        command = ["bwrap", "--unshare-user", "--unshare-pid", "--die-with-parent", "--dev-bind", "/", "/"]
        command += ["--proc", "/proc", "--", sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(self.runtime)]
        command += ["serve", "--state-dir", str(self.state), "--gpus", "none", "--endpoint", "no"]
        command += ["--cpu-memory", "memfd", "--cpu-capacity-bytes", "64MiB", "--trust", "verified"]
        self._process = subprocess.Popen(command)
        wait_until(self._answers, "the daemon does not answer")

    def _answers(self) -> bool:
        try:
            with admin(self.runtime) as control:
                boot = control.status().health.boot
        except Exception:
            return False
        before, self._boot = self._boot, boot
        return boot != before  # one that was killed with its bubblewrap may answer for a moment yet

    def holders(self) -> set[int]:
        with admin(self.runtime) as control:
            return {holder.pid for replica in control.show("m").replicas for holder in replica.holders}

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)  # of bubblewrap, with which all inside ends
            self._process.wait()
            self._process = None


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    made = Served(folder)
    made.start()
    yield made
    made.kill()


def ask(client: subprocess.Popen[str], *paths: Path) -> dict[str, Any]:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(json.dumps([str(path) for path in paths]) + "\n")
    client.stdin.flush()
    told: dict[str, Any] = json.loads(client.stdout.readline())
    return told


@namespaces
def test_a_contained_client_reads_weights_and_finds_a_daemon_that_starts_again(
    served: Served, checkpoint: Callable[..., Path]
) -> None:
    values = np.arange(100_000, dtype=np.uint8)
    artifact = checkpoint("m", {"x": values})
    with admin(served.runtime) as control:
        control.add({"name": "m", "artifact": {"path": str(artifact)}})
    hidden = (served.runtime, served.runtime / "control.sock", served.state, artifact)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(contained(served.runtime / "attach", _CLIENT), text=True, **pipes) as client:
        first = ask(client, *hidden)
        assert (first["place"], first["sum"], first["of"]) == ("cpu", int(values.sum()), 100_000)
        assert first["runtime"] == ["attach.sock"]
        assert (first["shm"], first["seen"], first["uid"]) == ([], [], 1000)
        assert max(first["processes"]) < 5
        assert not {"home", "root", "etc", "var"} & set(first["root"])
        assert not first["numpy"], "the client needs the standard library only"
        assert served.holders() == {0}, "process ids are not shared, as between containers"
        served.kill()
        served.start()
        second = ask(client, *hidden)
        assert (second["sum"], second["runtime"]) == (first["sum"], ["attach.sock"])
        assert client.stdin is not None
        client.stdin.close()
        assert client.wait(60) == 0
    wait_until(lambda: not served.holders(), "the lease of a client that has ended is left")


# -- the files of deploy/ --------------------------------------------------------------------------------------------


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    return found


@pytest.mark.parametrize("name", ["daemon", "endpoint", "client"])
def test_a_service_has_no_privileges_and_is_bounded(name: str) -> None:
    service = services()[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["user"] == "1000:1000"
    assert service["mem_limit"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "pid", "userns_mode"}
    assert service.get("ipc", "private") == "private"


def test_the_client_s_service_is_given_the_attach_folder_only_and_no_network() -> None:
    client = services()["client"]
    of_daemon = [each for each in client["volumes"] if each["source"].startswith("/")]
    assert [(each["source"], each["target"]) for each in of_daemon] == [("/run/trims/attach", _MOUNTED)]
    assert all(each["read_only"] for each in client["volumes"])
    assert client["network_mode"] == "none"
    assert client["pids_limit"]


def test_the_commands_of_the_services_are_ones_that_trims_has() -> None:
    from trims.cli.main import build_parser

    for name in ("daemon", "endpoint"):
        _, *words = services()[name]["command"]
        assert build_parser().parse_args(words).run


def test_the_image_s_stages_are_those_that_the_services_build() -> None:
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    stages = {line.split(" AS ")[1] for line in lines if line.startswith("FROM ")}
    assert {service["build"]["target"] for service in services().values()} == stages
    users = [line for line in lines if line.startswith("USER ")]
    assert users[-1] == "USER trims", "nothing runs as root"
