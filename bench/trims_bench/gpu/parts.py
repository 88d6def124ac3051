"""The parts of the check, in the order in which they decide something, and the stages that fit the clock.

A machine with a GPU is often lent for minutes. A stage takes at most nine; each one leaves its results, whatever
becomes of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trims_bench.gpu import answers, checksums, copying, frameworks, loading, resident, sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from trims_bench.gpu.rig import Rig

TESTS, EXPERIMENTS, FIGURES = "tests", "experiments", "figures"
#: Seconds of a stage: below nine minutes, with time to write and to end.
STAGE_S = 520.0


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        key: Name by which it is chosen (`--only`): the numbers and letters of the design notes.
        group: `tests`, `experiments` or `figures`.
        run: Runs in a process of its own; gives one result, or lines as they are taken. Absent for the tests.
        expected_s: An estimate, from the bytes it moves and the processes it starts. No device has confirmed it.
    """

    key: str
    title: str
    group: str
    run: Callable[[Rig], Any] | None
    expected_s: float

    @property
    def name(self) -> str:
        """Return the part's name in the file and in the printed lines."""
        return f"{self.key} {self.title}"

    @property
    def limit_s(self) -> float:
        """Return the seconds after which the part is ended: estimates may be wrong by half."""
        return 1.5 * self.expected_s + 15.0


_ALL = (
    Part("f", "the keeper itself", FIGURES, resident.keeper_itself, 20.0),
    Part("2", "exporter killed", EXPERIMENTS, sharing.exporter_killed, 15.0),
    Part("3", "open cost", EXPERIMENTS, sharing.open_cost, 50.0),
    Part("4", "write to a read-only mapping", EXPERIMENTS, sharing.write_to_read_only, 20.0),
    Part("5", "parked descriptor", EXPERIMENTS, sharing.parked_descriptor, 10.0),
    Part("9", "process-id namespaces", EXPERIMENTS, sharing.pid_namespaces, 10.0),
    Part("tests", "marked gpu", TESTS, None, 150.0),
    Part("8", "host to device", EXPERIMENTS, copying.host_to_device, 50.0),
    Part("b", "host to device", FIGURES, resident.host_to_device_rate, 40.0),
    Part("d", "predictors", FIGURES, resident.predictors_share, 40.0),
    Part("1", "interior pointer", EXPERIMENTS, sharing.interior_pointer, 20.0),
    Part("c", "disk to device", FIGURES, loading.disk_to_device, 150.0),
    Part("7", "PyTorch readers", EXPERIMENTS, frameworks.torch_readers, 60.0),
    Part("a", "open of a resident model", FIGURES, resident.open_resident, 120.0),
    Part("6", "ONNX Runtime in place", EXPERIMENTS, frameworks.onnxruntime_in_place, 60.0),
    Part("e", "PyTorch modules", FIGURES, loading.modules_ready, 330.0),
    Part("h", "checksum", FIGURES, checksums.checksums, 15.0),
    Part("g", "answers from the device", FIGURES, answers.answers, 240.0),
)
PARTS: Mapping[str, Part] = {part.key: part for part in _ALL}
#: Stages of the check. The most decisive parts come first: do sealed bytes survive a keeper's rest?
STAGES: Mapping[str, tuple[str, ...]] = {
    "sound": ("f", "2", "3", "4", "5", "9", "tests", "8", "b", "d", "1"),
    "flow": ("c", "7", "a", "6"),
    "models": ("e",),
    "answers": ("h", "g"),
    "all": tuple(PARTS),
}


def plan(stage: str, only: Iterable[str] = (), *, tests: bool = True) -> list[Part]:
    """The parts of a stage, in order; of these only those chosen, if any are."""
    chosen = set(only)
    parts = [PARTS[key] for key in STAGES[stage] if not chosen or key in chosen]
    return [part for part in parts if tests or part.group != TESTS]
