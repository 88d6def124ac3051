"""`make demo`: three real models, each started by its framework alone, and over trims: never seen, on disk, in memory.

Every number is of a fresh process, by `trims.evaluate`: the starts take turns, each begins from a state that was
verified, and medians are shown. Then processes share one model, and an endpoint answers for models that no process
runs. Leaves nothing behind but disk images and the evaluations in the cache folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NoReturn

from trims.cli.output import console, loading, note, say, table
from trims.core.errors import TrimsError
from trims.core.units import format_bytes, format_seconds
from trims_bench import smaps
from trims_bench.child import ChildError
from trims_bench.daemon import DaemonProcess
from trims_bench.endpoint import EndpointProcess, as_inputs, environment_of
from trims_bench.holding import first_answer_ns, held
from trims_bench.models import MXNET, SHIPPED, Shipped, artifact_of, inputs
from trims_bench.repository import MxnetMissingError, mxnet_python
from trims_bench.scenarios.starts import ready_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trims_bench.evaluation.records import Sample
    from trims_bench.evaluation.report.rows import Row

#: The model many processes share: its framework starts in a fraction of a second.
SHARED = "resnet50"
_TIERS, _WAYS = ("file", "disk", "cpu"), ("alone", "fresh")
_TITLES = {
    ("file", "alone"): "framework alone, its file not in memory",
    ("cpu", "alone"): "framework alone, its file in memory",
    ("file", "fresh"): "trims, its image to be made from the file",
    ("disk", "fresh"): "trims, on disk",
    ("cpu", "fresh"): "trims, in memory",
}


class Demo:
    """One run of it.

    Args:
        mxnet: Interpreter of the MXNet environment, if there is one.
        repeat: Times each start is taken.
        processes: That share one model in the end.
    """

    def __init__(self, daemon: DaemonProcess, mxnet: Path | None, *, repeat: int, processes: int) -> None:
        self._daemon = daemon
        self._mxnet = mxnet
        self._repeat = repeat
        self._processes = processes
        self._alone_s: dict[str, float] = {}

    def show(self, models: Sequence[Shipped]) -> bool:
        """Everything; returns whether all answers were equal."""
        say("Registering: each model arrives once and becomes an image on disk.")
        for model in models:
            self._arrive(model)
        equal = [self._start(model) for model in models]
        for model in models:
            if model.name == SHARED:
                self._share(model)
        if models:
            self._ask(models)
        return all(equal)

    def _arrive(self, model: Shipped) -> None:
        """Register the model; the first time, its artifact is made and converted."""
        self._daemon.register(model.raw(place="cpu"))
        began = time.monotonic()
        with loading(model.name, quiet=False) as shown:
            done = self._daemon.load(model.name, place="disk", on_progress=shown)
        taken = format_seconds(time.monotonic() - began)
        say(f"{model.title}: an image of {format_bytes(done.nbytes)} is on disk after {taken}.")

    def _start(self, model: Shipped) -> bool:
        """Evaluate starts; returns whether every answer was the same as the framework's own."""
        import trims
        from trims_bench.evaluation.report.rows import rows

        log = self._daemon.state_dir / "frameworks.log"
        with console().status(f"{model.title}: starts ...") as status, _standard_error_to(log):

            def progress(done: int, total: int, sample: Sample) -> None:
                status.update(f"{model.title}: start {done} of {total}, {sample.tier} {sample.way} ...")

            evaluated = trims.evaluate(
                model.name, inputs(model.architecture, model.framework), tiers=_TIERS, ways=_WAYS,
                repeats=self._repeat, runtime_dir=str(self._daemon.runtime_dir),
                environments=self._environments(), progress=progress,
            )  # fmt: skip
        self._daemon.evict(model.name)
        found = rows(evaluated.samples)
        _show(model, found, self._unseen_s(model))
        for row in found:
            if (row.tier, row.way) == ("cpu", "alone"):
                self._alone_s[model.name] = row.seconds.value
        lost = [each for each in evaluated.samples if each.why_not]
        for each in lost:
            say(f"Not counted: {each.tier} {each.way}: {each.why_not}.")
        same = not any("answer" in each.why_not for each in lost) and not evaluated.unreachable
        say(f"Answers: {'equal but for rounding' if same else 'DIFFERENT, or not all there'}.\n")
        return same

    def _unseen_s(self, model: Shipped) -> float:
        """Median seconds of first answers, each at a daemon of its own that has never seen the model."""
        artifact = artifact_of(model.manifest, self._daemon.state_dir)
        with console().status(f"{model.title}: at daemons that have never seen it ..."):
            taken = [first_answer_ns(model, artifact, self._environments(), alone=False) for _ in range(self._repeat)]
        return median(taken) / 1e9

    def _environments(self) -> dict[str, Path]:
        return {} if self._mxnet is None else {MXNET: self._mxnet}

    def _share(self, model: Shipped) -> None:
        count, daemon = self._processes, self._daemon
        one_copy = daemon.load(model.name, place="cpu").nbytes
        raw = {"name": model.name, "artifact": {"format": "onnx", "options": {}}}
        artifact = artifact_of(model.manifest, daemon.state_dir)
        arrays = (model.architecture, model.framework)
        with console().status(f"{count} processes with {model.title}, twice ..."):
            with held(count, model=raw, arrays=arrays, runtime_dir=daemon.runtime_dir, artifact=artifact) as pids:
                alone = [smaps.of_process(pid) for pid in pids]
            with held(count, model=raw, arrays=arrays, runtime_dir=daemon.runtime_dir) as pids:
                over = [smaps.of_process(pid) for pid in pids]
                weights = [smaps.of_weights(pid, daemon.location(model.name)) for pid in pids]
        daemon.evict(model.name)
        _title(f"{count} processes, one model: {model.title}")
        rows = [
            [f"process {number}", *(format_bytes(each.pss) for each in row)]
            for number, row in enumerate(zip(alone, over, weights, strict=True), start=1)
        ]
        sums = [smaps.total(column) for column in (alone, over, weights)]
        rows.append(["sum", *(format_bytes(each.pss) for each in sums)])
        table(("proportional memory (PSS)", "framework alone>", "over trims>", "of it: shared weights>"), rows)
        say(
            f"The weights of all {count} together take {sums[2].pss / one_copy:.3f} of one copy "
            f"({format_bytes(one_copy)}); {format_bytes(sums[2].written)} of them were copied by writing.\n"
        )

    def _ask(self, models: Sequence[Shipped]) -> None:
        """Requests to an endpoint, each for a model that no process runs."""
        flags = ["--preload", ",".join(model.framework for model in models), "--hot-spares", "0"]
        rows = []
        with (
            console().status("Requests to the endpoint, each for a model that no process runs ..."),
            EndpointProcess(self._daemon.runtime_dir, *flags, *environment_of(self._mxnet)) as endpoint,
        ):
            for model in models:
                asked, computed = self._requests(endpoint, model)
                sooner = f"{self._alone_s[model.name] / asked:.0f}x" if model.name in self._alone_s else ""
                rows.append([model.title, format_seconds(asked), format_seconds(computed), sooner])
                self._daemon.evict(model.name)
        _title("An HTTP request when no process runs the model: an isolated process answers")
        table(("model", "request>", "of it compute>", "sooner than alone>"), rows)

    def _requests(self, endpoint: EndpointProcess, model: Shipped) -> tuple[float, float]:
        """Median seconds of requests that no predictor waited for, and of what each next one computed."""
        given = as_inputs(inputs(model.architecture, model.framework))
        self._daemon.load(model.name, place="cpu")
        whole, computed = [], []
        for turn in range(2 + self._repeat):  # the template learns first what the model needs
            began = time.perf_counter()
            endpoint.infer(model.name, given)
            taken = time.perf_counter() - began
            answer, _ = endpoint.infer(model.name, given, keep_alive=0)
            endpoint.await_spare(model.framework, model.name)
            if turn >= 2:
                whole.append(taken)
                computed.append(float(answer["parameters"]["predict_s"]))
        return median(whole), median(computed)


