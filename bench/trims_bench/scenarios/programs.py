"""Unmodified programs by `trims exec`: the second run over the program alone and over a rival, and what it costs.

Programs know nothing of trims. A run lasts from its start to the first line that it prints; what it leaves behind has
ended before the next one begins.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from trims.cli.exec_command import list_templates
from trims_bench import smaps
from trims_bench.child import environment
from trims_bench.measuring import Bar, Comparison, Figure, Samples, faster, measure, middle, share
from trims_bench.models import MXNET, ONNX, SIDE, artifact_of, manifest, published
from trims_bench.scenarios import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trims_bench.daemon import DaemonProcess
    from trims_bench.scenarios.base import Setup

_STARTS = "the second run of an unmodified program to its first answer, over the program alone"
_COST = "what `trims exec` adds: to a program that does nothing, to one that steps aside, to a first run"
_MEMORY = "private memory of 8 programs forked from one template, each of which holds nothing of its own"
_CROWD = "a thousand programs by `trims exec`, 50 at once"
_NOTE = (
    "From the start of the command to the first line that the program prints. Alone: `python app.py`. By exec: from a "
    "template that the first run has made, with what it loads in shared memory. All sides take turns."
)
_PRIVATE = (
    "Private bytes of each program's process by /proc/PID/smaps while all run and wait for standard input. Beside it, "
    "those of the caller's process, which waits for the program's end."
)
_MINILM = """
import sys
from transformers import AutoModel, AutoTokenizer
import torch
folder = sys.argv[1]
tokens = AutoTokenizer.from_pretrained(folder)("an unmodified program", return_tensors="pt")
with torch.inference_mode():
    print(AutoModel.from_pretrained(folder)(**tokens).last_hidden_state.sum().item(), flush=True)
"""
_ORT = """
import sys
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
image = numpy.zeros((1, 3, int(sys.argv[2]), int(sys.argv[2])), numpy.float32)
print(session.run(None, {session.get_inputs()[0].name: image})[0].sum(), flush=True)
"""
_MXNET = """
import sys
import mxnet
symbol, arguments, states = mxnet.model.load_checkpoint(sys.argv[1], 0)
shape = (1, 3, int(sys.argv[2]), int(sys.argv[2]))
module = mxnet.mod.Module(symbol, label_names=None, context=mxnet.cpu())
module.bind(for_training=False, data_shapes=[("data", shape)])
module.set_params(arguments, states)
module.forward(mxnet.io.DataBatch([mxnet.nd.zeros(shape)]), is_train=False)
print(module.get_outputs()[0].sum().asscalar(), flush=True)
"""
_HOLDS = "import sys\nimport torch, transformers\nprint('ready', flush=True)\nsys.stdin.read()\n"
_TRIMS = str(Path(sys.executable).with_name("trims"))
_PATIENCE_S = 300.0
#: Bytes of the terminal that another fork server talks through.
_CHUNK = 1 << 16


class Programs:
    """Programs in a folder, by themselves or by `trims exec`."""

    def __init__(self, folder: Path, runtime_dir: Path) -> None:
        self.folder = folder
        self.runtime_dir = runtime_dir
        self.env = {**environment(), "TRIMS_RUNTIME_DIR": str(runtime_dir)}

    def write(self, name: str, code: str) -> str:
        """Write a program; return its path."""
        (self.folder / name).write_text(code)
        return str(self.folder / name)

    def first_line(self, command: Sequence[str]) -> str:
        """Return the first line that a program prints."""
        with subprocess.Popen(
            command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None, "a pipe"
            line = process.stdout.readline()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        return line

    def alone(self, words: Sequence[str]) -> Callable[[], str]:
        """Return a run of the command itself."""
        return lambda: self.first_line(words)

    def by_exec(self, words: Sequence[str], *options: str) -> Callable[[], str]:
        """Return a run of the command by `trims exec`."""
        return lambda: self.first_line([_TRIMS, "exec", "--least-saving", "0", *options, "--", *words])

    def await_template(self) -> None:
        """Wait until the templates that are being made are ready."""
        until_s = time.monotonic() + _PATIENCE_S
        while any(each["state"] != "ready" for each in list_templates(str(self.runtime_dir))):
            if time.monotonic() > until_s:
                raise TimeoutError("a template is not ready")
            time.sleep(0.02)

    def learn(self, words: Sequence[str]) -> None:
        """Run a command once by `trims exec`, and wait for its template."""
        self.by_exec(words)()
        self.await_template()

    def bring(self, words: Sequence[str]) -> None:
        """Run a command by `trims exec` until the files that its loaders read lie in shared memory."""
        command, until_s = (
            [_TRIMS, "exec", "--least-saving", "0", "--why", "--", *words],
            time.monotonic() + _PATIENCE_S,
        )
        while True:
            done = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, check=True)
            if "not in shared memory yet" not in done.stderr:
                return
            if time.monotonic() > until_s:
                raise TimeoutError(f"a file does not come to shared memory: {done.stderr}")

    def forget(self) -> None:
        """Have the daemon forget all templates."""
        subprocess.run([_TRIMS, "exec", "--forget"], env=self.env, check=True, stdout=subprocess.DEVNULL)


class _Preloaded:
    """Fork server of python-preloaded, which needs a terminal and never returns an exit status.

    Args:
        folder: Where its start script is written; the server listens beside it.
    """

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self._script = folder / "preloaded.bin"
        code = "from preloaded.startup import startup_via_fork_server\n"
        self._script.write_text(
            f"{code}if __name__ == '__main__':\n    startup_via_fork_server(modules={list(modules)!r})\n"
        )

    def run(self, words: Sequence[str], env: dict[str, str]) -> str:
        """Return the first line behind its own that a program prints."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, str(self._script), *words], env)
        text, until_s = "", time.monotonic() + _PATIENCE_S
        try:
            while True:
                if not select.select([terminal], [], [], max(0.0, until_s - time.monotonic()))[0]:
                    raise TimeoutError(f"python-preloaded does not answer: {text[-500:]}")
                text += os.read(terminal, _CHUNK).decode(errors="replace")
                for line in text.splitlines(keepends=True):
                    if line.endswith("\n") and _is_number(line):
                        return line.strip() + "\n"
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)

    def end(self) -> None:
        """Kill the server."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if str(self._script).encode() in (entry / "cmdline").read_bytes():
                        os.kill(int(entry.name), signal.SIGKILL)
                except OSError:
                    continue


def _is_number(line: str) -> bool:
    try:
        float(line)
    except ValueError:
        return False
    return True


def _artifact(daemon: DaemonProcess, setup: Setup, name: str, architecture: str, framework: str) -> Path:
    """Return the path of a model's file, which the daemon builds."""
    raw = manifest(name, architecture, framework, small=setup.quick)
    registered = daemon.register(raw)
    daemon.load(registered, place="cpu")
    daemon.evict(registered)
    return artifact_of(raw, setup.state_dir)


