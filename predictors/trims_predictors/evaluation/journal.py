"""File of an evaluation: what was asked, on which stack, and every sample as it was taken, so that it can go on."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trims.core.errors import BusyError, CallerError
from trims_predictors.evaluation.evaluation import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

VERSION = 1
SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class Asked:
    """Order of an evaluation.

    Attributes:
        key: Of the model's deployment: another one means another model, manifest or code.
        began_unix_s: When it began.
        stack: Facts about machine and libraries.
    """

    id: str
    model: str
    key: str
    tiers: tuple[str, ...]
    ways: tuple[str, ...]
    repeats: int
    began_unix_s: float
    stack: Mapping[str, Any]


class Journal:
    """One evaluation's file. Only one process writes evaluations of a folder at a time: they would measure each other.

    Args:
        folder: Of all evaluations; made if it is not there.

    Raises:
        BusyError: Another evaluation is running.
    """

    def __init__(self, folder: Path) -> None:
        import fcntl

        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise BusyError(
                "another evaluation is running, and two would measure each other; wait for its end"
            ) from error
        self._file: Any = None
        self.path = folder

    def begin(self, asked: Asked) -> None:
        """Begin a new evaluation's file."""
        self.path = self._folder / f"{asked.id}{SUFFIX}"
        self._file = self.path.open("x", encoding="utf-8")
        self._write({"trims": VERSION, **asdict(asked)})

    def go_on(self, evaluation_id: str) -> tuple[Asked, list[Sample]]:
        """Go on with a file. Return what was asked and the samples that were taken. Raises CallerError for no such."""
        path = find(self._folder, evaluation_id)
        asked, samples = read(path)
        self.path, self._file = path, path.open("a", encoding="utf-8")
        self._file.write("\n")  # after a line that a killed process left half written
        return asked, samples

    def add(self, sample: Sample) -> None:
        """Keep a sample: it outlives this process."""
        self._write(asdict(sample))

    def _write(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let others evaluate."""
        if self._file is not None:
            self._file.close()
        os.close(self._lock)


def new_id() -> str:
    """Return an id for an evaluation that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def find(folder: Path, evaluation_id: str) -> Path:
    """Return the file of the evaluation whose id begins so. Raises CallerError if there is none, or several."""
    paths = [each for each in files(folder) if each.stem.startswith(evaluation_id)]
    if len(paths) != 1:
        what = f"{len(paths)} evaluations have ids" if paths else "no evaluation has an id"
        raise CallerError(f"{what} that begin with {evaluation_id!r:.80}; `trims report` lists them")
    return paths[0]


def files(folder: Path) -> Sequence[Path]:
    """Return all evaluations' files, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read(path: Path) -> tuple[Asked, list[Sample]]:
    """Return what an evaluation asked, and its samples. Raises CallerError if the file is none of this version."""
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        header = json.loads(lines[0])
        if header.pop("trims") != VERSION:
            raise ValueError("another version")
        asked = Asked(**{**header, "tiers": tuple(header["tiers"]), "ways": tuple(header["ways"])})
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CallerError(f"{path} is no evaluation of this version of trims: {error}") from error
    samples = []
    for line in lines[1:]:
        try:
            found = json.loads(line)
            samples.append(Sample(**{**found, "steady_s": tuple(found["steady_s"])}))
        except (ValueError, KeyError, TypeError):
            continue  # the process was killed while it wrote this line
    return asked, samples
