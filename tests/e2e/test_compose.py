"""The commands of the containers in deploy/ serve a torch and an ONNX model. Bubblewrap stands in for the runtime.

Each service sees what its volumes, its secrets and its tmpfs give it, in a root that is read-only, without capabilities
and as user 1000. Processes and the network are shared with the tests, so that its port can be reached.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from in_namespaces import namespaces
from looking import wait_until
from repository import ROOT

from trims.control import admin
from trims.wire.endpoint_file import read_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
TOKEN = "a-token-of-the-test"


def image_variables() -> dict[str, str]:
    """Return the variables that the image sets for its processes."""
    lines = [line.removeprefix("ENV ") for line in DOCKERFILE.splitlines() if line.startswith("ENV ")]
    return dict(each.split("=", 1) for line in lines for each in shlex.split(line))


def contained(service: dict[str, Any], host: dict[str, Path], *more: str) -> list[str]:
    """The command of a service, in a root of its own.

    Args:
        service: Of the Compose file.
        host: What is mounted for the sources of its volumes and for its secrets.
        more: Arguments behind those of the service.
    """
    command = ["bwrap", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000"]
    for folder in ("/lib", "/lib64", "/usr", "/bin", "/etc"):
        command += ["--ro-bind-try", folder, folder]
    for folder in (sys.base_prefix, sys.prefix, *(str(ROOT / name) for name in ("trims", "client", "predictors"))):
        command += ["--ro-bind", folder, folder]
    command += [
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--dir",
        "/home/trims",
        "--clearenv",
        "--setenv",
        "HOME",
        "/home/trims",
    ]
    for each in service["tmpfs"]:
        command += ["--tmpfs", each.partition(":")[0]]
    for each in service["volumes"]:
        command += ["--ro-bind" if each.get("read_only") else "--bind", str(host[each["source"]]), each["target"]]
    for name in service.get("secrets", ()):
        command += ["--ro-bind", str(host[name]), f"/run/secrets/{name}"]
    for name, value in {**image_variables(), "PATH": "/usr/bin:/bin", "ORT_DISABLE_TELEMETRY": "1"}.items():
        command += ["--setenv", name, value]
    program, *words = service["command"]
    assert program == "trims"
    return [*command, "--remount-ro", "/", "--", sys.executable, "-m", "trims.cli.main", *words, *more]


@pytest.fixture
def host(folder: Path) -> dict[str, Path]:
    """Make the folders and files that an operator makes on the host beforehand, as deploy/compose.yaml says."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = {"/run/trims": folder / "run", "state": folder / "state", "/srv/models": folder / "models"}
    for each in (*made.values(), folder / "run" / "attach"):
        each.mkdir(mode=0o700)
    made |= {name: folder / name for name in ("token", "certificate", "private_key")}
    made["token"].write_text(TOKEN)
    made["token"].chmod(0o600)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-keyout", str(made["private_key"]), "-out", str(made["certificate"])]
    subprocess.run(command, check=True, capture_output=True)
    return made


@pytest.fixture
def url(host: dict[str, Path]) -> Iterator[str]:
    """Yield the address at which the endpoint answers, with both services running."""
    services = COMPOSE["services"]
    started = [
        subprocess.Popen(contained(services["daemon"], host, "--gpus", "none", "--cpu-capacity-bytes", "64MiB")),
        subprocess.Popen(contained(services["endpoint"], host, "--port", "0", "--grpc-port", "none")),
    ]
    try:
        wait_until(lambda: read_address(str(host["/run/trims"])) is not None, "the endpoint does not answer")
        wait_until(lambda: (host["/run/trims"] / "control.sock").exists(), "the daemon does not answer")
        found = read_address(str(host["/run/trims"]))
        assert found is not None
        yield found.url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(120)


def ask(url: str, path: str, body: object) -> Any:
    context = ssl._create_unverified_context()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120, context=context) as answer:
        return json.load(answer)


@namespaces
def test_the_services_answer_for_a_torch_and_an_onnx_model(host: dict[str, Path], url: str) -> None:
    torch = pytest.importorskip("torch")
    from onnx_files import linear

    from trims.testing.torch_modules import conv_net

    torch.save(conv_net().state_dict(), host["/srv/models"] / "net.pt")
    linear(host["/srv/models"])
    options = {"module": "trims.testing.torch_modules:conv_net"}
    with admin(host["/run/trims"]) as control:
        control.add({"name": "net", "artifact": {"path": "/srv/models/net.pt", "options": options}})
        control.add({"name": "linear", "artifact": {"path": "/srv/models/linear.onnx"}})
    for model, name, shape in (("net", "x", [1, 3, 8, 8]), ("linear", "x", [1, 32])):
        given = {"name": name, "datatype": "FP32", "shape": shape, "data": [0.5] * math.prod(shape)}
        answer = ask(url, f"/v2/models/{model}/infer", {"inputs": [given]})
        assert answer["outputs"][0]["data"], model


def test_the_image_of_the_services_has_the_frameworks_that_the_build_names() -> None:
    assert "ARG FRAMEWORKS=torch,onnxruntime" in DOCKERFILE.splitlines()
    for name in ("daemon", "endpoint"):  # one converts, the other runs
        build = COMPOSE["services"][name]["build"]
        assert build["target"] == "server"
        assert build["args"]["FRAMEWORKS"] == "${FRAMEWORKS:-torch,onnxruntime}"
    declared = {line.split()[1].partition("=")[0] for line in DOCKERFILE.splitlines() if line.startswith("ARG ")}
    assert declared == set(COMPOSE["x-server"]["args"])


@pytest.mark.parametrize(
    ("frameworks", "requirement"),
    [
        ("torch,onnxruntime", "/src[endpoint,torch,onnxruntime]"),
        ("", "/src[endpoint]"),
        ("steps", "/src[endpoint,steps]"),
    ],
)
def test_the_build_s_argument_becomes_extras_that_trims_has(frameworks: str, requirement: str) -> None:
    (run,) = (line for line in DOCKERFILE.splitlines() if line.startswith("RUN pip") and "FRAMEWORKS" in line)
    words = run.removeprefix("RUN ").replace("pip install", "printf '%s\\n'")
    environment = {"PATH": os.environ["PATH"], "FRAMEWORKS": frameworks, "PACKAGES": "one two"}
    done = subprocess.run(["sh", "-c", words], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[-4:-1] == [requirement, "one", "two"]
    extras = importlib.metadata.metadata("trims").get_all("Provides-Extra") or []
    assert set(filter(None, frameworks.split(","))) <= set(extras)