def _examples(setup: Setup, programs: Programs, daemon: DaemonProcess) -> Iterator[tuple[str, list[str], Bar]]:
    """Return the name, the command, and the bar of each program that can run here."""
    yield (
        "MiniLM, transformers",
        [sys.executable, programs.write("minilm.py", _MINILM), str(published())],
        Bar(">=", 18.0),
    )
    onnx = _artifact(daemon, setup, "exec-onnx", "resnet50", ONNX)
    yield (
        "ResNet-50, ONNX Runtime",
        [sys.executable, programs.write("ort.py", _ORT), str(onnx), str(SIDE)],
        Bar(">=", 4.0),
    )
    if setup.has_mxnet:
        symbol = _artifact(daemon, setup, "exec-mxnet", "vgg16-mxnet", MXNET)
        prefix = str(symbol).removesuffix("-symbol.json")
        yield "VGG-16, MXNet", [str(setup.mxnet), programs.write("mx.py", _MXNET), prefix, str(SIDE)], Bar(">=", 8.0)


def starts(setup: Setup) -> Figure:
    """Measure each program alone, by `trims exec`, and by python-preloaded where that runs."""
    figure = Figure("programs", _STARTS, [], [_NOTE])
    with setup.scratch() as folder, setup.daemon() as daemon:
        programs = Programs(folder, daemon.runtime_dir)
        rival = _rival(folder)
        for title, words, bar in _examples(setup, programs, daemon):
            programs.learn(words)
            programs.bring(words)
            programs.await_template()
            ways = {"by exec": programs.by_exec(words), "alone": programs.alone(words)}
            preloads = rival is not None and title.startswith("MiniLM")
            if rival is not None and preloads:
                ways["by python-preloaded"] = lambda words=words: rival.run(words[1:], programs.env)  # type: ignore[misc]
            answers: set[str] = set()
            found = measure(ways, setup.repeats(15), keep=lambda _, line, seen=answers: seen.add(line))  # type: ignore[misc]
            if len(answers) != 1:
                raise RuntimeError(f"{title}: the ways print {answers}")
            ours, alone = Samples("by exec", found["by exec"]), Samples("alone", found["alone"])
            figure.comparisons.append(faster(f"{title}, times sooner", ours, alone, bar))
            if preloads:
                theirs = Samples("by python-preloaded", found["by python-preloaded"])
                figure.comparisons.append(share(f"{title}, times a preloaded one", ours, theirs, Bar("<=", 1.1)))
        if rival is not None:
            rival.end()
    return figure


