"""Packages that `make gpu-check` needs on a bare Python, which has torch and no internet. Standard library only.

    python bench/trims_bench/gpu/needs.py bring .whl .gpu-site     here: unpack what is missing, say what still is
    python bench/trims_bench/gpu/needs.py fetch .whl               elsewhere: download those wheels for that Python

Run as a file, before any package of this project can be imported. `bring` also writes the metadata by which plugins of
trims are found, as an installation would.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).absolute().parents[3]
#: Newer than what any supported machine's C library lacks; pip wants them one by one.
_PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_5",
              "manylinux1")  # fmt: skip
_SPECIFIER = re.compile(r"([A-Za-z0-9_.-]+)\s*(?:>=\s*([0-9.]+))?")


@dataclass(frozen=True, slots=True)
class Need:
    """One distribution.

    Attributes:
        minimum: Version; empty for any.
        why: Empty for what the check cannot begin without; else what is left out without it.
        carried: Small enough to be brought as a wheel.
    """

    name: str
    minimum: str = ""
    why: str = ""
    carried: bool = True


#: Packages beside those that pyproject.toml names for trims itself and its extra `gpu`.
_MORE = (
    Need("typing-extensions"), Need("markdown-it-py"), Need("mdurl"), Need("pygments"),  # of grpcio and rich
    Need("cuda-pathfinder"),  # of cuda-bindings
    Need("pytest", "8.3"), Need("pytest-timeout", "2.3"), Need("pluggy"), Need("iniconfig"),
    Need("safetensors", "0.5"),  # the tests write their checkpoints with it
    Need("torch", "2.6", "figures of PyTorch and experiments 1, 6 and 7", carried=False),
    Need("cupy", "", "experiment 1 with cupy's pool", carried=False),
    Need("transformers", "4.50", "the figures of BERT-base and ResNet-50", carried=False),
    Need("onnxruntime", "1.22", "experiment 6", carried=False),
    Need("onnx", "1.17", "experiment 6", carried=False),
    Need("fastsafetensors", "", "its side of the figure disk to GPU"),
    Need("runai-model-streamer", "", "its side of the figure disk to GPU"),
    Need("humanize", "", "what runai-model-streamer needs"),
    Need("typer", "", "what fastsafetensors needs"),
    Need("click", "", "what typer needs"),
    Need("shellingham", "", "what typer needs"),
)  # fmt: skip
_ANSWERS = "the figures of answers"
#: Packages of the endpoint's own packages.
_OF_ENDPOINT = (
    "starlette",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "annotated-doc",
    "typing-inspection",
    "anyio",
    "idna",
    "sniffio",
    "h11",
)
_BRING = (
    "run `make gpu-wheels` where the internet is, and take the folder .whl along (some 22 MiB, which git ignores: a "
    "clone does not have it)"
)
#: Distributions of one package, by how their names begin: wheels for CUDA have names of their own.
_ALSO = {"cupy": ("cupy-cuda", "cupy-rocm"), "onnxruntime": ("onnxruntime-gpu",)}
#: Never carried, though trims needs it: torch brings it.
_EXPECTED = ("numpy",)


def needs() -> list[Need]:
    """Everything, from pyproject.toml and the table above."""
    project = _project()
    extras = project["optional-dependencies"]
    found = []
    for why, texts in ((_ANSWERS, extras["endpoint"]), ("", [*project["dependencies"], *extras["gpu"]])):
        for text in texts:
            matched = _SPECIFIER.match(text)
            assert matched is not None, f"pyproject.toml names {text!r}"
            found.append(Need(matched[1], matched[2] or "", why, carried=matched[1] not in _EXPECTED))
    return [*found, *_MORE, *(Need(name, "", _ANSWERS) for name in _OF_ENDPOINT)]


def missing(wanted: Iterable[Need] | None = None) -> list[tuple[Need, str]]:
    """Return the needs that are missing or too old, each with what is here instead."""
    found = []
    for need in needs() if wanted is None else wanted:
        version = _installed(need.name)
        if version is None:
            found.append((need, "is not installed"))
        elif _numbers(version) < _numbers(need.minimum):
            found.append((need, f"is {version}, {need.minimum} is needed"))
    return found


def say_missing() -> bool:
    """Print what is missing, each with its remedy. True if the check can begin."""
    can_begin = True
    for need, state in missing():
        remedy = _BRING if need.carried else f"pip install {need.name}"
        if need.why:
            print(f"{need.name} {state}; left out: {need.why}", file=sys.stderr)
        else:
            can_begin = False
            print(f"{need.name} {state}, and nothing works without it; {remedy}", file=sys.stderr)
    return can_begin


def bring(wheels: Path, site: Path) -> bool:
    """Unpack wheels of what is missing into a folder for PYTHONPATH, with trims's metadata. True if all is there."""
    if not (3, 10) <= sys.version_info[:2] <= (3, 12):
        print(f"trims needs Python 3.10 to 3.12, {sys.executable} is {sys.version.split()[0]}", file=sys.stderr)
        return False
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    lacking = {_plain(need.name) for need, _ in missing()}
    for wheel in sorted(wheels.glob("*.whl")):
        if _plain(wheel.name.partition("-")[0]) in lacking:
            try:
                unpack(wheel, site)
            except zipfile.BadZipFile as error:
                print(f"{wheel} is damaged ({error}); {_BRING}", file=sys.stderr)
                return False
    _describe_trims(site)
    sys.path.insert(0, str(site))
    return say_missing()


