"""Evaluations that the endpoint's clients order and read: one at a time, each in a process of its own.

What runs is `trims eval`, what is read comes from `trims report` and `trims trace`: command, page and library do the
same.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from trims_predictors.endpoint.http.openapi import LISTED_TRACES, MOST_LISTED_TRACES

from trims.core.errors import BusyError, CallerError, TrimsError
from trims.trace.levels import Level
from trims_bench.evaluation.database.connection import check_installed
from trims_bench.evaluation.records import new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims_bench.evaluation.served.errands import Errand, Errands

RUNNING, ENDED, FAILED, CANCELLED = "running", "ended", "failed", "cancelled"
#: State that is answered of a cancelled one whose process still writes what it has.
ENDING = "ending"
#: Seconds that an evaluation has to end.
_GRACE_S = 5.0
#: Evaluations of this endpoint whose progress and errors are kept.
_MOST_KEPT = 64
_TRACE_ID = re.compile(r"[0-9a-f]{32}\Z")


#: Ids of evaluations, and their beginnings.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    """Order of an evaluation as clients give it."""

    model: str = ""
    resume: str = ""
    tiers: list[str] | None = msgspec.field(default=None, name="from")
    ways: list[str] | None = msgspec.field(default=None, name="how")
    batches: list[int] | None = msgspec.field(default=None, name="batch")
    repeat: int | None = None
    idle: float | None = None
    level: str | None = None
    request: dict[str, Any] | None = None
    models: list[str] = msgspec.field(default_factory=list)
    scenario: dict[str, str | int | float] | None = None


#: Fields of a scenario -> options of `trims eval`. None names a file of this machine.
_OF_LOADS = {
    "name": "scenario", "rate": "rate", "duration": "duration", "requests": "requests", "concurrency": "concurrency",
    "burst_size": "burst-size", "bound_ms": "bound-ms", "percentile": "percentile", "popularity": "popularity",
    "seed": "seed", "connections": "connections", "deadline_s": "deadline-s",
}  # fmt: skip


@dataclass(slots=True)
class Progress:
    """How far an evaluation of this endpoint is.

    Attributes:
        done: Samples that were taken.
        total: Samples there will be; 0 while that is not known.
        last: The newest sample.
        code: Code of the error that ended it.
        error: The words of that.
    """

    id: str
    model: str
    state: str = RUNNING
    done: int = 0
    total: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it for an answer."""
        found: dict[str, Any] = {
            "id": self.id, "model": self.model, "state": self.state, "done": self.done, "total": self.total,
            "last": dict(self.last),
        }  # fmt: skip
        return {**found, "code": self.code, "error": self.error} if self.error else found


