"""Evaluations from their order to what is kept: a daemon, predictors of its models, traces and the database."""

from __future__ import annotations

import os
import re
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trims_predictors.children.launcher import Launcher
from trims_predictors.deployment.deployments import Deployments
from trims_predictors.deployment.signatures import Signatures
from trims_predictors.tensors import check_against
from trims_predictors.warm.warm_pool import WarmPool

from trims.control import aadmin
from trims.core.errors import BusyError, CallerError, LostPeerError, ModelNotFoundError
from trims.environments.environment_store import EnvironmentStore, default_folder
from trims.formats.conversion.interpreter_selection import InterpreterSelection
from trims.manifests.manifest import parse_manifest
from trims.trace import spans
from trims.trace.levels import Level
from trims.wire.address import default_runtime_dir
from trims_bench.evaluation.database.connection import database_url
from trims_bench.evaluation.database.evaluations import Evaluations
from trims_bench.evaluation.evaluation import Evaluation, starts
from trims_bench.evaluation.inputs import in_batches, made_inputs
from trims_bench.evaluation.leveled import runs_at_levels
from trims_bench.evaluation.records import LAYERS, Order, new_id
from trims_bench.evaluation.stack import stack
from trims_bench.evaluation.tiers import TIERS, artifact_files
from trims_bench.evaluation.ways import WAYS, Starter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from trims_predictors.deployment.deployment import Deployment
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.tensors import Tensor

    from trims.control import AsyncAdmin, Model
    from trims.manifests.serving import TensorType
    from trims_bench.evaluation.records import Evaluated, Sample, Taken

    #: Called with the number of samples there are, the number there will be, and the newest one.
    Progress = Callable[[int, int, Sample], None]
    #: Makes the inputs of a request, given the model's.
    MakeInputs = Callable[[Sequence[TensorType]], list[Tensor]]

