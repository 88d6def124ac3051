"""Predictors of all manners, good and bad, that tests name in manifests as `own_predictors:Class`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.errors import CallerError
from trims.manifests.serving import TensorType

if TYPE_CHECKING:
    from trims_client.weights import Weights
    from trims_predictors import Context
    from trims_predictors.api import Arrays


class Scaler:
    """Multiplies by a weight; states its inputs."""

    def load(self, weights: Weights, context: Context) -> None:
        self.factor = weights["factor"]
        self.bias = float(context.options.get("bias", 0.0))

    def predict(self, inputs: Arrays) -> Arrays:
        return {"y": inputs["x"] * self.factor + self.bias}

    def unload(self) -> None:
        del self.factor

    def inputs(self) -> list[TensorType]:
        return [TensorType("x", "FP64", (-1,))]

    def outputs(self) -> list[TensorType]:
        return [TensorType("y", "FP64", (-1,))]


class Restless(Scaler):
    """Reads its weights all the time, also before it is asked."""

    def load(self, weights: Weights, context: Context) -> None:
        super().load(weights, context)
        threading.Thread(target=self._read, args=(self.factor,), daemon=True).start()

    @staticmethod
    def _read(factor: Any) -> None:
        while True:
            time.sleep(0.02)
            float(factor)


class Echo:
    """Gives back what it gets, under the same names, and its process's number."""

    def load(self, weights: Weights, context: Context) -> None:
        del weights, context

    def predict(self, inputs: Arrays) -> Arrays:
        return {**inputs, "pid": np.array([os.getpid()])}

    def unload(self) -> None:
        pass


class Threads(Echo):
    """Returns how many threads torch computes with, once the file that it is given is there."""

    def load(self, weights: Weights, context: Context) -> None:
        import torch

        if "own" in context.options:
            torch.set_num_threads(context.options["own"])
        while not os.path.exists(context.options.get("until", "/")):
            time.sleep(0.01)

    def predict(self, inputs: Arrays) -> Arrays:
        import torch

        found = torch.get_num_threads()
        while not os.path.exists(inputs["until"].item()):
            time.sleep(0.01)
        return {"threads": np.array([found])}


class Scribbler(Echo):
    """Writes into its inputs."""

    def predict(self, inputs: Arrays) -> Arrays:
        inputs["x"][...] += 1
        return {"x": inputs["x"]}


class Rows(Echo):
    """Answers one row for each, and says how many it saw."""

    def predict(self, inputs: Arrays) -> Arrays:
        rows = len(inputs["x"])
        return {"x": inputs["x"], "rows": np.full(rows, rows), "text": np.array([b"r" * i for i in range(rows)], "O")}


class Napper(Rows):
    """Takes its time."""

    def predict(self, inputs: Arrays) -> Arrays:
        time.sleep(0.5)
        return super().predict(inputs)


