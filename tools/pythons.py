"""Run the tests of store, doors, client, command and frameworks on each Python that is installed.

Each interpreter has an environment of its own under `.venv-pythons`. PyTorch is left out where only a build with CUDA
is to be had, which takes gigabytes; TORCH_INDEX names an index with builds for processors.

Usage: python tools/pythons.py [VERSION ...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-pythons"
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
EXTRAS = ".[onnxruntime,safetensors,steps,endpoint]"
#: What the tests of these folders need beside them.
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema", "psutil")
TESTS = (
    *(f"tests/unit/{room}" for room in ("core", "manifests", "wire", "control", "registry", "daemon", "cli", "client")),
    *(
        f"tests/unit/{room}"
        for room in ("formats", "image", "memory", "store", "tiers", "process", "environments", "background")
    ),
    "tests/e2e/test_cli.py",
    "tests/e2e/test_client_and_daemon.py",
    "tests/e2e/test_serving_process.py",
)


def main(wanted: list[str]) -> int:
    """Run the tests on each version; return 1 if they failed on one, or a version that was asked for is missing."""
    found = {version: path for version in wanted or VERSIONS if (path := interpreter(version)) is not None}
    missing = [version for version in wanted if version not in found]
    results = {version: _tested(version, path) for version, path in found.items()}
    for version in missing:
        print(f"{version}: not installed")
    for version, result in results.items():
        print(f"{version}: {result or 'passed'}")
    return 1 if missing or any(results.values()) else 0


def interpreter(version: str) -> Path | None:
    """Return the newest interpreter of a version on the PATH or of pyenv; None if none starts."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    of_pyenv = sorted(root.glob(f"{version}.*/bin/python"), key=_number)
    for command in (f"python{version}", *map(str, reversed(of_pyenv))):
        code = "import sys, venv; print(sys.executable, '%d.%d' % sys.version_info[:2], sep='\\n')"
        try:
            done = subprocess.run([command, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.split()[1] == version:
            return Path(done.stdout.split()[0])
    return None


def _number(path: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path.parent.parent.name)]


def _tested(version: str, interpreter: Path) -> str:
    """Make the environment and run the tests; return what went wrong, or nothing."""
    python = FOLDER / version / "bin" / "python"
    print(f"== {version}: {interpreter}", flush=True)
    constrained = ("-c", str(ROOT / "constraints.txt"))
    try:
        _run(interpreter, "-m", "venv", "--clear", FOLDER / version)
        _run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip")
        _run(python, "-m", "pip", "install", "--quiet", *constrained, "-e", EXTRAS, *TOOLS)
        if _has_small_torch(python):
            _run(python, "-m", "pip", "install", "--quiet", *constrained, "torch", "transformers", *_index())
        else:
            print(f"{version}: PyTorch is left out: there is no build without CUDA; name an index by TORCH_INDEX")
        _run(python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "2", "-m", "not soak", *TESTS)
    except subprocess.CalledProcessError as error:
        return f"failed: {' '.join(map(str, error.cmd[1:5]))} ended with status {error.returncode}"
    return ""


def _run(*command: object) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMS_")}
    subprocess.run([str(each) for each in command], cwd=ROOT, env=environment, check=True)


def _index() -> tuple[str, ...]:
    url = os.environ.get("TORCH_INDEX", "")
    return ("--extra-index-url", url) if url else ()


def _has_small_torch(python: Path) -> bool:
    """Whether the PyTorch that would be installed brings no CUDA."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", "-c", "constraints.txt"]
    done = subprocess.run([*command, "torch", *_index()], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return False
    names = [each["metadata"]["name"].lower() for each in json.loads(done.stdout)["install"]]
    return not any(name.startswith(("nvidia-", "cuda-")) for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
