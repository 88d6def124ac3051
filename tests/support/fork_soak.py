"""Thousands of forks from one template: each child proves that it lives, and none leaves anything behind.

    python tests/support/fork_soak.py --forks 100000 --framework torch

A child connects to the daemon, runs its framework with two threads (a child of a template that was forked at the wrong
moment hangs there), opens a model, answers one request, and ends. Compared are, before and after: the template's
memory, descriptors, threads and children, and the endpoint's side: memory, descriptors, threads, tasks, and its records
of templates and predictors.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from trims_predictors.children.launcher import Environment, Launcher
from trims_predictors.deployment.cpu_shares import processors
from trims_predictors.deployment.deployment import Deployment, load_message
from trims_predictors.tensors import from_array, to_array
from trims_predictors.warm.warm_pool import WarmPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trims_predictors.children.template_process import Template

_SUPPORT = str(Path(__file__).parent)
#: Seconds that a child may take for one thing; one that takes longer hangs.
_HANG_S = 60.0
#: Memory that all forks together may add. 100,000 leaks of the smallest object of Python would be more.
GROWTH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """Resources that a process holds. `children` are those that live or were not buried."""

    descriptors: int
    threads: int
    children: int
    memory_bytes: int

    @classmethod
    def of(cls, pid: int) -> Held:
        """Return the resources that the kernel says a process holds."""
        folder = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        children = sum(len((task / "children").read_text().split()) for task in (folder / "task").iterdir())
        return cls(
            descriptors=len(list((folder / "fd").iterdir())),
            threads=len(list((folder / "task").iterdir())),
            children=children,
            memory_bytes=int(status["RssAnon"].split()[0]) << 10,
        )


@dataclass(frozen=True, slots=True)
class Look:
    """Resources at one moment without predictors.

    Attributes:
        template: Its process.
        endpoint: This process.
        records: Entries of tables of templates and predictors, and asyncio's tasks.
    """

    template: Held
    endpoint: Held
    records: dict[str, int]

    def told(self) -> str:
        """Return the figures on one line."""
        sides = (("template", self.template), ("endpoint", self.endpoint))
        return "; ".join(
            f"{name}: {held.memory_bytes / (1 << 20):.1f} MiB, {held.descriptors} descriptors, {held.threads} threads, "
            f"{held.children} children"
            for name, held in sides
        )


class Soak:
    """Forks from one template of a warm pool.

    Args:
        warm pool: It has one template.
        deployment: Of a model with the weight `factor` 2.
    """

    def __init__(self, warm_pool: WarmPool, deployment: Deployment) -> None:
        self._warm_pool = warm_pool
        self._deployment = deployment
        self.forks = 0

    async def run(self, forks: int, at_once: int = 2) -> None:
        """Fork so many times, some at once. Raises what a child does wrong, DeadlineError if one hangs."""
        until = self.forks + forks

        async def some() -> None:
            while self.forks < until:
                self.forks += 1
                await self._one(self.forks)

        await asyncio.gather(*(some() for _ in range(at_once)))

    async def _one(self, number: int) -> None:
        environment = self._deployment.environment
        child = await self._warm_pool.take(environment)
        assert child.how == "forked", f"fork {number} was {child.how}"
        modules = environment.modules()
        prepare = {"op": "prepare", "modules": modules, "import": False, "threads": 2, "pages": []}
        await child.ask(prepare, deadline_s=_HANG_S)
        await child.ask(load_message(self._deployment), deadline_s=_HANG_S)
        answer = await child.ask({"op": "predict"}, deadline_s=_HANG_S, tensors=[from_array("x", np.array([number]))])
        (doubled,) = answer["outputs"]
        assert to_array(doubled).tolist() == [2 * number]
        ended = await child.end()
        assert ended == "it exited with status 0", f"fork {number}: {ended}"

    def template(self) -> Template:
        """The one that there is."""
        ((_, template),) = self._warm_pool._inventory.made
        return template

    async def look(self) -> Look:
        """Return what there is now; wait for the last words of the last children."""
        template = self.template()
        for _ in range(1000):
            if not template.predictors and not self._warm_pool._living:
                break
            await asyncio.sleep(0.01)
        gc.collect()
        records = {
            "statuses": len(template._statuses),
            "living": len(template._living),
            "answers": len(template._answers),
            "processes": len(self._warm_pool._living),
            "made": len(self._warm_pool._inventory.made),
            "tasks of the warm pool": len(self._warm_pool._background),
            "tasks": len(asyncio.all_tasks()),
            "environments": len(self._warm_pool._inventory._used_s),
            "counted": len(self._warm_pool._reclaimer.counted),
        }
        return Look(Held.of(template.pid), Held.of(os.getpid()), records)


def grown(before: Look, after: Look, most_bytes: int = GROWTH_BYTES) -> list[str]:
    """Return in words what has grown; nothing if all is as it was."""
    records = [
        f"{name}: {count} were {before.records[name]}"
        for name, count in after.records.items()
        if count > before.records[name]
    ]
    template = _grown("template", before.template, after.template, most_bytes)
    return records + template + _grown("endpoint", before.endpoint, after.endpoint, most_bytes)


def _grown(name: str, before: Held, after: Held, most_bytes: int) -> list[str]:
    counts = {what: (getattr(before, what), getattr(after, what)) for what in ("descriptors", "threads", "children")}
    found = [f"{what} of the {name}: {now} were {was}" for what, (was, now) in counts.items() if now > was]
    if after.memory_bytes > before.memory_bytes + most_bytes:
        found.append(f"memory of the {name}: {after.memory_bytes} bytes were {before.memory_bytes}")
    return found


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def deployment_of(framework: str, model: str) -> Deployment:
    """Return the deployment of a model that `own_predictors:Scaler` runs, in any environment."""
    return Deployment(
        "soak", model, "1.0.0", "own_predictors:Scaler", Environment(framework), origin=_SUPPORT,
        threads=processors(),
    )  # fmt: skip


@contextlib.contextmanager
def _daemon(folder: Path) -> Iterator[Path]:
    """A daemon of its own, with the model: the folder of its sockets."""
    from trims.control import admin
    from trims.core.errors import DaemonAwayError

    runtime_dir = folder / "run"
    command = [sys.executable, "-m", "trims.cli.main", "--runtime-dir", str(runtime_dir), "serve", "--endpoint", "no"]
    command += ["--state-dir", str(folder / "state"), "--gpus", "none", "--cpu-capacity", "64MiB"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "TRIMS_VERIFY": "0"})
    try:
        np.savez(folder / "model.npz", factor=np.array(2.0))
        with admin(runtime_dir) as control:
            for _ in range(600):
                with contextlib.suppress(DaemonAwayError):
                    control.status()
                    break
                time.sleep(0.1)
            control.add({"name": "soak", "artifact": {"path": str(folder / "model.npz")}}, replace=True, lazy=False)
        yield runtime_dir
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def _soak(runtime_dir: Path, forks: int, framework: str, at_once: int, seconds: float) -> int:
    launcher = Launcher(str(runtime_dir))
    warm_pool = WarmPool(launcher, spares=0, threads=2, busy=lambda: False)
    soak = Soak(warm_pool, deployment_of(framework, "soak"))
    try:
        await soak.run(min(200, forks), at_once)  # until caches are full
        before, began_s = await soak.look(), time.monotonic()
        _say(f"{soak.forks} forks; {before.told()}")
        while soak.forks < forks and time.monotonic() - began_s < seconds:
            await soak.run(min(2000, forks - soak.forks), at_once)
            after = await soak.look()
            rate = (soak.forks - 200) / (time.monotonic() - began_s)
            _say(f"{soak.forks} forks, {rate:.0f} a second; {after.told()}")
            if found := grown(before, after):
                _say("something grows: " + "; ".join(found))
                return 1
        _say(f"{soak.forks} forks from one template of {framework}: none hung, nothing grew")
        return 0
    finally:
        await warm_pool.close()
        launcher.close()


def main() -> int:
    """Fork as often as the arguments say; exit status 1 if something grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--forks", type=int, default=100_000)
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end earlier, after about so long")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or its daemon would stay
    with tempfile.TemporaryDirectory(prefix="trims-soak-") as folder, _daemon(Path(folder)) as runtime_dir:
        return asyncio.run(_soak(runtime_dir, options.forks, options.framework, options.at_once, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