def _rival(folder: Path) -> _Preloaded | None:
    try:
        import preloaded  # noqa: F401 - whether it is there
    except ImportError:
        return None
    return _Preloaded(folder, ["numpy", "torch", "transformers", "transformers.models.bert.modeling_bert"])


def cost(setup: Setup) -> Figure:
    """Measure what a start by `trims exec` takes by itself."""
    figure = Figure("programs-cost", _COST, [], [_NOTE])
    with setup.scratch() as folder, setup.daemon() as daemon:
        programs, away = Programs(folder, daemon.runtime_dir), Programs(folder, folder / "nowhere")
        nothing = [sys.executable, "-c", "print(flush=True)"]
        programs.learn(nothing)
        found = measure({"exec": programs.by_exec(nothing), "alone": programs.alone(nothing)}, setup.repeats(50))
        sides = Samples("by exec", found["exec"]), Samples("alone", found["alone"])
        figure.comparisons.append(middle("`python -c pass` by exec", sides[0], Bar("<=", 60.0), sides[1]))
        words = [sys.executable, programs.write("minilm.py", _MINILM), str(published())]

        def settle(way: str, _: str) -> None:
            if way == "first":
                programs.await_template()
                programs.forget()

        ways = {"aside": away.by_exec(words), "first": programs.by_exec(words), "alone": programs.alone(words)}
        found = measure(ways, setup.repeats(15), keep=settle)
        alone = Samples("alone", found["alone"])
        for title, way in {"without a daemon": "aside", "the first run": "first"}.items():
            figure.comparisons.append(
                share(f"MiniLM, {title}, times alone", Samples(way, found[way]), alone, Bar("<=", 1.05))
            )
    return figure


def memory(setup: Setup) -> Figure:
    """Measure the private memory of programs that have imported torch and transformers and hold nothing."""
    figure = Figure("programs-memory", _MEMORY, [], [_PRIVATE])
    with setup.scratch() as folder, setup.daemon() as daemon:
        programs = Programs(folder, daemon.runtime_dir)
        words = [sys.executable, programs.write("holds.py", _HOLDS)]
        programs.learn(words)
        command = [_TRIMS, "exec", "--least-saving", "0", "--", *words]
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        running = [subprocess.Popen(command, env=programs.env, cwd=folder, **how) for _ in range(8)]  # type: ignore[call-overload]
        for each in running:
            assert each.stdout is not None, "a pipe"
            each.stdout.readline()
        (template,) = list_templates(str(daemon.runtime_dir))
        children = smaps.below(template["pid"])
        private = [smaps.of_process(pid).private for pid in children]
        callers = [smaps.of_process(each.pid).private for each in running]
        for each in running:
            each.communicate()
    ours = Samples("private", private, "bytes")
    most = max(private) / 1e6
    figure.comparisons.append(Comparison("most private memory of one", most, "MB", Bar("<=", 15.0), (ours,)))
    caller = Samples("the caller's process", callers, "bytes")
    figure.comparisons.append(Comparison("private memory of a caller", caller.median / 1e6, "MB", None, (caller,)))
    return figure


def crowd(setup: Setup) -> Figure:
    """Start a thousand programs, 50 at once, and count what is left of them."""
    count, at_once = setup.size(1000, 20), setup.size(50, 5)
    figure = Figure("programs-crowd", _CROWD, [], [f"{count} programs that print one number, {at_once} at once."])
    with setup.scratch() as folder, setup.daemon() as daemon:
        programs = Programs(folder, daemon.runtime_dir)
        words = [sys.executable, programs.write("prints.py", "import json\nprint(1, flush=True)\n")]
        programs.learn(words)
        run = programs.by_exec(words)

        def timed(_: int) -> int:
            began = time.perf_counter_ns()
            if run() != "1\n":
                raise RuntimeError("a program did not print its number")
            return time.perf_counter_ns() - began

        with ThreadPoolExecutor(at_once) as threads:
            taken = list(threads.map(timed, range(count)))
        (template,) = list_templates(str(daemon.runtime_dir))
        left = smaps.below(template["pid"])
    figure.comparisons.append(middle("one of them", Samples("from start to end", taken), None))
    counted = Samples("processes", [len(left)], "processes")
    figure.comparisons.append(
        Comparison("processes that are left, zombies included", len(left), "", Bar("<=", 0), (counted,))
    )
    forked = Samples("programs", [template["starts"]], "programs")
    figure.comparisons.append(
        Comparison("started from the template", template["starts"], "", Bar(">=", count), (forked,))
    )
    return figure


PARTS = {
    "programs": Part(_STARTS, starts),
    "programs-cost": Part(_COST, cost),
    "programs-memory": Part(_MEMORY, memory),
    "programs-crowd": Part(_CROWD, crowd),
}