MOST_REPEATS = 10_000
_MOST_BATCH = 65_536
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Wish:
    """Wish of a user: what is to be measured.

    Attributes:
        model: Registered name; empty to go on with an evaluation.
        resume: What the id of the evaluation to go on with begins with; empty for a new one.
        tiers: Tiers to start from, of `tiers.TIERS`.
        ways: Ways to start in, of `ways.WAYS`.
        repeats: Samples of each tier and way.
        batches: Sizes of requests to a predictor that runs already.
        idle_s: Seconds that a predictor rests to be settled.
        level: Deepest level at which a predictor that runs already is looked at, with all levels above it.
        evaluation_id: Id of a new evaluation; empty for one that is made from the time.
        make_inputs: Makes the inputs of requests; None for some that are made from a stated seed.
    """

    model: str = ""
    resume: str = ""
    tiers: tuple[str, ...] = ("file", "disk", "cpu")
    ways: tuple[str, ...] = WAYS
    repeats: int = 10
    batches: tuple[int, ...] = (1,)
    idle_s: float = 2.0
    level: Level = Level.MODEL
    evaluation_id: str = ""
    make_inputs: MakeInputs | None = None

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.resume):
            raise CallerError("name a model to evaluate, or the evaluation to go on with")
        for what, named, known in (("tier", self.tiers, TIERS), ("way", self.ways, WAYS)):
            wrong = [each for each in named if each not in known]
            if wrong or not named:
                raise CallerError(f"{wrong[0] if wrong else 'nothing'!r} is no {what}; known are {', '.join(known)}")
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise CallerError(f"{self.repeats} repeats; it must be from 1 to {MOST_REPEATS:,}")
        if not self.batches or not all(1 <= each <= _MOST_BATCH for each in self.batches):
            raise CallerError(f"batches are {self.batches}; each must be from 1 to {_MOST_BATCH:,}")
        if self.evaluation_id and not _ID.match(self.evaluation_id):
            raise CallerError(f"{self.evaluation_id!r:.80} is no id: letters, digits, dots and dashes, at most 64")
        if not 0 <= self.idle_s <= 86_400:
            raise CallerError(f"{self.idle_s} s of rest; it must be from 0 to 86,400")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an evaluation runs and is kept.

    Attributes:
        runtime_dir: Folder of the daemon's sockets; None for this user's.
        environments: Interpreters by framework.
        environments_dir: Folder of made environments; None for this user's.
        database: URL of the database; empty for the one that `TRIMS_EVALUATIONS` names, else a file below the daemon's
            state.
    """

    runtime_dir: str | None = None
    environments: Mapping[str, Path] | None = None
    environments_dir: Path | None = None
    database: str = ""


async def evaluate_model(wish: Wish, place: Place, progress: Progress) -> Evaluated:
    """Evaluate a model, or go on with an evaluation.

    Args:
        progress: Called with each sample.

    Raises:
        CallerError: There is nothing to go on with, or the model has changed since; or its inputs are not known.
        BusyError: Another evaluation runs on this machine.
        TrimsError: The daemon or the database refuse.
    """
    async with _opened(place) as (daemon, deployments, kept, trace_dir, runtime_dir):
        resumed = kept.read(wish.resume) if wish.resume else None
        model = resumed.order.model if resumed else wish.model
        deployment = await deployments.of(model)
        if resumed is None:
            order = await _begun(daemon, kept, wish, deployment)
        else:
            order = resumed.order
            if str(deployment.key) != order.key:
                raise CallerError(f"{model} has changed since evaluation {order.id}; begin a new one")
        types = Signatures().described(deployment)[0]
        one = made_inputs(types, model) if wish.make_inputs is None else wish.make_inputs(types)
        check_against(one, types, model)
        inputs = in_batches(one, types, order.batches, model, given=wish.make_inputs is not None)
        done = list(resumed.samples) if resumed else []
        total = len(starts(order)) * order.repeats

        def keep(taken: Taken) -> None:
            kept.add(order.id, taken)
            done.append(taken.sample)
            progress(len(done), total, taken.sample)

        shown = await _looked_into(daemon, model)
        async with _starter(runtime_dir, deployment, inputs, order.idle_s, shown) as starter:
            evaluation = Evaluation(daemon, model, starter, artifact_files(shown), str(trace_dir), keep)
            taken_before = frozenset((each.where, each.number) for each in done)
            with _resumable(order.id):
                await evaluation.run(starts(order), order.repeats, taken_before)
            level = Level.parse(order.level)
            if level > Level.MODEL and not (resumed and LAYERS in resumed.documents):
                leveled = await runs_at_levels(starter, model, level, order.repeats, str(trace_dir))
                kept.add_document(order.id, LAYERS, 0, leveled.as_json())
        kept.end(order.id, evaluation.unreachable)
        return kept.read(order.id)


async def _begun(daemon: AsyncAdmin, kept: Evaluations, wish: Wish, deployment: Deployment) -> Order:
    shown = await daemon.show(wish.model)
    order = Order(
        wish.evaluation_id or new_id(), wish.model, str(deployment.key), wish.tiers, wish.ways, wish.repeats,
        wish.batches, wish.level.name.lower(), wish.idle_s, began_unix_s=time.time(), stack=stack(),
        manifest=shown.manifest_json,
    )  # fmt: skip
    kept.begin(order, len(starts(order)) * order.repeats)
    return order


@contextmanager
def _resumable(evaluation_id: str) -> Iterator[None]:
    """Have errors that end an evaluation say how it goes on."""
    try:
        yield
    except (LostPeerError, ModelNotFoundError) as error:
        raise type(error)(f"{error}; `trims eval --resume {evaluation_id}` goes on") from error


async def _looked_into(daemon: AsyncAdmin, model: str) -> Model:
    """Return a model whose artifact was looked into: which files it has is known then."""
    shown = await daemon.show(model)
    if not shown.files:
        await daemon.load(model, "cpu")
        shown = await daemon.show(model)
    return shown


@asynccontextmanager
async def _opened(
    place: Place,
) -> AsyncIterator[tuple[AsyncAdmin, Deployments, Evaluations, Path, str]]:
    runtime_dir = place.runtime_dir or default_runtime_dir()
    made = EnvironmentStore(place.environments_dir or default_folder())
    picker = InterpreterSelection(dict(place.environments or {}), made)
    async with aadmin(runtime_dir) as daemon:
        state_dir = Path((await daemon.status()).health.state_dir)
        with only_evaluation(state_dir), Evaluations(database_url(place.database, state_dir)) as kept:
            spans.configure(state_dir / "trace", "evaluation", everything=True)
            try:
                yield daemon, Deployments(daemon, picker, _keep), kept, state_dir / "trace", runtime_dir
            finally:
                spans.stop()


@asynccontextmanager
async def _starter(
    runtime_dir: str, deployment: Deployment, inputs: Mapping[int, Sequence[Tensor]], idle_s: float, shown: Model
) -> AsyncIterator[Starter]:
    launcher = Launcher(runtime_dir, plain=True)
    templates = WarmPool(launcher, spares=0, threads=deployment.threads, busy=lambda: True)
    options = parse_manifest(shown.manifest, shown.origin).artifact.options
    artifact = {"path": (artifact_files(shown) or [""])[0], "format": shown.format, "options": dict(options)}
    starter = Starter(launcher, templates, deployment, inputs, idle_s=idle_s, artifact=artifact)
    try:
        yield starter
    finally:
        await starter.close()
        await templates.close()
        launcher.close()


@contextmanager
def only_evaluation(state_dir: Path) -> Iterator[None]:
    """Keep other evaluations out, which would be measured too. Raises BusyError if one runs."""
    import fcntl

    lock = os.open(state_dir / "evaluation.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise BusyError("another evaluation is running, and two would measure each other; wait for its end") from error
    try:
        yield
    finally:
        os.close(lock)


def _keep(key: DeploymentKey) -> None:
    """Do nothing when a deployment is replaced: an evaluation ends its own processes."""