class Evaluations:
    """See the module. Used in one event loop.

    Args:
        errands: Run the commands.
        environments: Options of `trims eval` that say where predictors run.
    """

    def __init__(self, errands: Errands, environments: Sequence[str] = ()) -> None:
        self._errands = errands
        self._environments = list(environments)
        self._known: OrderedDict[str, Progress] = OrderedDict()
        self._errand: Errand | None = None
        self._running: Progress | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an evaluation and return its progress.

        Args:
            order: `model`, or `resume` with an id; `from`, `how` and `batch` are lists, `repeat` and `idle` numbers,
                `level` a word, `request` a request of the inference protocol; or `scenario` with its options for a
                load on `model` and `models`.

        Raises:
            CallerError: The order has an unknown field, or one of a wrong type.
            BusyError: One is running.
            NotSupportedError: The package that evaluations are kept with is not installed.
        """
        check_installed()
        model, options, named, wanted = _words(order)
        if self._running is not None:
            raise BusyError(
                f"evaluation {self._running.id} of {self._running.model} is running, and two would measure each "
                "other; wait for its end, or cancel it"
            )
        progress = Progress(wanted or new_id(), model)
        new = [] if wanted else ["--id", progress.id]
        self._errand = errand = self._errands.begin(
            "eval", *options, *new, *self._environments, "--json-lines", "--", *named
        )
        self._running = self._known[progress.id] = progress
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        self._task = asyncio.ensure_future(self._follow(progress, errand))
        return progress.as_json()

    async def _follow(self, progress: Progress, errand: Errand) -> None:
        try:
            await errand.lines(_taker(progress))
            if progress.state == RUNNING:
                progress.state = ENDED
        except (TrimsError, ValueError) as error:
            if progress.state == RUNNING:
                progress.state, progress.error = FAILED, str(error)
                progress.code = error.code if isinstance(error, TrimsError) else "internal"
        finally:
            errand.end()
            self._running = None

    async def listed(self, model: str = "") -> dict[str, Any]:
        """Return summaries of all evaluations in the database, or of one model's, and what is running."""
        found = json.loads(await self._errands.ask("report", "--json", *([f"--model={model}"] if model else [])))
        running = None if self._running is None else self._running_json(self._running)
        return {"evaluations": found, "running": running}

    @staticmethod
    def _running_json(running: Progress) -> dict[str, Any]:
        return {**running.as_json(), "state": ENDING if running.state == CANCELLED else running.state}

    async def read(self, evaluation_id: str) -> dict[str, Any]:
        """Return an evaluation with its report; of one that is running, or never began, only the progress."""
        progress = self._known.get(evaluation_id)
        if progress is not None and progress is self._running:
            return self._running_json(progress)
        if progress is not None and progress.state == FAILED and not progress.done:
            return progress.as_json()
        try:
            (found,) = json.loads(await self._errands.ask("report", "--json", "--", evaluation_id))
        except CallerError:
            if progress is None:
                raise
            return progress.as_json()  # it was cancelled before there was anything to keep
        state = progress.state if progress is not None else ENDED if found["ended"] else "interrupted"
        told = {} if progress is None or not progress.error else {"code": progress.code, "error": progress.error}
        return {**found, "state": state, **told}

    async def page(self, evaluation_id: str) -> str:
        """Return the report of an evaluation as HTML."""
        return await self._errands.ask("report", "--html", "/dev/stdout", "--", evaluation_id)

    async def explained(self, one: str, other: str) -> dict[str, Any]:
        """Return two evaluations compared."""
        found = json.loads(await self._errands.ask("report", "--explain", "--json", "--", one, other))
        explained: dict[str, Any] = found["explained"]
        return explained

    async def trace(self, trace_id: str) -> dict[str, Any]:
        """Return a trace, with a line for each span: that of a sample, else one that was recorded in a file."""
        if not _TRACE_ID.match(trace_id):
            raise CallerError(f"{trace_id!r:.80} is no id of a trace: 32 digits of 0-9 and a-f")
        try:
            told = await self._errands.ask("report", "--json", f"--trace={trace_id}")
        except CallerError:  # no sample has it
            told = await self._errands.ask("trace", "--json", f"--id={trace_id}")
        found: dict[str, Any] = json.loads(told)
        return found

    async def traces(self, limit: int = LISTED_TRACES) -> dict[str, Any]:
        """Return the traces that were recorded last in the daemon's folder, the last one first.

        Raises CallerError if `limit` is not from 1 to `MOST_LISTED_TRACES`.
        """
        if not 1 <= limit <= MOST_LISTED_TRACES:
            raise CallerError(f"the limit of traces is {limit}; it must be from 1 to {MOST_LISTED_TRACES}")
        return {"traces": json.loads(await self._errands.ask("trace", "--list", "--json", f"--limit={limit}"))}

    async def remove(self, evaluation_id: str) -> dict[str, Any]:
        """Cancel an evaluation that is running, which keeps its samples; remove one that is not.

        Raises BusyError for one that was cancelled and has not ended yet.
        """
        running = self._running
        if running is not None and running.id == evaluation_id:
            if running.state == CANCELLED:
                raise BusyError(f"evaluation {evaluation_id} was cancelled and is ending; remove it in a moment")
            running.state = CANCELLED
            if self._errand is not None:
                self._errand.interrupt()
            return running.as_json()
        self._known.pop(evaluation_id, None)
        await self._errands.ask("report", "--remove", "--", evaluation_id)
        return {}

    async def close(self) -> None:
        """End what is running; its samples are kept. Idempotent."""
        if self._running is not None and self._running.state == RUNNING:
            self._running.state = CANCELLED
        task, self._task = self._task, None
        if self._errand is None or task is None:
            return
        self._errand.interrupt()
        await asyncio.wait([task], timeout=_GRACE_S)
        self._errand.end()
        await asyncio.wait([task])


