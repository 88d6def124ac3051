"""Whether an environment works: each thing that may be wrong with one is named, with the remedy."""

# fault (environments): its Python or packages are gone or changed -> `trims env check` and `trims doctor` name them

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from made_environments import install, put

from trims.environments import checking
from trims.environments.checking import check, glance, installed

if TYPE_CHECKING:
    from trims.environments.environment_store import EnvironmentStore, Made


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check only modules of trims that need no numpy: there is none in environments that were made by hand."""
    monkeypatch.setattr(checking, "_OURS", {"trims": ("trims.formats.conversion.child",)})


@pytest.fixture
def made(env_store: EnvironmentStore) -> Made:
    return put(env_store.folder, torch="2.4.1+cpu", helper="1.0")


def told(made: Made) -> list[str]:
    return [fault.what for fault in check(made)]


def test_an_environment_that_works_has_no_fault(made: Made) -> None:
    assert check(made) == []
    assert installed(made) == {"torch": "2.4.1+cpu", "helper": "1.0"}


def test_the_remedy_is_to_make_it_again_from_its_lock_or_from_what_was_asked_for(made: Made) -> None:
    made.python.unlink()
    (fault,) = check(made)
    assert fault.what == f"its interpreter {made.python} cannot be started: No such file or directory"
    assert fault.remedy.endswith(f"trims env create --lock {made.lock_file}")
    made.lock_file.unlink()
    assert check(made)[0].remedy == f"trims env rm {made.name}; trims env create torch helper"


def test_a_package_that_went_changed_or_came_is_told(made: Made) -> None:
    shutil.rmtree(made.site / "helper-1.0.dist-info")
    install(made, "other", "3.0")
    install(made, "pip", "25.0")
    (made.site / "torch-2.4.1+cpu.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.5\n"
    )
    (made.site / "torch.py").write_text("__version__ = '2.5'\n")
    assert told(made) == [
        f"helper 1.0 is missing in {made.site}",
        "torch is 2.5, and the lock has 2.4.1+cpu: it was changed after it was made",
        "other 3.0 was installed after it was made, and is not in the lock",
        "torch says that it is 2.5; the lock has 2.4.1+cpu",
    ]


def test_a_package_that_needs_what_is_not_there_is_told_as_pip_would(made: Made) -> None:
    text = ["helper>=2", "absent; python_version >= '3'", "unneeded; extra == 'x'", "old; python_version < '3'", "!!"]
    info = made.site / "torch-2.4.1+cpu.dist-info" / "METADATA"
    info.write_text(info.read_text() + "".join(f"Requires-Dist: {each}\n" for each in text))
    assert told(made) == [
        "torch 2.4.1+cpu needs helper>=2, and there is 1.0",
        'torch 2.4.1+cpu needs absent; python_version >= "3", and there is none',
    ]


def test_a_framework_that_cannot_be_imported_is_told(made: Made) -> None:
    (made.site / "torch.py").write_text("print('noise')\nraise OSError('libcudart.so: cannot open')\n")
    assert told(made) == ["torch cannot be imported: OSError: libcudart.so: cannot open"]


def test_what_trims_lacks_in_it_is_told(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_OURS", {"trims": ("trims.tiers.checking",)})
    (fault,) = told(made)
    assert fault == f"trims cannot be imported by {made.python}: ModuleNotFoundError: No module named 'blake3'"


def test_a_glance_starts_nothing_and_sees_what_files_tell(made: Made) -> None:
    (made.site / "torch.py").write_text("raise OSError")
    assert glance(made) == []
    shutil.rmtree(made.site / "helper-1.0.dist-info")
    assert [fault.what for fault in glance(made)] == [f"helper 1.0 is missing in {made.site}"]
    made.python.unlink()
    assert [fault.what for fault in glance(made)] == [f"its interpreter {made.python} is gone"]


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV and gave no answer"),
        ("raise SystemExit('no licence')", "torch cannot be imported: SystemExit: no licence"),
        ("import time; time.sleep(1000)", "did not answer within 1 s"),
    ],
)
def test_an_interpreter_that_dies_or_hangs_is_told(
    made: Made, monkeypatch: pytest.MonkeyPatch, code: str, complaint: str
) -> None:
    if "sleep" in code:
        monkeypatch.setattr(checking, "_ANSWER_S", 1.0)
    (made.site / "torch.py").write_text(code)
    (fault,) = told(made)
    assert complaint in fault
