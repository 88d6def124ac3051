"""Backend tests of the package onnx: models, inputs and the outputs that they must have.

What ONNX Runtime passes alone must be passed over shared weights too, from the model's own file and converted.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402
from onnx.backend.test.runner import Runner  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"


@dataclass(frozen=True, slots=True)
class Case:
    """Test of a backend: `given` has inputs and outputs of each run; None for a model of onnx's `light` ones."""

    name: str
    model: Any
    given: list[tuple[list[Any], list[Any]]] | None
    rtol: float
    atol: float

    def runs(self, session: Any) -> list[tuple[dict[str, Any], list[Any]]]:
        """Return what to feed a session that serves the model alone, and what it must answer."""
        names = [each.name for each in session.get_inputs()]
        if self.given is not None:
            return [
                ({name: each for name, each in zip(names, inputs, strict=False) if each is not None}, outputs)
                for inputs, outputs in self.given
            ]
        random = np.random.default_rng(0)
        feeds = {each.name: random.random(each.shape, np.float32) for each in session.get_inputs()}
        return [(feeds, session.run(None, feeds))]

    def check(self, session: Any, runs: list[tuple[dict[str, Any], list[Any]]]) -> None:
        """Raise AssertionError, or ONNX Runtime's error, unless a session answers as it must."""
        for feeds, wanted in runs:
            Runner.assert_similar_outputs(wanted, session.run(None, feeds), self.rtol, self.atol)


def cases(kinds: tuple[str, ...] = KINDS) -> Iterator[Case]:
    """Yield the cases whose inputs can be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the overflows that onnx's own tests make
        listed = [each for kind in kinds for each in load_model_tests(kind=kind)]
    for each in listed:
        model = each.model if each.model is not None else onnx.load(_path(each))
        if each.data_sets is None and each.model_dir is None:
            given = None
        elif each.model_dir is None:
            given = [(list(map(_array, inputs)), list(map(_array, outputs))) for inputs, outputs in each.data_sets]
        else:
            sets = sorted(Path(each.model_dir).glob("test_data_set*"))
            given = [
                (_values(path, "input", model.graph.input), _values(path, "output", model.graph.output))
                for path in sets
            ]
        yield Case(each.name, model, given, each.rtol, each.atol)


def _array(value: Any) -> Any:
    """Return a value of a test as ONNX Runtime takes it: some are numbers, and some protobufs."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def alone(main: Path) -> Any:
    """Return a session of ONNX Runtime alone, as sessions over shared weights compute: they pack no weights."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(main, options, providers=["CPUExecutionProvider"])


def _path(case: Any) -> Path:
    return _DATA / "light" / Path(case.url).name if case.model_dir is None else Path(case.model_dir, "model.onnx")


def _values(folder: Path, kind: str, declared: Any) -> list[Any]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(re.findall(r"\d+", path.name)[0]))
    return [_value(path.read_bytes(), each) for path, each in zip(files, declared, strict=False)]


def _value(data: bytes, declared: Any) -> Any:
    kind = declared.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
