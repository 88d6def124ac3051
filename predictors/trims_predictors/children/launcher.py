"""Launcher of our programs in a framework's environment, each tied to the endpoint's life."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trims.core.errors import ConfigError
from trims.environments.environment_store import hold
from trims.memory.shortage import killed_words
from trims.process.child import Child, Ties, exit_words
from trims.process.child_environment import FRAMEWORKS, child_environment
from trims.process.oneshot import run
from trims.process.python import run_ours
from trims.wire.address import ATTACH_FOLDER, TENANTS_FOLDER
from trims_predictors.ipc.os_errors import as_trims_error, as_trims_errors
from trims_predictors.ipc.output_pipes import Output, Outputs
from trims_predictors.sandbox.sandbox import NAMESPACES, OWN_PROCESS, Isolation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trims.process.lifeline import Lifeline

#: Modules that each predictor needs, whatever its framework.
_ALWAYS = (
    "numpy", "ml_dtypes", "trims_client.mapping.suspended", "trims_client.session", "trims_client.connection.watch",
    "trims_client.weights", "trims_client.mapping.device", "trims.memory.cuda.borrower",
    "trims_predictors.worker.worker", "trims_predictors.frameworks.resolve", "trims_predictors.transforms.chain",
)  # fmt: skip
#: Libraries start threads at import, or when they ask for a device, unless these say otherwise (`gate` finds those
#: that do nevertheless). ONNX Runtime would also report its use to its maker.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MXNET_ENGINE_TYPE": "NaiveEngine",
}
#: Variables that the endpoint's own environment overrides.
DEFAULTS = {
    # `trims.mxnet` says what it is for, and sets it too late for templates, which import MXNet first.
    "MXNET_DISABLE_MKLDNN_FC_OPT": "1",
    # How often threads of GNU's OpenMP look whether they may go on before they sleep. Its own 300,000 times are up to
    # 20 ms, in which they keep another predictor's threads from the processor; with 10,000 a model that is alone takes
    # 1 to 4 % longer. See `processors`.
    "GOMP_SPINCOUNT": "10000",
}
#: Folders that `--hide` cannot name, because a namespace has its own; and seconds for a predictor to start without.
_MADE, _PROBE_S = ("/", "/dev", "/proc"), 60.0
#: Names of our programs in the lines that they print.
_CALLED = {"trims_predictors.worker.worker": "predictor", "trims_predictors.worker.template": "template"}


@dataclass(frozen=True, slots=True)
class Environment:
    """Environment in which predictors of a framework run.

    Attributes:
        framework: `torch`, `onnxruntime`, `mxnet` or `numpy`.
        python: Interpreter; empty for this one.
        tenant: Owner of the predictors, which run apart from those of others; empty for the operator's.
    """

    framework: str
    python: str = ""
    tenant: str = ""

    def modules(self) -> list[str]:
        """Return the names of the modules that the template of this environment imports."""
        if self.framework == "numpy":
            return list(_ALWAYS)
        ours = [f"trims_client.frameworks.{self.framework}", f"trims_predictors.frameworks.{self.framework}"]
        return [*_ALWAYS, self.framework, *ours]


@dataclass(frozen=True, slots=True)
class Program:
    """A program of ours that was started.

    Attributes:
        child: The program, or what stands round it (see `Isolation.wrapped`, `guard`).
        output: What it prints.
    """

    child: Child
    output: Output


class Launcher:
    """Starts programs of ours in an environment, each tied to this process by a lifeline of its own.

    An environment that trims has made is not removed from its first use until `let_go`.

    Args:
        runtime_dir: Folder of the daemon's sockets.
        isolation: How far what it starts is kept apart.
        plain: Pass on what it starts prints as it is (see `Outputs`).
    """

    def __init__(self, runtime_dir: str, isolation: Isolation = OWN_PROCESS, *, plain: bool = False) -> None:
        self.runtime_dir = runtime_dir
        self.isolation = isolation
        #: Lifelines of all processes that were started and may still run.
        self._lifelines: set[Lifeline] = set()
        #: Output of the started processes, passed on.
        self.outputs = Outputs(plain=plain)
        self._holds: dict[str, int | None] = {}

    def start(self, module: str, environment: Environment) -> Program:
        """Start `module`.

        Args:
            module: Module of ours, with a function `main`.
            environment: Where.

        Raises PredictorError if the interpreter cannot be started, CapacityError if descriptors or processes lack for
        it, NotSupportedError if its environment is being removed.
        """
        python = environment.python
        self._hold(python)
        called = _CALLED.get(module, module)
        with as_trims_errors(f"no {called} for {environment.framework} can be started"), contextlib.ExitStack() as undo:
            ties = self.tie()
            undo.callback(ties.close)
            output = self.outputs.open(called)
            undo.callback(output.close)
            child = self._run(module, environment, ties, output.fileno())
            undo.pop_all()
        output.given()
        output.whose = f"{output.whose} {child.pid}"
        return Program(child, output)

    def _run(self, module: str, environment: Environment, ties: Ties, output: int) -> Child:
        python = environment.python
        door = os.path.join(TENANTS_FOLDER, environment.tenant) if environment.tenant else ATTACH_FOLDER
        given = ("--runtime-dir", self._folder_of(door), "--writable", self.isolation.writable)
        command = run_ours(module, *ties.arguments, *given, packages=_packages(), python=python)
        isolated = self.isolation.wrapped(command, self.runtime_dir, shown(python), door=door)
        env = child_environment(FRAMEWORKS, python=python, given={**DEFAULTS, **os.environ}, more=ENVIRONMENT)
        try:
            how = {**isolated.how, "env": env, "stdout": output, "stderr": output}
            return Child(isolated.command, ties, fds=isolated.fds, leads=False, **how)
        except (OSError, subprocess.SubprocessError) as error:
            raise as_trims_error(error, f"{isolated.command[0]} cannot be started") from error
        finally:
            isolated.close()

    def tie(self) -> Ties:
        """Return ties for one more process, whose lifeline the caller closes when that has ended."""
        self._lifelines = {each for each in self._lifelines if not each.closed}
        ties = Ties()
        self._lifelines.add(ties.lifeline)
        return ties

    def hide(self, path: str) -> None:
        """Hide a folder or file, too, from what is started from now on. Templates that see it are used no more."""
        if path and os.path.realpath(path) not in map(os.path.realpath, self.isolation.hidden):
            self.isolation = replace(self.isolation, hidden=(*self.isolation.hidden, path))

    def identities(self) -> tuple[tuple[int, int], ...]:
        """Return the identities of the files hidden from programs that are started now (see `Isolation.identities`)."""
        return self.isolation.identities(self.runtime_dir)

    def _folder_of(self, door: str) -> str:
        """Return the predictor's folder of the attach socket; a namespace has that as its runtime folder."""
        within = door == ATTACH_FOLDER or self.isolation.level == NAMESPACES
        return self.runtime_dir if within else os.path.join(self.runtime_dir, door)

    def _hold(self, python: str) -> None:
        held = self._holds.get(python)
        if held is not None and os.fstat(held).st_nlink == 0:  # it was removed by force, and perhaps made again
            os.close(held)
            del self._holds[python]
        if python not in self._holds:
            self._holds[python] = hold(python)

    def let_go(self, python: str) -> None:
        """Let an environment be removed, in which nothing runs any more that was started here. A start holds it."""
        held = self._holds.pop(python, None)
        if held is not None:
            os.close(held)

    def close(self) -> None:
        """End everything that was started and still runs. What it printed last may be lost."""
        while self._lifelines:
            self._lifelines.pop().close()
        while self._holds:
            _, fd = self._holds.popitem()
            if fd is not None:
                os.close(fd)
        self.outputs.close()


