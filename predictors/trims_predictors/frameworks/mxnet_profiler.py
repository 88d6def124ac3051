"""MXNet's profiler around one run. Its clock counts microseconds since 1970.

MXNet puts the operators of an executor together and measures them as one, unless something watches each of them. So a
traced request has an executor of its own, over the same arrays, which is watched and has run once before. What runs
without an executor is profiled as it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import mxnet

from trims.trace.levels import Level
from trims_predictors.frameworks.mxnet_profile import Node, nodes_of, profile_of
from trims_predictors.frameworks.profiling import offset_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from trims_predictors.api import Arrays
    from trims_predictors.frameworks.profile_event import Profile


class _Host(Protocol):
    """The predictor."""

    def watched_executor(self, watch: Callable[[Any, Any], None], inputs: Arrays) -> Any:
        """Return an executor like its own for such inputs that calls `watch` after each operator."""

    def exchange_executor(self, executor: Any) -> Any:
        """Run with another executor from now on; return the one before."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Run."""


class MxnetProfiler:
    """See `Profiler`.

    Args:
        host: Predictor whose executor runs; None if there may be none.
    """

    def __init__(self, host: _Host | None = None) -> None:
        self._host = host
        self._before: Any = None
        self._nodes: dict[str, Node] = {}
        #: Names of outputs, in the order in which they were made.
        self._made: list[str] = []
        self._fd = -1
        self._offset_ns = 0

    def start(self, level: Level, inputs: Arrays) -> None:
        """See `Profiler`. Calls of MXNet's C interface are recorded from the level `library` on."""
        if self._host is not None:
            executor = self._host.watched_executor(self._watch, inputs)
            self._before = self._host.exchange_executor(executor)
            self._nodes = {each.name: each for each in nodes_of(executor.get_optimized_symbol().tojson())}
            self._host.predict(inputs)
        self._made.clear()
        self._fd = os.memfd_create("trims-profile", os.MFD_CLOEXEC)
        mxnet.profiler.set_config(
            profile_symbolic=True, profile_imperative=True, profile_api=level >= Level.LIBRARY, profile_memory=False,
            aggregate_stats=False, continuous_dump=False, filename=f"/proc/self/fd/{self._fd}",
        )  # fmt: skip
        self._offset_ns = offset_ns()
        mxnet.profiler.set_state("run")

    def stop(self) -> Profile:
        """See `Profiler`."""
        try:
            mxnet.nd.waitall()
            mxnet.profiler.set_state("stop")
            mxnet.profiler.dump(finished=False)
            moved = abs(offset_ns() - self._offset_ns)
            with open(self._fd, "rb", closefd=False) as file:
                file.seek(0)
                text = file.read().decode(errors="replace")
        finally:
            self.abandon()
        return profile_of(text, self._ran(), self._offset_ns, clock_error_ns=moved)

    def abandon(self) -> None:
        """See `Profiler`."""
        before, self._before = self._before, None
        if before is not None and self._host is not None:
            self._host.exchange_executor(before)
        if self._fd >= 0:
            mxnet.profiler.set_state("stop")
            os.close(self._fd)
            self._fd = -1

    def _watch(self, name: Any, array: Any) -> None:
        del array
        self._made.append(name.decode() if isinstance(name, bytes) else str(name))

    def _ran(self) -> list[Node]:
        """Return the nodes that ran, in order: each has made outputs of its name, one after the other."""
        found: list[Node] = []
        for output in self._made:
            node = self._node_of(output)
            if node is not None and (not found or found[-1] is not node):
                found.append(node)
        return found

    def _node_of(self, output: str) -> Node | None:
        """Return the node of an output: they are named by it, with an ending."""
        name = output
        while name not in self._nodes:
            name, found, _ = name.rpartition("_")
            if not found:
                return None
        return self._nodes[name]