def unpack(wheel: Path, site: Path) -> None:
    """Unpack a wheel as an installer would, less scripts and compiled bytecode: pip may be missing, too."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            top, _, rest = name.partition("/")
            if top.endswith(".data"):
                kind, _, rest = rest.partition("/")
                if kind in ("purelib", "platlib") and rest and not rest.endswith("/"):
                    target = site / rest
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
            else:
                archive.extract(name, site)


def fetch(wheels: Path, python: str, machine: str) -> None:
    """Download the small ones for another Python. Raises CalledProcessError with pip's own words before it."""
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("*.whl"):
        old.unlink()
    pinned = _pinned()
    names = [f"{need.name}{pinned.get(need.name) or _at_least(need)}" for need in needs() if need.carried]
    platforms = [word for platform in _PLATFORMS for word in ("--platform", f"{platform}_{machine}")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    # One by one: what a rival needs may not exist for this Python, and must not keep the rest from coming.
    for name in names:
        subprocess.run([*command, "--dest", str(wheels), name], check=True)
    total = sum(wheel.stat().st_size for wheel in wheels.glob("*.whl"))
    print(f"{len(names)} wheels for Python {python} on {machine}, {total >> 20} MiB, in {wheels}")


def _at_least(need: Need) -> str:
    return f">={need.minimum}" if need.minimum else ""


def _pinned() -> dict[str, str]:
    """Return the versions that constraints.txt states without a condition."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {name: f"=={version}" for line in lines if ";" not in line and not line.startswith("#")
            for name, _, version in [line.partition("==")] if version}  # fmt: skip


def _describe_trims(site: Path) -> None:
    project = _project()
    info = site / f"trims-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trims\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


def _project() -> Mapping[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10: pip has one
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]
    project: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _installed(name: str) -> str | None:
    """Return the installed version of a package, also under the name of a distribution for CUDA; None if missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        begins = _ALSO.get(name)
        if begins is None:
            return None
    for each in importlib.metadata.distributions():
        if _plain(each.metadata["Name"] or "").startswith(begins):
            return each.version
    return None


def _numbers(version: str) -> tuple[int, ...]:
    matched = re.match(r"[0-9.]*", version)
    return tuple(int(part) for part in matched.group().split(".") if part) if matched else ()


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything that is needed is there, or was fetched."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    orders = parser.add_subparsers(dest="order", required=True)
    here = orders.add_parser("bring", help="unpack what is missing here")
    here.add_argument("wheels", type=Path)
    here.add_argument("site", type=Path)
    there = orders.add_parser("fetch", help="download wheels for another Python")
    there.add_argument("wheels", type=Path)
    there.add_argument("--python", default="3.12", help="its version")
    there.add_argument("--machine", default=os.uname().machine, help="its architecture")
    options = parser.parse_args(arguments)
    if options.order == "bring":
        return 0 if bring(options.wheels, options.site) else 1
    try:
        fetch(options.wheels, options.python, options.machine)
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[-1]} was not to be had", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
