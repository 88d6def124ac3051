"""`make demo`: one program as it is, by `trims exec`, and as a request to the endpoint; then processes with one copy.

Every number is the median of fresh starts. Leaves nothing behind but disk images in the cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from trims.cli.output import console, note, say, table
from trims.core.errors import TrimsError
from trims.core.units import format_bytes, format_seconds
from trims_bench import smaps
from trims_bench.child import ChildError, end_by_signals
from trims_bench.daemon import DaemonProcess
from trims_bench.endpoint import EndpointError, EndpointProcess
from trims_bench.evaluation.stack import stack
from trims_bench.holding import held
from trims_bench.models import ONNX, artifact_of, manifest, published
from trims_bench.scenarios.programs import Programs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The model that many processes share, and the one that a program starts.
_SHARED = manifest("resnet50", "resnet50", ONNX)
_NAME, _TEXT = "minilm", "weights that stay"
#: A program that knows nothing of trims.
_PROGRAM = """\
import sys

import torch
from transformers import AutoModel, AutoTokenizer

folder, text = sys.argv[1:]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
with torch.inference_mode():
    hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
embedding = torch.nn.functional.normalize(hidden.mean(1))[0]
print(*(f"{value:.3f}" for value in embedding.tolist()))
"""
#: Differences of two answers that are rounding: what three decimals leave.
_ROUNDING = 2e-3


class Demo:
    """One run of it.

    Attributes:
        figures: Seconds of each way to a first answer, and bytes of the processes' memory.
    """

    def __init__(self, daemon: DaemonProcess, folder: Path, *, repeat: int, processes: int) -> None:
        self._daemon = daemon
        self._programs = Programs(folder, daemon.runtime_dir)
        self._words = [sys.executable, self._programs.write("embed.py", _PROGRAM), str(published()), _TEXT]
        self._repeat = repeat
        self._processes = processes
        self._answers: list[list[float]] = []
        self.figures: dict[str, float] = {}

    def show(self) -> bool:
        """Show everything; return whether all answers were equal."""
        say("embed.py computes the embedding of a text with transformers and all-MiniLM-L6-v2.\n")
        self._alone()
        self._exec()
        self._request()
        self._share()
        first, *others = self._answers
        same = all(abs(one - other) < _ROUNDING for each in others for one, other in zip(first, each, strict=True))
        say(f"All answers: {'equal but for rounding' if same else 'DIFFERENT'}.")
        return same

    def _alone(self) -> None:
        _title("1. Your program, as it is today", "python embed.py")
        self._time("alone_s", "starting it", self._programs.alone(self._words))

    def _exec(self) -> None:
        _title("2. The same program, no line changed", "trims exec -- python embed.py")
        with console().status("the first run, whose imports are remembered"):
            self._programs.learn(self._words)
        self._time("exec_s", "starting it from a template", self._programs.by_exec(self._words))

    def _request(self) -> None:
        _title("3. A request for a model that no process runs", "curl localhost:8000/v2/models/minilm/infer -d ...")
        with console().status("trims add: the model becomes an image"), self._daemon.door() as door:
            door.add(published(), name=_NAME, replace=True)
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [_TEXT]}]}
        flags = ("--preload", "transformers", "--hot-spares", "0")
        with EndpointProcess(self._daemon.runtime_dir, *flags) as endpoint:

            def ask(**parameters: object) -> str:
                url = f"http://127.0.0.1:{endpoint.port}/v2/models/{_NAME}/infer"
                data = json.dumps({**body, "parameters": parameters}).encode()
                with urllib.request.urlopen(url, data) as answer:
                    found: dict[str, Any] = json.load(answer)
                (output,) = (each["data"] for each in found["outputs"] if each["name"] == "embedding")
                return " ".join(map(str, output))

            def end_process() -> None:
                ask(keep_alive=0)
                endpoint.await_spare("transformers", _NAME)

            for _ in range(2):  # the template learns what the model needs
                ask()
                end_process()
            self._time("request_s", "asking", ask, between=end_process)

    def _share(self) -> None:
        count, daemon = self._processes, self._daemon
        _title(f"4. {count} processes with one model", "ResNet-50, ONNX Runtime")
        with console().status(f"{count} processes, by the framework alone and over trims"):
            name = daemon.register({**_SHARED, "residency": {"place": "cpu"}})
            one_copy = daemon.load(name, place="cpu").nbytes
            arrays = ("resnet50", ONNX)
            artifact = artifact_of(_SHARED, daemon.state_dir)
            with held(count, model=_SHARED, arrays=arrays, runtime_dir=daemon.runtime_dir, artifact=artifact) as pids:
                alone = smaps.total([smaps.of_process(pid) for pid in pids]).pss
            with held(count, model=_SHARED, arrays=arrays, runtime_dir=daemon.runtime_dir) as pids:
                over = smaps.total([smaps.of_process(pid) for pid in pids]).pss
                weights = smaps.total([smaps.of_weights(pid, daemon.location(name)) for pid in pids]).pss
        self.figures |= {"memory_alone_bytes": alone, "memory_shared_bytes": over}
        table(
            ("memory of all (PSS)", "by the framework alone>", "over trims>", "of it: weights>"),
            [[f"{count} processes", format_bytes(alone), format_bytes(over), format_bytes(weights)]],
        )
        say(f"The weights of all {count} take {weights / one_copy:.2f} of one copy.\n")

    def _time(
        self, name: str, what: str, run: Callable[[], str], *, between: Callable[[], None] = lambda: None
    ) -> None:
        """Run `run` several times; print the median time to its answer, and how much sooner that is than alone.

        The first run of all is not counted: it pays for files that no process has read yet, and the others would not.
        """
        taken = []
        if not self.figures:
            run()
        for turn in range(self._repeat):
            with console().status(f"{what}, {turn + 1} of {self._repeat}"):
                began = time.perf_counter()
                answer = run()
                taken.append(time.perf_counter() - began)
                between()
            self._answers.append([float(value) for value in answer.split()])
        seconds = self.figures[name] = median(taken)
        sooner = f", {self.figures['alone_s'] / seconds:.0f}x sooner" if name != "alone_s" else ""
        say(f"The first answer comes after {format_seconds(seconds)}{sooner}.\n")


def _title(text: str, what: str) -> None:
    console().rule(f"[bold]{text}", align="left", style="dim")
    say(what)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if all went well and all answers were equal."""
    options = _parser().parse_args(arguments)
    end_by_signals()
    try:
        return _demo(options)
    except (TrimsError, ChildError, EndpointError, OSError) as error:
        note(f"the demo ends here: {error}")
        return 1
    except KeyboardInterrupt:
        note("interrupted; the daemon is ended and its memory freed")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trims_bench.demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="times each start is taken (default: 3)")
    parser.add_argument("--processes", type=int, default=8, help="that share one model in the end (default: 8)")
    parser.add_argument("--state-dir", type=Path, default=_cache(), help="keeps disk images (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    return parser


def _demo(options: argparse.Namespace) -> int:
    began = time.monotonic()
    with (
        DaemonProcess(options.state_dir) as daemon,
        tempfile.TemporaryDirectory(prefix="trims-demo-") as folder,
    ):
        demo = Demo(daemon, Path(folder), repeat=options.repeat, processes=options.processes)
        equal = demo.show()
    if options.out is not None:
        record = {"stack": stack(), "processes": options.processes, "figures": demo.figures}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    left = daemon.left_behind()
    say(f"Left behind: {', '.join(left) or 'no process, no shared memory, no socket'}.")
    say(f"Disk images for the next demo are in {options.state_dir}; `rm -r` it if there is to be none.")
    say(f"Done in {time.monotonic() - began:.0f} s.")
    return 0 if equal and not left else 1


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trims-demo"


if __name__ == "__main__":
    sys.exit(main())
