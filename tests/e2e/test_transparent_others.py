"""Tests of others have the same outcomes, test by test, with their frameworks' loaders alone and with ours.

With ours each file counts as written long ago, and as large enough (`tests/support/others_loaders.py`). `make
others-tests` runs all, those that are downloaded first, too, and prints how many loads came from shared memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from junit import outcomes
from others_loaders import COUNTS
from repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from trims.daemon.main import Daemon

SUITE_S = 500.0
MXNET_PYTHON = os.environ.get("TRIMS_MXNET_PYTHON", str(ROOT / ".venv-mxnet" / "bin" / "python"))


class Suite(NamedTuple):
    """Tests of a package.

    Attributes:
        words: What pytest is given.
        loader: The function of which some loads must come from shared memory.
        packages: Wheels that are fetched for it, as pip is given them.
        source: The source package that has the tests, as pip is given it.
        cwd: Folder of the source in which the tests run.
        python: Interpreter of the framework.
        absent: Modules that the source imports and lacks; empty ones stand for them.
    """

    words: tuple[str, ...]
    loader: str
    packages: tuple[str, ...] = ()
    source: str = ""
    cwd: str = ""
    python: str = sys.executable
    absent: tuple[str, ...] = ()


#: Tests that lie in wheels. Those of numpy that it calls slow write archives of gigabytes.
IN_WHEELS = {
    "numpy": Suite(
        ("-m", "not slow", "--pyargs", "numpy.lib.tests.test_format", "numpy.lib.tests.test_io"), "numpy.load"
    ),
    "joblib": Suite(("--pyargs", "joblib.test.test_numpy_pickle"), "numpy.load"),
}
_VAD = ("silero-vad==6.2.3", "soundfile==0.14.0", "cffi", "pycparser")
DOWNLOADED = {
    "safetensors": Suite(
        ("tests", "--ignore=tests/test_flax_comparison.py", "--ignore=tests/test_tf_comparison.py"),
        "safetensors.numpy.load_file", source="safetensors==0.8.0", cwd="bindings/python",
    ),
    "skorch": Suite(
        ("--pyargs", "skorch.tests.test_net", "-k", "load or save or checkpoint"), "torch.load",
        ("skorch==1.4.0", "tabulate", "flaky"),
    ),
    "silero-vad": Suite(("tests",), "onnxruntime.InferenceSession", _VAD, "silero-vad==6.2.3"),
    "sockeye": Suite(
        ("test/unit/test_data_io.py", "test/integration/test_seq_copy_int.py"), "mxnet.nd.load",
        ("pytest", "iniconfig", "packaging", "pluggy", "pygments", "pyyaml", "portalocker==1.7.1", "sacrebleu==1.5.1"),
        "sockeye==2.3.24", python=MXNET_PYTHON, absent=("sockeye_contrib/__init__.py", "sockeye_contrib/rouge.py"),
    ),
}  # fmt: skip
#: Backend that says which package a source is, and builds nothing: pip asks before it keeps what it has fetched.
_BACKEND = """
import os
def prepare_metadata_for_build_wheel(folder, *_):
    name, _, version = os.environ["SOURCE"].partition("==")
    os.mkdir(os.path.join(folder, made := f"{name.replace('-', '_')}-{version}.dist-info"))
    with open(os.path.join(folder, made, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return made
class __legacy__:
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
"""
#: Modules of backends, and the packages that they are in.
_BACKENDS = ("maturin.py", "hatchling/__init__.py", "hatchling/build.py", "setuptools/__init__.py")
_BACKENDS += ("setuptools/build_meta.py",)


def fetch(suite: Suite, folder: Path) -> Path:
    """Fetch what a suite needs into a folder. Return the working folder of its tests."""
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    if suite.packages:
        target = [
            suite.python,
            *pip,
            "install",
            "--no-deps",
            "--root-user-action=ignore",
            "--target",
            str(folder / "packages"),
        ]
        subprocess.run([*target, *suite.packages], check=True, timeout=SUITE_S)
    if not suite.source:
        return folder
    for path, code in [
        *((folder / "backends" / name, _BACKEND) for name in _BACKENDS),
        *((folder / "packages" / name, "") for name in suite.absent),
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    name = suite.source.partition("==")[0]
    subprocess.run(
        [sys.executable, *pip, "download", "--no-deps", "--no-build-isolation", "--use-pep517", "--no-binary", name,
         "-d", folder, suite.source],
        env={**os.environ, "PYTHONPATH": str(folder / "backends"), "SOURCE": suite.source}, check=True, timeout=SUITE_S,
    )  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / suite.cwd


def run(suite: Suite, cwd: Path, folder: Path, way: str, environment: dict[str, str]) -> dict[str, str]:
    """Run the tests of a suite in a new process. Return test -> outcome."""
    report, scratch = folder / f"{way}.xml", folder / f"{way}-tmp"
    command = [
        suite.python, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--junitxml={report}",
        f"--basetemp={scratch}", *(("-p", "others_loaders") if COUNTS in environment else ()), *suite.words,
    ]  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMS_", "PYTEST_"))}
    ended = subprocess.run(
        command, cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True, check=False,
        timeout=SUITE_S,
    )  # fmt: skip
    assert report.exists(), (ended.stdout + ended.stderr)[-2000:]
    return outcomes(report)


def compare(suite: Suite, daemon: Daemon, folder: Path, name: str) -> None:
    cwd = fetch(suite, folder)
    path = {"PYTHONPATH": f"{folder / 'packages'}:{cwd}:{ROOT / 'tests' / 'support'}"}
    with_ours = {"TRIMS_RUNTIME_DIR": str(daemon.config.runtime_dir), COUNTS: str(folder / "counts.json")}
    alone, ours = run(suite, cwd, folder, "alone", path), run(suite, cwd, folder, "ours", {**path, **with_ours})
    counts: dict[str, Any] = json.loads((folder / "counts.json").read_text())
    sys.stdout.write(f"{name:12} {len(alone)} tests, {dict(Counter(alone.values()))}; {counts}\n")
    assert {test: (alone.get(test), ours.get(test)) for test in alone | ours if alone.get(test) != ours.get(test)} == {}
    assert counts["shared"].get(suite.loader, 0) > 0


@pytest.mark.parametrize("name", IN_WHEELS)
def test_a_suite_of_a_wheel_has_equal_outcomes(name: str, daemon: Daemon, folder: Path) -> None:
    compare(IN_WHEELS[name], daemon, folder, name)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.mxnet) if name == "sockeye" else name for name in DOWNLOADED]
)
def test_a_suite_that_is_downloaded_has_equal_outcomes(name: str, daemon: Daemon, folder: Path) -> None:
    if not os.path.exists(DOWNLOADED[name].python):
        pytest.skip("no MXNet environment: make mxnet-env")
    compare(DOWNLOADED[name], daemon, folder, name)