class Troubled(Echo):
    """Does what the text in `do` says."""

    def predict(self, inputs: Arrays) -> Arrays:
        do = inputs["do"].item().decode()
        found: Any = getattr(self, do)()
        return {"done": np.array([0 if found is None else found])}

    def nothing(self) -> int:
        return os.getpid()

    def refuse(self) -> None:
        raise CallerError("this one cannot be answered")

    def raise_(self) -> None:
        raise ZeroDivisionError("by hand")

    def exit(self) -> None:
        raise SystemExit(3)

    def interrupt(self) -> None:
        raise KeyboardInterrupt("by hand")

    def raise_long(self) -> None:
        raise RuntimeError("E" * 50_000_000)

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self) -> None:
        os._exit(9)

    def hang(self) -> None:
        time.sleep(3600)

    def nap(self) -> None:
        time.sleep(0.5)

    def hang_deaf(self) -> None:
        """Hangs, and nothing but SIGKILL ends it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(3600)

    def fork(self) -> int:
        """Leaves a program behind."""
        return subprocess.Popen(["sleep", "3600"]).pid

    def talk(self) -> None:
        """Prints far more than is passed on, by Python and past it."""
        for number in range(20_000):
            sys.stdout.write(f"line {number} of very many\n")
        os.write(2, b"and the last one\n")

    def close_all(self) -> None:
        os.closerange(3, 256)


class Unloadable(Echo):
    """Cannot be made ready."""

    def load(self, weights: Weights, context: Context) -> None:
        raise RuntimeError("not today")


class NotAPredictor:
    """Has no methods."""


def start_thread() -> threading.Thread:
    """A thread that stays."""
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    return thread


class Slow(Echo):
    """Takes as many seconds as it is asked to, under a name that can be seen from outside."""

    def predict(self, inputs: Arrays) -> Arrays:
        if seconds := float(inputs["x"].max()):
            Path("/proc/self/comm").write_text("trims-slow")
            time.sleep(seconds)
        return super().predict(inputs)


class Picky(Echo):
    """Refuses negative numbers."""

    def predict(self, inputs: Arrays) -> Arrays:
        if (inputs["x"] < 0).any():
            raise CallerError("x is negative")
        return dict(inputs)


class Told(Echo):
    """Says how many inputs its context has."""

    def load(self, weights: Weights, context: Context) -> None:
        self.count = len(context.inputs)

    def predict(self, inputs: Arrays) -> Arrays:
        return {"count": np.array([self.count])}


class Unsendable(Echo):
    """Gives what no answer can have."""

    def predict(self, inputs: Arrays) -> Arrays:
        found: dict[str, Any] = {
            "complex": {"y": np.zeros(1, complex)},
            "objects": {"y": np.array([object()], object)},
            "masked": {"y": np.ma.masked_array([1.0], [True])},
            "surrogate": {"\ud800": np.zeros(1)},
            "number": {1: np.zeros(1)},
            "list": {"y": [1.0]},
        }
        if (do := inputs["do"].item().decode()) in ("None", "[]"):
            return {"None": None, "[]": [inputs["x"]]}[do]  # type: ignore[return-value]  # what some code does
        return {**found[do], "x": inputs["x"]}


class Prober:
    """Carries out Python code that a test sends, and returns its value, or the error that it raises."""

    def load(self, weights: Weights, context: Context) -> None:
        self.weights = weights
        del context

    def predict(self, inputs: Arrays) -> Arrays:
        code = inputs["code"][0]
        names: dict[str, Any] = {"weights": self.weights}
        try:
            exec(code if isinstance(code, str) else code.decode(), names)
            told = repr(names.get("value"))
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        return {"told": np.array([told.encode()], dtype=object)}

    def unload(self) -> None:
        del self.weights


class Held(Scaler):
    """Loads no sooner than the file beside its weights that `context.options` names is there."""

    def load(self, weights: Weights, context: Context) -> None:
        while not os.path.exists(context.options.get("until", "/")):
            time.sleep(0.005)
        super().load(weights, context)

    def predict(self, inputs: Arrays) -> Arrays:
        return {**super().predict(inputs), "pid": np.array([os.getpid()])}

    def outputs(self) -> list[TensorType]:
        return [*super().outputs(), TensorType("pid", "INT64", (1,))]


class Rehearsed(Held):
    """Returns what it rehearsed; refuses to if `context.options` says so."""

    def load(self, weights: Weights, context: Context) -> None:
        super().load(weights, context)
        self.refuses = bool(context.options.get("refuses"))
        self.rehearsed: list[float] = []

    def rehearse(self, inputs: Arrays) -> Arrays:
        if self.refuses:
            raise ValueError("zeros are no input")
        self.rehearsed = [float(sum(array.shape)) for array in inputs.values()]
        assert not any(array.any() for array in inputs.values()), "no value of a request is known here"
        return self.predict(inputs)

    def predict(self, inputs: Arrays) -> Arrays:
        return {**super().predict(inputs), "rehearsed": np.array(self.rehearsed)}

    def outputs(self) -> list[TensorType]:
        return [*super().outputs(), TensorType("rehearsed", "FP64", (-1,))]


class Packs:
    """An ONNX Runtime session that goes over to packed weights at once, and returns its stage."""

    def load(self, weights: Weights, context: Context) -> None:
        del context
        from trims_client.frameworks import onnxruntime

        self.session = onnxruntime.session(weights)

    def predict(self, inputs: Arrays) -> Arrays:
        stage = self.session.pack()
        (answer,) = self.session.run(None, inputs)
        return {"y": answer, "stage": np.array([stage.encode()], dtype=object)}

    def unload(self) -> None:
        del self.session


class Errs(Scaler):
    """Raises what the system answers to `context.options`: to writing a file, or to looking a host up."""

    def load(self, weights: Weights, context: Context) -> None:
        super().load(weights, context)
        self.options = context.options

    def predict(self, inputs: Arrays) -> Arrays:
        import socket

        if "file" in self.options:
            Path(self.options["file"]).write_text("")
        if "host" in self.options:
            socket.getaddrinfo(self.options["host"], 80)
        raise OSError(5, "Input/output error")


def fork(how: str) -> int:
    """Fork, and have the child leave as `how` says. Returns the child's process to the parent."""
    child = os.fork()
    if child == 0:
        if how == "raise":
            raise ZeroDivisionError("in a child")
        if how.startswith("exit"):
            sys.exit(int(how.removeprefix("exit")))
    return child


