"""Backend tests of the package onnx, served from the models' own files and converted."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx_backend import KINDS, Case, alone, cases  # noqa: E402

import trims  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from trims_client import Session

    from trims.daemon.main import Daemon


pytestmark = pytest.mark.usefixtures("own_files")
#: Models of the sample: of IR 3 with equal initializers, and with graphs in their nodes.
SAMPLE = ("test_squeezenet", "test_shufflenet", "test_if", "test_loop11", "test_scan_sum")
#: How many of each kind ONNX Runtime passes alone, at least: fewer were read wrongly.
LEAST = {"node": 1200, "simple": 15, "pytorch-converted": 50, "pytorch-operator": 20, "real": 9}


@pytest.fixture
def daemon(serve: Callable[..., Daemon]) -> Daemon:
    return serve(trust="identity", cpu_capacity_bytes=2 << 30)


def passed_alone(found: Iterable[Case], folder: Path) -> Iterator[tuple[Case, Path, list[Any], list[str]]]:
    """Yield the cases that ONNX Runtime passes alone: the model's file, its runs, and the names of its inputs."""
    for number, case in enumerate(found):
        main = folder / f"{number}.onnx"
        main.write_bytes(case.model.SerializeToString())
        with contextlib.suppress(Exception):  # of its operators, types and answers
            session = alone(main)
            runs = case.runs(session)
            case.check(session, runs)
            yield case, main, runs, [each.name for each in session.get_inputs()]


def fails_at(place: str, session: Session, case: Case, main: Path, runs: list[Any], names: list[str]) -> str | None:
    """Return how a model that is passed alone fails at a place; None if it is passed."""
    try:
        with session.open_file(main, place=place) as weights:
            assert weights.place == place
            made = trims.onnxruntime.session(weights)
            assert [each.name for each in made.get_inputs()] == names
            case.check(made, runs)
    except Exception as error:
        return f"{case.name} at {place}: {type(error).__name__}: {error!s:.300}"
    return None


def check_all(found: Iterable[Case], session: Session, folder: Path) -> int:
    """Check at both places what ONNX Runtime passes alone. Return how many cases that are."""
    failures, count = [], 0
    for case, main, runs, names in passed_alone(found, folder):
        count += 1
        each = [fails_at(place, session, case, main, runs, names) for place in ("file", "cpu")]
        failures += [failure for failure in each if failure is not None]
        gc.collect()  # ONNX Runtime's sessions are in cycles, and hold the weights
    assert not failures, "\n".join(failures)
    return count


def test_a_sample_of_backend_tests_passes_in_place_and_converted(session: Session, folder: Path) -> None:
    sample = [case for case in cases(("node", "real")) if case.name in SAMPLE]
    sample += itertools.islice(cases(("pytorch-operator",)), 0, None, 12)
    assert check_all(sample, session, folder) >= len(SAMPLE)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_test_passes_in_place_and_converted(kind: str, session: Session, folder: Path) -> None:
    count = check_all(cases((kind,)), session, folder)
    sys.stderr.write(f"\n{kind}: ONNX Runtime passes {count} models, and so do file and cpu\n")
    assert count >= LEAST[kind]