def shown(python: str = "") -> list[str]:
    """Return the folders that stay visible whatever is hidden: our packages, the environment, and its base Python.

    Args:
        python: Interpreter of the environment; empty for this one.
    """
    found = {os.path.dirname(folder) for folder in _packages().values()}
    found.update((sys.prefix, sys.base_prefix))
    if python:
        found.update(os.path.dirname(os.path.dirname(way(python))) for way in (os.path.abspath, os.path.realpath))
    return sorted(found)


def check_hidden(paths: Sequence[Path], isolation: Isolation, runtime_dir: str) -> None:
    """Raise ConfigError if one of `--hide` is not there, or if predictors could not start without it.

    Args:
        paths: What the user names. A path that appears later would be seen by running predictors.
        isolation: The level, with everything that is hidden.
        runtime_dir: Folder of the daemon's sockets.
    """
    for path in paths:
        if not path.exists():
            raise ConfigError(
                f"--hide {path}: there is no such file or folder, so nothing would be hidden; create it before the "
                "endpoint starts, or leave the flag out"
            )
    if isolation.level != NAMESPACES:
        return
    for path in paths:
        if os.path.realpath(path) in _MADE:
            raise ConfigError(f"--hide {path}: predictors cannot run without it; name the folders inside that matter")
    if paths and _why_not(isolation, runtime_dir):
        for path in paths:
            why = _why_not(replace(isolation, hidden=(str(path),)), runtime_dir)
            if why:
                raise ConfigError(
                    f"--hide {path}: predictors cannot start without it ({why}); name the folders inside that matter"
                )
        raise ConfigError(f"--hide {', '.join(map(str, paths))}: predictors cannot start without all of these together")


def _why_not(isolation: Isolation, runtime_dir: str) -> str:
    """Return why a predictor's program does not start at this level; empty if it does."""
    command = run_ours("trims_predictors.worker.worker", "--help", packages=_packages())
    wrapped = isolation.wrapped(command, runtime_dir, shown())
    try:
        done = run(wrapped.command, seconds=_PROBE_S, fds=wrapped.fds, **wrapped.how)
    except OSError as error:
        return str(error)
    finally:
        wrapped.close()
    return "" if done.status == 0 else done.last_words(1, exit_words(done.status))[:200]


def format_status(status: int) -> str:
    """Return in words how a process ended."""
    return f"it {exit_words(status, killed_words())}"


def _packages() -> dict[str, str]:
    import trims_client

    import trims
    import trims_predictors

    return {
        module.__name__: os.path.dirname(os.path.abspath(str(module.__file__)))
        for module in (trims, trims_client, trims_predictors)
    }
