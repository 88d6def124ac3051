"""Lock files: what is written is read, what decides the identity, and what is refused."""

from __future__ import annotations

import pytest

from trims.core.errors import ConfigError
from trims.environments.locks import Pin, locked, parse_lock, parse_pins

PINS = [Pin("torch", "2.4.1", ("sha256:aa",)), Pin("ml_dtypes", "0.5.1", ("sha256:cc", "sha256:bb"))]


def test_a_lock_that_was_written_is_read_as_it_was() -> None:
    lock = locked(PINS, "3.11", "linux-x86_64", ["torch==2.4.1"])
    assert parse_lock(lock.text(), "FILE") == lock
    assert lock.versions == {"ml-dtypes": "0.5.1", "torch": "2.4.1"}


def test_the_identity_is_of_the_packages_the_python_and_the_platform() -> None:
    lock = locked(PINS, "3.11", "linux-x86_64", ["torch==2.4.1"])
    same = locked([Pin("Torch", "2.4.1"), Pin("ml-dtypes", "0.5.1")], "3.11", "linux-x86_64", ["torch", "ml-dtypes"])
    assert same.identity() == lock.identity()
    others = [
        locked(PINS, "3.10", "linux-x86_64"),
        locked(PINS, "3.11", "linux-aarch64"),
        locked(PINS[:1], "3.11", "linux-x86_64"),
        locked([Pin("torch", "2.4.2"), PINS[1]], "3.11", "linux-x86_64"),
    ]
    assert len({lock.identity(), *(other.identity() for other in others)}) == 5


@pytest.mark.parametrize(
    ("pins", "begin"),
    [
        ([("numpy", "2.0"), ("torch", "2.4.1+cpu")], "torch-2.4.1+cpu-py311-"),
        ([("numpy", "2.0")], "numpy-2.0-py311-"),
        ([("pillow", "11.0")], "python-py311-"),
    ],
)
def test_an_environment_is_called_by_its_framework(pins: list[tuple[str, str]], begin: str) -> None:
    assert locked([Pin(*each) for each in pins], "3.11", "linux-x86_64").name().startswith(begin)


def test_a_requirements_file_that_is_no_lock_of_trims_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"FILE is no lock file of trims.*write -r FILE"):
        parse_lock("torch==2.4.1\n", "FILE")


@pytest.mark.parametrize("line", ["torch>=2", "torch", "torch==2.*", "torch==2,!=3", "torch @ file:///x.whl", "-r x"])
def test_a_line_of_a_lock_that_does_not_state_one_version_is_named(line: str) -> None:
    with pytest.raises(ConfigError, match="FILE has the line"):
        parse_pins(f"numpy==2.0  # why\n{line}\n", "FILE")


def test_what_uv_prints_is_understood() -> None:
    text = "numpy==2.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via torch\nuvicorn[standard]==1.0\n"
    assert parse_pins(text, "uv") == [Pin("numpy", "2.0", ("sha256:aa", "sha256:bb")), Pin("uvicorn", "1.0")]