def _check(asked: _Order) -> None:
    """Refuse at once what the command would refuse a second later."""
    from trims_bench.evaluation.session import Wish
    from trims_bench.workloads.scenarios import choose

    try:
        Level.parse(asked.level or Level.MODEL.name)
    except ValueError as error:
        raise CallerError(str(error)) from error
    if asked.scenario is not None:
        _load_words(asked)
        texts = [name for name, value in asked.scenario.items() if isinstance(value, str)]
        wrong = sorted(set(texts) - {"name", "popularity"})
        if wrong:
            raise CallerError(f"{wrong[0]!r} of `scenario` must be a number, not {asked.scenario[wrong[0]]!r:.80}")
        given = {name: value for name, value in asked.scenario.items() if name != "name"}
        choose(str(asked.scenario.get("name", "")), {**given, **({"batch": asked.batches[0]} if asked.batches else {})})
        return
    chosen = {
        "tiers": asked.tiers, "ways": asked.ways, "repeats": asked.repeat, "batches": asked.batches,
        "idle_s": asked.idle,
    }  # fmt: skip
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items() if value is not None
    }
    Wish(asked.model, asked.resume, **values)


def _load_words(asked: _Order) -> list[str]:
    """Return the options of a load: of a scenario `{"name": "poisson", "rate": 200}`."""
    scenario = dict(asked.scenario or {})
    if asked.resume or asked.request is not None:
        raise CallerError("a load has a model, and neither `resume` nor `request`")
    unknown = sorted(scenario.keys() - set(_OF_LOADS))
    if unknown or "name" not in scenario:
        raise CallerError(f"`scenario` has no {(unknown or ['name'])[0]!r:.80}; known are {', '.join(_OF_LOADS)}")
    return [f"--{_OF_LOADS[name]}={value}" for name, value in scenario.items()]


def _taker(progress: Progress) -> Callable[[str], None]:
    def take(line: str) -> None:
        found = json.loads(line)
        progress.done, progress.total = int(found["done"]), int(found["total"])
        progress.last = found.get("sample") or found.get("probe") or {}

    return take


def _words(order: Mapping[str, Any]) -> tuple[str, list[str], list[str], str]:
    """Return the model of an order, options and arguments of its command, and the evaluation to go on with."""
    try:
        asked = msgspec.convert(order, _Order)
    except msgspec.ValidationError as error:
        raise CallerError(f"the order of an evaluation is wrong: {error}") from error
    if bool(asked.model) == bool(asked.resume):
        raise CallerError("name the `model` to evaluate, or with `resume` the id of the evaluation to go on with")
    if asked.resume and not _ID.match(asked.resume):
        raise CallerError(
            f"'resume' is {asked.resume!r:.80}; write the id of an evaluation (`trims report` lists them)"
        )
    lists = {"--from": asked.tiers, "--how": asked.ways, "--batch": asked.batches}
    options = [f"{name}={','.join(map(str, values))}" for name, values in lists.items() if values is not None]
    words = {"--repeat": asked.repeat, "--idle": asked.idle, "--level": asked.level}
    options += [f"{name}={value}" for name, value in words.items() if value is not None]
    _check(asked)
    if asked.scenario is not None:
        return asked.model, [*options, *_load_words(asked)], [asked.model, *asked.models], ""
    if asked.models:
        raise CallerError("`models` are further models of a load: name its `scenario`")
    if asked.resume:
        return asked.resume, [*options, f"--resume={asked.resume}"], [], asked.resume
    request = [] if asked.request is None else [json.dumps(asked.request)]
    return asked.model, options, [asked.model, *request], ""
