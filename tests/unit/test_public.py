"""Public names of modules that lie in other packages, as an import statement and as an attribute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from trims.process.packages import install_words

#: Names whose packages the tests have.
MODULES = ("cupy", "errors", "faas", "onnxruntime", "torch")


MXNET_PYTHON = Path(os.environ.get("TRIMS_MXNET_PYTHON", ROOT / ".venv-mxnet" / "bin" / "python"))


def program(text: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run a program in a process that has imported nothing of trims yet."""
    run = [python, "-W", "ignore", "-c", text]
    return subprocess.run(run, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_is_imported_alone_or_used_as_an_attribute(name: str) -> None:
    for first, then in (
        (f"import trims.{name}", "import trims"),
        ("import trims", f"import trims.{name}"),
        ("import trims", f"from trims import {name}"),
        (f"import trims; trims.{name}", f"import trims.{name}"),
    ):
        done = program(
            f"{first}\n{then}\nimport sys\nassert sys.modules['trims.{name}'] is trims.{name}\nprint('well')"
        )
        assert (done.stdout.strip(), done.returncode) == ("well", 0), (first, done.stderr)


@pytest.mark.skipif(not MXNET_PYTHON.exists(), reason="MXNet needs an environment of its own")
def test_the_module_for_mxnet_is_imported_in_its_own_environment() -> None:
    done = program("import trims.mxnet\nprint(trims.mxnet.params.__name__)", str(MXNET_PYTHON))
    assert (done.stdout.strip(), done.returncode) == ("params", 0), done.stderr


@pytest.mark.parametrize("how", ["import trims.{}", "from trims import {}", "import trims; trims.{}"])
@pytest.mark.parametrize(
    ("name", "lacks", "brings"),
    [
        ("torch", "torch", "trims[torch]"),
        ("onnxruntime", "onnxruntime", "trims[onnxruntime]"),
        ("mxnet", "mxnet", "trims[mxnet]"),
    ],
)
def test_a_framework_that_is_missing_is_named_with_its_extra(how: str, name: str, lacks: str, brings: str) -> None:
    done = program(f"import sys; sys.modules[{lacks!r}] = None\n{how.format(name)}")
    message = f"ModuleNotFoundError: trims.{name} needs {lacks}, which is not installed here: {install_words(brings)}"
    assert (done.stderr.splitlines()[-1], done.returncode) == (message, 1)


@pytest.mark.parametrize("name", ["admin", "aadmin"])
def test_a_client_for_operators_without_grpc_names_the_package_that_brings_it(name: str) -> None:
    done = program(f"import sys; sys.modules['grpc'] = None\nimport trims; trims.{name}()")
    message = f"ModuleNotFoundError: trims.{name} needs grpc, which is not installed here: {install_words('trims')}"
    assert (done.stderr.splitlines()[-1], done.returncode) == (message, 1)


def test_a_module_of_trims_itself_that_is_missing_is_left_as_it_is() -> None:
    done = program("import sys; sys.modules['trims_client.faas'] = None\nimport trims.faas")
    assert "trims_client.faas" in done.stderr.splitlines()[-1]
    assert "pip install" not in done.stderr
