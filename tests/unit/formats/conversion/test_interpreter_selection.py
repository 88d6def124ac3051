"""Which environment a framework runs in: the order, what satisfies, and what is said when nothing does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from made_environments import put

from trims.core.errors import ConfigError, ManifestError, NotSupportedError
from trims.environments.environment_store import EnvironmentStore
from trims.formats.conversion.environments import Environment
from trims.formats.conversion.interpreter_selection import InterpreterSelection

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def env_store(tmp_path: Path) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "environments")


def test_without_a_constraint_what_is_configured_is_used_unseen(env_store: EnvironmentStore) -> None:
    put(env_store.folder, mxnet="1.9.1")
    picker = InterpreterSelection({"mxnet": Path("/no/python"), "numpy": Path("/other/python")}, env_store)
    assert picker.pick("m", "mxnet") == Path("/no/python")
    assert picker.pick("m", "numpy", required=False) == Path("/other/python")


def test_without_a_constraint_a_made_environment_is_used_only_if_this_one_lacks_it(
    env_store: EnvironmentStore,
) -> None:
    made = put(env_store.folder, mxnet="1.9.1", numpy="1.0")
    picker = InterpreterSelection(env_store=env_store)
    assert [picker.pick("m", name) for name in ("numpy", "mxnet", "nothing")] == [None, made.python, None]
    assert InterpreterSelection().pick("m", "mxnet") is None


def test_a_configured_environment_comes_first_then_this_one_then_the_newest_made_one(
    env_store: EnvironmentStore, other_python: Path
) -> None:
    put(env_store.folder, 1.0, numpy="900.5")
    newest = put(env_store.folder, 3.0, numpy="900.1")
    put(env_store.folder, 2.0, numpy="900.9", helper="1")
    picker = InterpreterSelection({"numpy": other_python}, env_store)  # it has numpy 1.0
    found = [picker.pick("m", "numpy", wanted) for wanted in (">=1", f"=={np.__version__}", ">=900", "==900.5")]
    assert found[:3] == [other_python, None, newest.python]
    assert "numpy-900.5" in str(found[3])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(">=2.4,<2.5", "2.4.1"), ("~=2.4.0", "2.4.1"), ("==2.6rc1", "2.6rc1"), ("!=2.6rc1,>2.4.1", "2.5")],
)
def test_two_versions_of_one_framework_are_told_apart(env_store: EnvironmentStore, wanted: str, expected: str) -> None:
    made = {version: put(env_store.folder, mxnet=version).python for version in ("2.4.1", "2.5", "2.6rc1")}
    assert InterpreterSelection(env_store=env_store).pick("m", "mxnet", wanted) == made[expected]


def test_when_nothing_satisfies_all_there_is_and_the_command_are_told(
    env_store: EnvironmentStore, other_python: Path
) -> None:
    put(env_store.folder, 1.0, "mine", numpy="900.0")
    put(env_store.folder, 2.0, "mxnets", mxnet="1.9.1")
    with pytest.raises(NotSupportedError) as told:
        InterpreterSelection({"numpy": other_python}, env_store).pick("bert", "numpy", "> 5, <6")
    assert str(told.value) == (
        f"bert needs numpy > 5, <6, and {other_python}, which is configured for it, has 1.0, {sys.executable} has "
        f"{np.__version__}, mine has 900.0; make an environment that has it: trims env create 'numpy>5,<6'"
    )


def test_a_framework_that_is_nowhere_is_an_error_only_if_it_is_required(env_store: EnvironmentStore) -> None:
    picker = InterpreterSelection(env_store=env_store)
    assert picker.pick("m", "mxnet", ">=1", required=False) is None
    with pytest.raises(NotSupportedError, match=r"has none; .*trims env create 'mxnet>=1'"):
        picker.pick("m", "mxnet", ">=1")
    put(env_store.folder, mxnet="0.9")
    with pytest.raises(NotSupportedError, match=r"mxnet-0\.9.* has 0\.9"):
        picker.pick("m", "mxnet", ">=1", required=False)


def test_a_constraint_that_is_none_is_told_with_an_example() -> None:
    with pytest.raises(ManifestError, match=r"bert: framework.version '2\.4' is no version constraint, such as '>=2"):
        InterpreterSelection().pick("bert", "torch", "2.4")


def test_a_configured_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="/no/python is not a Python interpreter"):
        InterpreterSelection({"torch": Path("/no/python")}).pick("m", "torch", ">=2")


def test_an_environment_whose_interpreter_went_is_not_picked(env_store: EnvironmentStore) -> None:
    older, newer = put(env_store.folder, 1.0, mxnet="1.0"), put(env_store.folder, 2.0, mxnet="2.0")
    newer.python.unlink()
    assert InterpreterSelection(env_store=env_store).pick("m", "mxnet", ">0") == older.python
    shutil.rmtree(older.folder)
    assert InterpreterSelection(env_store=env_store).pick("m", "mxnet", ">0", required=False) is None


def test_what_was_picked_is_remembered_until_an_environment_comes_or_goes(
    env_store: EnvironmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Sequence[str]] = []
    real = Environment.versions

    def versions(self: Environment, names: Sequence[str]) -> dict[str, str]:
        looks.append(names)
        return real(self, names)

    monkeypatch.setattr(Environment, "versions", versions)
    picker = InterpreterSelection(env_store=env_store)
    assert picker.again("m", "mxnet", ">0", required=False) is None
    assert [picker.again("m", "mxnet", ">0", required=False) for _ in range(3)] == [None] * 3
    assert len(looks) == 1
    made = put(env_store.folder, mxnet="1.0")
    assert picker.again("m", "mxnet", ">0", required=False) == made.python
    env_store.remove(made.name)
    assert picker.again("m", "mxnet", ">0", required=False) is None
    picker.pick("m", "mxnet", ">0", required=False)
    assert len(looks) == 4


def test_whether_another_environment_would_do_is_told(env_store: EnvironmentStore) -> None:
    first, second = put(env_store.folder, 1.0, mxnet="1.0"), put(env_store.folder, 2.0, mxnet="2.0")
    others = InterpreterSelection(env_store=env_store, without=second.name)
    assert [others.has("mxnet", wanted) for wanted in ("", ">0", ">=2")] == [True, True, False]
    assert others.pick("m", "mxnet", ">0") == first.python
