"""`make demo`: three real models, each run by its framework alone, and over trims: unseen, cold and warm.

Every number is from a fresh process. The ways take turns, a few times, and medians are shown, as machines are
noisy. Leaves nothing behind but disk images in the cache folder, which make the next demo start sooner.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from trims.cli.output import console, loading, note, say
from trims.core.errors import TrimsError
from trims_bench import demo_tables as tables
from trims_bench import smaps
from trims_bench.daemon import DaemonProcess
from trims_bench.demo_tables import ALONE, COLD, UNSEEN, WARM, Arrival, Compared
from trims_bench.endpoint import EndpointProcess, Inputs, environment_of, image, tokens
from trims_bench.repository import MxnetMissingError, mxnet_python
from trims_bench.runs import MODELS, Model, WorkerError, artifact_of, held, run
from trims_bench.unseen import daemon_that_never_saw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trims.control import Loading


#: The model many processes share: its framework starts in a fraction of a second.
SHARED = "resnet50"
_ARRIVALS = "first-arrivals.json"


class Demo:
    """One run of it.

    Args:
        daemon: That serves.
        mxnet: Interpreter of the MXNet environment, if there is one.
        repeat: Times each way is run.
        processes: That share one model in the end.
    """

    def __init__(self, daemon: DaemonProcess, mxnet: Path | None, *, repeat: int, processes: int) -> None:
        self._daemon = daemon
        self._mxnet = mxnet
        self._repeat = repeat
        self._processes = processes

    def show(self, models: Sequence[Model]) -> bool:
        """Everything; returns whether all answers were equal."""
        say("Registering: each model arrives once and becomes an image on disk.")
        done = [Compared(model, self._arrive(model)) for model in models]
        for compared in done:
            self._compare(compared)
            tables.show(compared)
        for compared in done:
            if compared.model.name == SHARED:
                self._share(compared)
        tables.summary(done)
        self._ask(done)
        return all(compared.agreement().equal for compared in done)

    def _arrive(self, model: Model) -> Arrival:
        """Register the model; the first time, its artifact is made and converted."""
        self._daemon.register(model.manifest)
        phases = _Phases()
        with loading(model.name, quiet=False) as shown:
            done = self._daemon.load(model.name, place="disk", on_progress=phases.watch(shown))
        key = self._daemon.describe(model.name).key
        arrived = Arrival(phases.seconds("resolving"), phases.seconds("queued", "filling"), done.nbytes)
        return _remembered(self._daemon.state_dir / _ARRIVALS, key, arrived, new=phases.seconds("filling") > 0)

    def _compare(self, compared: Compared) -> None:
        name = compared.model.name
        artifact = artifact_of(compared.model.manifest, self._daemon.state_dir)
        with console().status(f"{compared.model.title}: fresh processes, {self._repeat} of each kind ..."):
            for _ in range(self._repeat):
                self._run(compared, ALONE, f"alone:{artifact}")
                self._daemon.evict(name)
                self._run(compared, COLD, f"trims:{name}")
                self._run(compared, WARM, f"trims:{name}")
                self._arrive_unseen(compared, artifact)
        self._daemon.evict(name)

    def _arrive_unseen(self, compared: Compared, artifact: Path) -> None:
        """A daemon of its own that has never seen the artifact, and a manifest that asks for no copy."""
        with daemon_that_never_saw(compared.model.manifest, artifact, self._mxnet) as daemon:
            self._run(compared, UNSEEN, f"trims:{compared.model.name}", daemon.runtime_dir)

    def _run(self, compared: Compared, way: str, how: str, runtime_dir: Path | None = None) -> None:
        workload, where = compared.model.workload, runtime_dir or self._daemon.runtime_dir
        report = run(workload, how, python=self._python(compared.model), runtime_dir=where)
        compared.reports[way].append(report)

    def _python(self, model: Model) -> Path | None:
        return self._mxnet if model.workload == "vgg16" else None

    def _share(self, compared: Compared) -> None:
        model, count, place = compared.model, self._processes, self._daemon.runtime_dir
        artifact = artifact_of(model.manifest, self._daemon.state_dir)
        with console().status(f"{count} processes with {model.title}, twice ..."):
            with held(model.workload, f"alone:{artifact}", count) as workers:
                alone = [smaps.of_process(pid) for pid in workers]
            with held(model.workload, f"trims:{model.name}", count, runtime_dir=place) as workers:
                over = [smaps.of_process(pid) for pid in workers]
                segment = self._daemon.location(model.name)
                weights = [smaps.of_weights(pid, segment) for pid in workers]
        tables.memory(model.title, compared.arrival.image_bytes, alone, over, weights)

    def _ask(self, done: Sequence[Compared]) -> None:
        """Requests to an endpoint, each for a model that no process runs."""
        frameworks = ",".join(_ASKED[compared.model.workload].framework for compared in done)
        flags = ["--preload", frameworks, "--hot-spares", "0", *environment_of(self._mxnet)]
        rows = []
        with (
            console().status("Requests to the endpoint, each for a model that no process runs ..."),
            EndpointProcess(self._daemon.runtime_dir, *flags) as endpoint,
        ):
            for compared in done:
                rows.append((compared, self._requests(endpoint, compared.model)))
                self._daemon.evict(compared.model.name)
        tables.requests(rows)

    def _requests(self, endpoint: EndpointProcess, model: Model) -> list[tuple[float, float]]:
        """Seconds of requests that no predictor waited for, and what each next one computed."""
        asked = _ASKED[model.workload]
        self._daemon.load(model.name, place="cpu")
        found = []
        for turn in range(2 + self._repeat):  # the template learns first what the model needs
            began = time.perf_counter()
            endpoint.infer(model.name, asked.inputs)
            taken = time.perf_counter() - began
            answer, _ = endpoint.infer(model.name, asked.inputs, keep_alive=0)
            endpoint.await_spare(asked.framework, model.name)
            if turn >= 2:
                found.append((taken, float(answer["parameters"]["predict_s"])))
        return found


class _Asked(NamedTuple):
    """Framework and inputs of a workload's request to an endpoint."""

    framework: str
    inputs: Inputs


