"""Templates as the supervisor sees them: one for each framework and environment, with a spare predictor each.

A *spare* is forked before it is needed: it is connected to the daemon, and its threads run. A request for a model that
has no predictor takes the spare, so it waits neither for a fork nor for a framework's first steps.

Templates learn: what a predictor had to import for its model is imported by the next template, which takes the place of
the last once it may be forked (see `gate`). Until then the last one serves, so modules that are slow, hang or spoil a
template cost no request its time; they are not asked for again.

Where a template may not be forked, the predictor is spawned as a program of its own, and the template is replaced.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import BadMessageError, LostPeerError, PredictorError
from trims_predictors import messages
from trims_predictors.peer import Peer
from trims_predictors.processes import PredictorProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims.wire.frames import Message

_log = logging.getLogger(__name__)
#: What each predictor needs, whatever its framework.
_ALWAYS = (
    "numpy", "ml_dtypes", "trims_client.session", "trims_client.watch", "trims_client.weights",
    "trims_predictors.worker",
)  # fmt: skip
#: Libraries start threads at import, or when they ask for a device, unless these say otherwise (`gate` finds those
#: that do nevertheless). ONNX Runtime would also tell its maker of its use.
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MXNET_ENGINE_TYPE": "NaiveEngine",
}
#: Seconds to import a framework; the first time after a start of the machine reads it from the disk.
_IMPORT_S = 300.0
_FORK_S = 5.0
_PREPARE_S = 30.0
#: Between the end of a predictor and its template's word of it.
_STATUS_S = 1.0
#: Between two looks whether requests are answered, and until they are not waited for any more.
_CALM_S, _LONGEST_CALM_S = 0.05, 2.0
#: Names of modules in one message.
_MODULES_AT_ONCE = 300
#: Rounds of learning of one template.
_MOST_LESSONS = 32
#: Our packages are loaded from their own folders, so that a process of another environment sees them and that
#: environment's packages, and none of this one.
_BOOTSTRAP = """
import sys, json, runpy, importlib.util
packages, module = json.loads(sys.argv[1]), sys.argv[2]
sys.path[:] = [path for path in sys.path if path]
for name, folder in packages.items():
    spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