@contextlib.contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Have what this process and those that it starts write to standard error go to a file: MXNet writes much there."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _title(text: str) -> None:
    console().rule(f"[bold]{text}", align="left", style="dim")


def _show(model: Shipped, found: Sequence[Row], unseen_s: float) -> None:
    """One model: how soon each start answers."""
    _title(model.title)
    lines = [
        [
            _TITLES[row.tier, row.way],
            format_seconds(row.seconds.value),
            format_seconds(ready_s(row.stages)),
            format_seconds(row.ideal_s),
            "" if row.way == "alone" or row.over_alone is None else f"{row.over_alone:.2f}x",
        ]
        for row in sorted(found, key=lambda row: list(_TITLES).index((row.tier, row.way)))
    ]
    alone_s = next((row.seconds.value for row in found if (row.tier, row.way) == ("cpu", "alone")), 0.0)
    lines.append(
        ["trims, at a daemon that has never seen it", format_seconds(unseen_s), "", "", f"{alone_s / unseen_s:.2f}x"]
    )
    table(("start, median", "first answer>", "of it the model>", "a later run>", "sooner than alone>"), lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if all went well and all answers were equal."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        return _demo(options)
    except (TrimsError, ChildError, OSError) as error:
        note(f"the demo ends here: {error}")
        return 1
    except KeyboardInterrupt:
        note("interrupted; the daemon is ended and its memory freed")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trims_bench.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=[model.name for model in SHIPPED], help="only these")
    parser.add_argument("--repeat", type=int, default=3, help="times each start is taken (default: 3)")
    parser.add_argument("--processes", type=int, default=8, help="that share one model in the end (default: 8)")
    parser.add_argument("--state-dir", type=Path, default=_cache(), help="keeps disk images (default: %(default)s)")
    return parser


def _demo(options: argparse.Namespace) -> int:
    began = time.monotonic()
    models = [model for model in SHIPPED if not options.models or model.name in options.models]
    mxnet, models = _with_mxnet(models)
    settings = {"environments": f"mxnet={mxnet}"} if mxnet else {}
    with DaemonProcess(options.state_dir, **settings) as daemon:
        equal = Demo(daemon, mxnet, repeat=options.repeat, processes=options.processes).show(models)
    left = daemon.left_behind()
    say(f"\nLeft behind: {', '.join(left) or 'no process, no shared memory, no socket'}.")
    say(f"Disk images for the next demo are in {options.state_dir}; `rm -r` it if there is to be none.")
    say(f"Stages of each start: trims report --database sqlite:///{options.state_dir.absolute() / 'evaluations.db'}")
    say(f"Done in {time.monotonic() - began:.0f} s.")
    return 0 if equal and not left else 1


def _with_mxnet(models: list[Shipped]) -> tuple[Path | None, list[Shipped]]:
    """The MXNet environment; without it, only the models that do without it, and a line that says why."""
    if not any(model.framework == MXNET for model in models):
        return None, models
    try:
        return mxnet_python(), models
    except MxnetMissingError as missing:
        say(f"The MXNet part is left out: {missing}.")
        return None, [model for model in models if model.framework != MXNET]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trims-demo"


def _leave(number: int, _frame: object) -> NoReturn:
    """End as Ctrl-C would, cleaning up."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