def fork_in_step(context: Any, data: Arrays) -> Arrays:
    """A step that forks, and waits for its child."""
    child = fork(context.options["how"])
    if child:
        os.waitpid(child, 0)
    return dict(data)


def count_in_step(context: Any, data: Arrays) -> Arrays:
    """Count its calls, in this process and in children of it."""
    with open(context.options["file"], "ab") as file:
        file.write(b"x")
        return {**data, "count": np.array([file.tell()])}


class Forks(Echo):
    """Forks where its options say; an answer has the process that gave it and the status of its child."""

    def load(self, weights: Weights, context: Context) -> None:
        self.options = context.options
        if "load" in self.options["where"]:
            fork(self.options["how"])

    def predict(self, inputs: Arrays) -> Arrays:
        answer = {"pid": np.array([os.getpid()]), "status": np.array([-1])}
        if "predict" in self.options["where"]:
            child = fork(self.options["how"])
            if child:
                answer["status"] = np.array([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])
        return answer

    def unload(self) -> None:
        if "unload" in self.options["where"]:
            fork(self.options["how"])


class Keeps(Echo):
    """Keeps what it was given first, has it written to while the next request runs, and answers both."""

    kept: Any = None

    def load(self, weights: Weights, context: Context) -> None:
        self.forks = bool(context.options["forks"])

    def predict(self, inputs: Arrays) -> Arrays:
        if self.kept is None:
            self.kept = np.array(inputs["x"]) if self.forks else inputs["x"][1:]
            if self.forks:
                self.waits, self.go = os.pipe()
                self.child = os.fork()
                if self.child == 0:
                    os.read(self.waits, 1)
                    inputs["x"][...] = -1.0
                    os._exit(0)
        else:
            found = np.array(self.kept)
            if self.forks:
                os.write(self.go, b"x")
                os.waitpid(self.child, 0)
            else:
                self.kept[...] = -1.0
            return {"x": inputs["x"], "kept": found}
        return {"x": inputs["x"]}


class Switched(Picky):
    """Does while it loads what the file `switch` says: `die`, `raise`, or `wait` until it says another thing."""

    def load(self, weights: Weights, context: Context) -> None:
        switch = Path(context.options["switch"])
        while (said := switch.read_text()) == "wait":
            time.sleep(0.02)
        if said == "die":
            os._exit(3)
        if said == "raise":
            raise RuntimeError("not today")
        super().load(weights, context)


class Alarmed(Echo):
    """Forks again and again in a handler of signals, also while nothing is asked."""

    forks = 0

    def load(self, weights: Weights, context: Context) -> None:
        self.how = context.options["how"]
        signal.signal(signal.SIGALRM, self._fork)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)

    def _fork(self, *_: object) -> None:
        child = os.fork() if self.how == "python" else ctypes.CDLL(None).fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        self.forks += 1
        if self.forks == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def predict(self, inputs: Arrays) -> Arrays:
        return {**super().predict(inputs), "forks": np.array([self.forks])}


class ManyLayers(Scaler):
    """Has a profiler of its own, which sees more than can be recorded."""

    def make_profiler(self) -> Any:
        return _ManyLayers()


class _ManyLayers:
    def start(self, level: Any, inputs: Arrays) -> None:
        """Nothing."""

    def stop(self) -> Any:
        from trims_predictors.frameworks.profile_event import LAYER, RUN, Event, Profile

        from trims.trace.levels import Level

        now_ns, level = time.monotonic_ns(), Level.FRAMEWORK
        events = tuple(Event(n, RUN, LAYER, f"layer{n}", level, now_ns + n, now_ns + n + 1) for n in range(1, 10_006))
        return Profile("own", events, Level.FRAMEWORK)

    def abandon(self) -> None:
        """Nothing."""


class Unprofiled(Scaler):
    """Has a profiler that does not start."""

    def make_profiler(self) -> Any:
        raise OSError("it is busy")
