"""Programs of ours start in any interpreter, see our packages there, and end with the process that started them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from in_namespaces import namespaces
from made_environments import put
from repository import ROOT
from trims_predictors.children.launcher import Environment, Launcher, check_hidden, format_status
from trims_predictors.sandbox.sandbox import NAMESPACES, Isolation

from trims.core.errors import ConfigError, InUseError, PredictorError
from trims.environments.environment_store import EnvironmentStore

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def in_a_loop(test: Callable[..., object]) -> Callable[..., None]:
    """The test inside an event loop, which reads what programs print."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        async def inside() -> None:
            test(**given)

        asyncio.run(inside())

    return run


def answered(sock: socket.socket) -> bytes:
    """The second message of a template; the first one says that it is there."""
    assert b"here" in sock.recv(1 << 16)
    return sock.recv(1 << 16)


@in_a_loop
def test_an_interpreter_that_is_not_there_is_named(folder: Path) -> None:
    launcher = Launcher(str(folder))
    with pytest.raises(PredictorError, match=r"^/no/python cannot be started: .*No such file"):
        launcher.start("trims_predictors.worker.worker", Environment("numpy", "/no/python"))
    launcher.close()


@pytest.mark.parametrize("python", ["", sys.executable])
@in_a_loop
def test_a_program_that_was_started_ends_when_its_launcher_closes(folder: Path, python: str) -> None:
    launcher = Launcher(str(folder))
    process = launcher.start("trims_predictors.worker.template", Environment("numpy", python)).child
    with process.socket as ours:
        ours.send(b'{"op": "import", "modules": []}')
        assert b"imported" in answered(ours)
        launcher.close()
        assert process.wait(10) == 0


@in_a_loop
def test_a_made_environment_is_held_from_the_first_start_until_the_launcher_closes(folder: Path) -> None:
    made = put(folder / "environments", numpy="2.0")
    env_store, launcher = EnvironmentStore(folder / "environments"), Launcher(str(folder))
    process = launcher.start("trims_predictors.worker.template", Environment("numpy", str(made.python))).child
    with process.socket as ours:
        ours.send(b'{"op": "import", "modules": []}')
        assert b"imported" in answered(ours)
        with pytest.raises(InUseError, match=f"{made.name} is in use by"):
            env_store.remove(made.name)
        launcher.close()
        process.wait(10)
    env_store.remove(made.name)


@in_a_loop
def test_an_environment_that_was_let_go_may_be_removed_until_the_next_start(folder: Path) -> None:
    made = put(folder / "environments", numpy="2.0")
    env_store, launcher = EnvironmentStore(folder / "environments"), Launcher(str(folder))
    environment = Environment("numpy", str(made.python))
    for _ in range(2):
        process = launcher.start("trims_predictors.worker.template", environment).child
        process.end(10.0)
        with pytest.raises(InUseError, match=f"{made.name} is in use by"):
            env_store.remove(made.name)
        launcher.let_go(environment.python)
        launcher.let_go(environment.python)
    env_store.remove(made.name)
    launcher.close()


@in_a_loop
def test_an_environment_that_was_removed_by_force_and_made_again_is_held_again(folder: Path) -> None:
    env_store, launcher = EnvironmentStore(folder / "environments"), Launcher(str(folder))
    processes = []
    for force in (True, False):
        made = put(env_store.folder, numpy="2.0")
        environment = Environment("numpy", str(made.python))
        processes.append(launcher.start("trims_predictors.worker.template", environment).child)
        if force:
            env_store.remove(made.name, force=True)
    with pytest.raises(InUseError, match=f"{made.name} is in use by"):
        env_store.remove(made.name)
    launcher.close()
    for process in processes:
        process.end(10.0)


def test_a_file_in_the_working_folder_does_not_take_the_place_of_python_s_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "json.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(folder)
    test_a_program_that_was_started_ends_when_its_launcher_closes(folder=folder, python="")


@in_a_loop
def test_what_a_program_prints_goes_to_standard_error(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "talks.py").write_text("print('hello')")
    launcher = Launcher(str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        process = launcher.start("trims_predictors.worker.template", Environment("numpy")).child
        process.socket.send(b'{"op": "import", "modules": ["talks"]}')
        assert b"imported" in answered(process.socket)
    assert process.end(10.0) == 0
    launcher.close()
    told = capfd.readouterr()
    assert told.out == ""
    assert re.fullmatch(rf"[\dT:.-]+Z INFO template {process.pid}: hello\n", told.err)


def test_templates_of_a_framework_import_it_and_our_parts_for_it() -> None:
    assert Environment("numpy").modules()[0] == "numpy"
    assert Environment("torch").modules()[-3:] == [
        "torch",
        "trims_client.frameworks.torch",
        "trims_predictors.frameworks.torch",
    ]


def test_how_a_process_ended_is_as_trims_errors() -> None:
    assert format_status(3) == "it exited with status 3"
    assert format_status(-11) == "it was ended by SIGSEGV"
    assert format_status(-9).startswith(
        "it was ended by SIGKILL (by the kernel for lack of memory, or by another process"
    )


def check(folder: Path, *paths: Path) -> None:
    (folder / "run").mkdir(exist_ok=True)
    check_hidden(paths, Isolation(NAMESPACES, tuple(map(str, paths))), str(folder / "run"))


def test_a_path_that_is_not_there_is_refused_at_every_level(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hide .*/secrets: there is no such file or folder"):
        check_hidden([folder / "secrets"], Isolation(), str(folder))


@namespaces
@pytest.mark.parametrize("path", ["/", "/proc", "/dev", "/usr", sys.prefix, json.__file__, str(ROOT / "trims")])
def test_what_predictors_need_cannot_be_hidden_and_is_named(folder: Path, path: str) -> None:
    (folder / "other").mkdir()
    with pytest.raises(ConfigError, match=f"--hide {path}: predictors cannot"):
        check(folder, folder / "other", Path(path))


@namespaces
def test_folders_beside_and_above_what_predictors_need_can_be_hidden(folder: Path) -> None:
    (folder / "secrets").mkdir()
    check(folder, folder / "secrets", ROOT.parent, Path(sys.prefix).parent)


def test_nothing_to_hide_starts_no_process(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    check(folder)