sys.argv[:] = [module] + sys.argv[3:]
importlib.import_module(module).main()
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where predictors of a framework run.

    Attributes:
        framework: `torch`, `onnxruntime`, `mxnet` or `numpy`.
        python: Interpreter; empty for this one.
    """

    framework: str
    python: str = ""

    def modules(self) -> list[str]:
        """What its template imports."""
        if self.framework == "numpy":
            return list(_ALWAYS)
        ours = [f"trims_client.frameworks.{self.framework}", f"trims_predictors.builtin.{self.framework}"]
        return [*_ALWAYS, self.framework, *ours]


class Launcher:
    """Starts programs of ours in an environment, tied to this process by a lifeline.

    Args:
        runtime_dir: Folder of the daemon's sockets.
    """

    def __init__(self, runtime_dir: str) -> None:
        self.runtime_dir = runtime_dir
        self.lifeline, self._held = os.pipe()

    def start(self, module: str, environment: Environment, sock: int) -> subprocess.Popen[bytes]:
        """Start `module` with a socket. Raises PredictorError if the interpreter cannot be started."""
        command = [
            environment.python or sys.executable, "-c", _BOOTSTRAP, json.dumps(_packages()), module,
            "--socket", str(sock), "--lifeline", str(self.lifeline), "--runtime-dir", self.runtime_dir,
        ]  # fmt: skip
        variables = {**os.environ, **ENVIRONMENT}
        if environment.python:
            for ours in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
                variables.pop(ours, None)
        try:
            return subprocess.Popen(command, pass_fds=[sock, self.lifeline], env=variables, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise PredictorError(f"{command[0]} cannot be started: {error}") from error

    def close(self) -> None:
        """End everything that was started and still runs."""
        os.close(self.lifeline)
        os.close(self._held)


class Template:
    """One template's process.

    Args:
        launcher: Starts it.
        environment: It is for.
        modules: To import at once.
    """

    def __init__(self, launcher: Launcher, environment: Environment, modules: Sequence[str]) -> None:
        self._launcher = launcher
        ours, theirs = messages.pair()
        with theirs:
            try:
                self._process = launcher.start("trims_predictors.template", environment, theirs.fileno())
            except BaseException:
                ours.close()
                raise
        self.modules = frozenset(modules)
        #: Why it may not be forked, once it is ready; None if it may be.
        self.spoilt: str | None = None
        self.failed: set[str] = set()
        self.lost: str | None = None
        self._retired = False
        self._answers: deque[asyncio.Future[tuple[Message, list[int]]]] = deque()
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._living: set[int] = set()
        self._peer = Peer(ours, self._heard, self._end)
        self.ready = asyncio.ensure_future(self._import(modules))

    async def _import(self, modules: Sequence[str]) -> None:
        """Have it import modules, as many at a time as a message holds; those that cannot be are skipped."""
        for begin in range(0, len(modules), _MODULES_AT_ONCE):
            some = list(modules[begin : begin + _MODULES_AT_ONCE])
            answer, _ = await self._ask({"op": "import", "modules": some}, (), _IMPORT_S)
            self.failed.update(answer["failed"])
            for module, why in answer["failed"].items():
                _log.debug("a template could not import %s: %s", module, why)
            self.spoilt = answer["spoilt"]

    async def fork(self) -> PredictorProcess:
        """A new predictor. Raises PredictorError if the template must not be forked, LostPeerError if it is gone."""
        await asyncio.shield(self.ready)
        ours, theirs = messages.pair()
        with theirs:
            try:
                answer, fds = await self._ask({"op": "fork"}, (theirs.fileno(), self._launcher.lifeline), _FORK_S)
                if answer["op"] == "refused":
                    raise PredictorError(f"the template cannot be forked: {answer['why']}")
            except BaseException:
                ours.close()
                raise
        pid = int(answer["pid"])
        self._living.add(pid)
        self._statuses[pid] = asyncio.get_running_loop().create_future()
        return PredictorProcess(ours, pid, fds[0], "forked", lambda: self._status(pid))

    async def _ask(self, message: Message, fds: Sequence[int], deadline_s: float) -> tuple[Message, list[int]]:
        answer: asyncio.Future[tuple[Message, list[int]]] = asyncio.get_running_loop().create_future()
        self._peer.send(message, fds)
        self._answers.append(answer)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), deadline_s)
        except asyncio.TimeoutError:
            self.close()
            raise LostPeerError(f"the template did not {message['op']} within {deadline_s:g} s") from None
        except asyncio.CancelledError:
            answer.add_done_callback(_drop)
            raise

    def _heard(self, message: Message, fds: list[int]) -> None:
        if message["op"] == "ended":
            status = self._statuses.get(int(message["pid"]))
            if status is not None and not status.done():
                status.set_result(int(message["status"]))
            self._living.discard(int(message["pid"]))
            self._end_if_retired()
            return
        answer = self._answers.popleft()
        if answer.done():
            messages.close_all(fds)
        else:
            answer.set_result((message, fds))

    async def _status(self, pid: int) -> str:
        """How a predictor ended. Only its template learns that; it says so a moment later, or never if it is gone."""
        try:
            return tell_status(await asyncio.wait_for(self._statuses[pid], _STATUS_S))
        except asyncio.TimeoutError:
            return "it ended, and so did its template"
        finally:
            del self._statuses[pid]

    def _end(self, why: str) -> None:
        self.close(why)

    def retire(self) -> None:
        """Keep it for as long as its predictors run, because it learns how they end."""
        self._retired = True
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self._retired and not self._living:
            self.close("it was replaced")

    def close(self, why: str = "it was closed") -> None:
        """End it; its predictors live on. Idempotent."""
        if self.lost is not None:
            return
        self.lost = why
        self._peer.close()
        self._process.kill()
        self._process.wait()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(LostPeerError(f"the template is gone: {why}"))
                answer.add_done_callback(_drop)
        self._answers.clear()
        self.ready.cancel()


def _drop(answer: asyncio.Future[tuple[Message, list[int]]]) -> None:
    """Take in an answer that is not waited for any more."""
    if not answer.cancelled() and answer.exception() is None:
        message, fds = answer.result()
        messages.close_all(fds)
        if message["op"] == "forked":
            _log.debug("a predictor that is not wanted any more was forked; it ends with its socket")


def tell_status(status: int) -> str:
    """How a process ended, for people."""
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    return f"it exited with status {status}"


class Nursery:
    """Has predictors ready for each environment.

    Args:
        launcher: Starts templates.
        spares: How many predictors each template has ready.
        threads: What a spare warms up with.
        busy: Whether requests are being answered. Spares and lessons, which compute for a while, wait until none is.
    """

    def __init__(self, launcher: Launcher, *, spares: int, threads: int, busy: Callable[[], bool]) -> None:
        self._launcher = launcher
        self._busy = busy
        self._most_spares = spares
        self._threads = threads
        self._templates: dict[Environment, Template] = {}
        self._spares: dict[Environment, list[PredictorProcess]] = {}
        self._learned: dict[Environment, list[str]] = {}
        #: Modules that cannot be imported in a template.
        self._banned: dict[Environment, set[str]] = {}
        #: Environments for which a template learns.
        self._teaching: set[Environment] = set()
        self._lessons: dict[Environment, int] = {}
        self._retired: list[Template] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tending: set[Environment] = set()

    async def take(self, environment: Environment) -> PredictorProcess:
        """A predictor's process that has loaded nothing yet. Raises PredictorError if none can be started."""
        spares = self._spares.get(environment, [])
        while spares:
            spare = spares.pop()
            if not spare.dying:
                spare.how = "spare"
                return spare
        try:
            return await self._template(environment).fork()
        except (PredictorError, LostPeerError, BadMessageError) as error:
            _log.warning("a predictor for %s is spawned, not forked: %s", environment.framework, error)
            self._discard(environment)
            return self._spawn(environment)

    def spares(self) -> dict[str, int]:
        """How many spares each framework has."""
        return {environment.framework: len(spares) for environment, spares in self._spares.items()}

    def learning(self) -> list[str]:
        """Frameworks for which a template learns just now."""
        return sorted(environment.framework for environment in self._teaching)

    def tend(self, environment: Environment) -> None:
        """Make spares again, in the background. Called when a model has answered, so that nothing is in its way."""
        if environment not in self._tending:
            self._tending.add(environment)
            self._background(self._tend(environment))

    def teach(self, environment: Environment, modules: Sequence[str]) -> None:
        """Tell what a predictor had to import; the template imports it, too, and its spares are replaced."""
        template = self._templates.get(environment)
        if template is None or template.lost is not None or environment in self._teaching:
            return  # the next predictor that lacks them tells it again
        known = template.modules | self._banned.get(environment, set())
        new = [name for name in modules if name not in known and "__main__" not in name]
        lessons = self._lessons.get(environment, 0)
        if new and lessons < _MOST_LESSONS:
            self._lessons[environment] = lessons + 1
            self._teaching.add(environment)
            self._background(self._teach(environment, new))

    def _template(self, environment: Environment) -> Template:
        template = self._templates.get(environment)
        if template is None or template.lost is not None:
            modules = [*environment.modules(), *self._learned.get(environment, [])]
            template = self._templates[environment] = Template(self._launcher, environment, modules)
        return template

    def _discard(self, environment: Environment) -> None:
        template = self._templates.pop(environment, None)
        if template is not None:
            template.close("it could not be forked")

    async def _teach(self, environment: Environment, modules: list[str]) -> None:
        """Make a template that has imported these, too, and put it in the place of the last one."""
        try:
            await self._calm()
            learned = [*self._learned.get(environment, []), *modules]
            template = Template(self._launcher, environment, [*environment.modules(), *learned])
            try:
                await asyncio.shield(template.ready)
            except LostPeerError as error:
                template.spoilt = str(error)
            except asyncio.CancelledError:
                template.close("the endpoint ends")
                raise
        finally:
            self._teaching.discard(environment)
        if template.spoilt is not None:
            _log.warning(
                "a template for %s cannot learn this; its predictors will import it themselves: %s (%s)",
                environment.framework, ", ".join(modules[:20]), template.spoilt,
            )  # fmt: skip
            self._banned.setdefault(environment, set()).update(modules)
            template.close("it was spoilt")
            return
        self._learned[environment] = [each for each in learned if each not in template.failed]
        self._banned.setdefault(environment, set()).update(template.failed)
        before, self._templates[environment] = self._templates.get(environment), template
        if before is not None:
            before.retire()
            self._retired = [each for each in (*self._retired, before) if each.lost is None]
        for spare in self._spares.pop(environment, []):  # they lack it
            await spare.end()
        self.tend(environment)

    async def _tend(self, environment: Environment) -> None:
        try:
            await self._calm()
            while len(self._spares.get(environment, ())) < self._most_spares:
                spare = await self._template(environment).fork()
                await spare.ask(
                    {"op": "prepare", "modules": environment.modules(), "threads": self._threads}, deadline_s=_PREPARE_S
                )
                self._spares.setdefault(environment, []).append(spare)
        except Exception as error:  # noqa: BLE001 - without a spare, the next predictor is forked or spawned
            _log.warning("no spare predictor for %s: %s", environment.framework, error)
        finally:
            self._tending.discard(environment)

    async def _calm(self) -> None:
        """Wait until no request is answered, but not for ever."""
        until = time.monotonic() + _LONGEST_CALM_S
        while self._busy() and time.monotonic() < until:
            await asyncio.sleep(_CALM_S)

    def _spawn(self, environment: Environment) -> PredictorProcess:
        ours, theirs = messages.pair()
        with theirs:
            try:
                process = self._launcher.start("trims_predictors.worker", environment, theirs.fileno())
            except BaseException:
                ours.close()
                raise

        async def status() -> str:
            return tell_status(process.wait())

        return PredictorProcess(ours, process.pid, os.pidfd_open(process.pid), "spawned", status)

    def _background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End spares and templates."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(spare.end() for spares in self._spares.values() for spare in spares))
        for template in [*self._templates.values(), *self._retired]:
            template.close()


def _packages() -> dict[str, str]:
    import trims_client

    import trims
    import trims_predictors

    return {
        module.__name__: os.path.dirname(os.path.abspath(str(module.__file__)))
        for module in (trims, trims_client, trims_predictors)
    }