_ASKED = {
    "minilm": _Asked("torch", tokens("input_ids", "attention_mask")),
    "resnet50": _Asked("onnxruntime", image("image")),
    "vgg16": _Asked("mxnet", image("data")),
}


class _Phases:
    """Seconds that a load was in each of its phases."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def watch(self, shown: Callable[[Loading], None]) -> Callable[[Loading], None]:
        """Count seconds by phase from now on, and pass each report of progress on."""
        self._since = time.monotonic()

        def told(progress: Loading) -> None:
            phase = "filling" if progress.done and "filling" in self._seconds else progress.phase
            now = time.monotonic()
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
            self._since = now
            shown(progress)

        return told

    def seconds(self, *phases: str) -> float:
        """Spent in these."""
        return sum(self._seconds.get(phase, 0.0) for phase in phases)


def _remembered(file: Path, key: str, arrived: Arrival, *, new: bool) -> Arrival:
    """Write down what a first arrival took, or read what an earlier one did."""
    known = json.loads(file.read_text()) if file.exists() else {}
    if new or key not in known:
        known[key] = [arrived.made_s, arrived.converted_s]
        file.write_text(json.dumps(known))
        return arrived
    made_s, converted_s = known[key]
    return Arrival(made_s, converted_s, arrived.image_bytes, earlier=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if all went well and all answers were equal."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        return _demo(options)
    except (TrimsError, WorkerError, OSError) as error:
        note(f"the demo ends here: {error}")
        return 1
    except KeyboardInterrupt:
        note("interrupted; the daemon is ended and its memory freed")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trims_bench.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=[model.name for model in MODELS], help="only these")
    parser.add_argument("--repeat", type=int, default=3, help="times each way is run (default: 3)")
    parser.add_argument("--processes", type=int, default=8, help="that share one model in the end (default: 8)")
    parser.add_argument("--state-dir", type=Path, default=_cache(), help="keeps disk images (default: %(default)s)")
    return parser


def _demo(options: argparse.Namespace) -> int:
    began = time.monotonic()
    models = [model for model in MODELS if not options.models or model.name in options.models]
    mxnet, models = _with_mxnet(models)
    settings = {"environments": f"mxnet={mxnet}"} if mxnet else {}
    with DaemonProcess(options.state_dir, **settings) as daemon:
        demo = Demo(daemon, mxnet, repeat=options.repeat, processes=options.processes)
        equal = demo.show(models)
    left = daemon.left_behind()
    say(f"\nLeft behind: {', '.join(left) or 'no process, no shared memory, no socket'}.")
    say(f"Disk images for the next demo are in {options.state_dir}; `rm -r` it if there is to be none.")
    say(f"Done in {time.monotonic() - began:.0f} s.")
    return 0 if equal and not left else 1


def _with_mxnet(models: list[Model]) -> tuple[Path | None, list[Model]]:
    """The MXNet environment; without it, only the models that do without it, and a line that says why."""
    if not any(model.workload == "vgg16" for model in models):
        return None, models
    try:
        return mxnet_python(), models
    except MxnetMissingError as missing:
        say(f"The MXNet part is left out: {missing}.")
        return None, [model for model in models if model.workload != "vgg16"]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trims-demo"


def _leave(number: int, _frame: object) -> NoReturn:
    """End as Ctrl-C would, cleaning up."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
