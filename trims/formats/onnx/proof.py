"""Proof that a converted ONNX model can be used, and answers as the model that it was made of.

ONNX Runtime may save a graph that it refuses to load, or that asks for other inputs. So the converter makes a session
of what it has, as sessions over shared weights do, and compares it with the one that optimized the model: inputs and
outputs, and one run bit for bit. Both have optimized the same and compute in one thread.

Inputs of the run are drawn with a fixed seed. A length that the model leaves open is 3, or 1 where the model refuses 3.
There is no run, and inputs and outputs alone are compared, where an input is no tensor of numbers, bools or strings,
where the inputs take more than MOST_INPUT_BYTES, where the original refuses them or does not end in MOST_RUN_S, and
where it gives other answers the next time: such a model draws random numbers.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from trims.core.layout import DTYPE_BYTES
from trims.formats.onnx.graph import DTYPES
from trims.image.external import EXTERNAL_FOLDER, NO_FOLDER, NO_PREPACKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trims.formats.onnx.initializers import Initializer
    from trims.image.program import Program

MOST_INPUT_BYTES = 64 << 20
#: Seconds of one run.
MOST_RUN_S = 10.0
_LENGTHS = (3, 1)
_NUMBERS = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}  # fmt: skip


def why_unusable(original: Any, program: Program, weights: Mapping[str, Initializer], *, prepack: bool) -> str | None:
    """Return why a converted model must not be used in the original's place; None if it may.

    Args:
        original: The session that optimized the model.
        weights: The initializers that sessions feed, by name.
        prepack: Whether the original packs its weights: a run that does not differs in rounding.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry(EXTERNAL_FOLDER, NO_FOLDER)
    options.add_session_config_entry(NO_PREPACKING, "0" if prepack else "1")
    values = {name: _value(onnxruntime, each) for name, each in weights.items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    try:
        made = onnxruntime.InferenceSession(program.body, options, providers=["CPUExecutionProvider"])
    except errors() as error:
        return f"ONNX Runtime {onnxruntime.__version__} does not load what it saved: {_first_line(error)}"
    return _other_ends(original, made) or _other_answers(original, made)


def _value(onnxruntime: Any, given: Initializer) -> Any:
    """Return an initializer as sessions feed it, over the bytes that were saved."""
    unsigned = np.dtype(f"uint{8 * DTYPE_BYTES[DTYPES[given.data_type]]}")
    bits = np.require(np.frombuffer(given.data, unsigned), requirements="A").reshape(given.shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, given.data_type)


def _other_ends(original: Any, made: Any) -> str | None:
    """Return which inputs or outputs are not those of the original; None if all are.

    A later inference of shapes may know more, or less, of an output's lengths.
    """
    for what in ("inputs", "outputs"):
        ours, theirs = (_described(getattr(each, f"get_{what}")(), what) for each in (made, original))
        if ours != theirs:
            names = sorted({name for name, *_ in {*ours} ^ {*theirs}}) or [name for name, *_ in ours]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            return f"what ONNX Runtime saved has other {what} than the model: {', '.join(names[:5])}{more}"
    return None


def _described(values: Any, what: str) -> list[tuple[Any, ...]]:
    shapes = what == "inputs"
    return [(each.name, each.type, *(map(str, each.shape or ()) if shapes else ())) for each in values]


def _other_answers(original: Any, made: Any) -> str | None:
    """Return how the answers of one run differ; None if they are equal, or there is no run to compare."""
    feeds, wanted = _answered(original)
    if feeds is None or wanted is None:
        return None
    try:
        found = _run(made, feeds)
    except errors() as error:
        return f"what ONNX Runtime saved refuses a run that the model answers: {_first_line(error)}"
    if found is None or _alike(found, wanted) or not _is_steady(original, feeds, wanted):
        return None
    return "what ONNX Runtime saved gives other answers than the model"


def _answered(original: Any) -> tuple[dict[str, Any] | None, Any]:
    """Return inputs that the original takes, and its answers; None for either if there are none."""
    for length in _LENGTHS:
        feeds = _feeds(original, length)
        if feeds is not None:
            with contextlib.suppress(*errors()):
                return feeds, _run(original, feeds)
    return None, None


def _is_steady(original: Any, feeds: Mapping[str, Any], wanted: Any) -> bool:
    """Return whether the original repeats its answers."""
    again = _run(original, feeds)
    return again is not None and _alike(again, wanted)


def _feeds(session: Any, length: int) -> dict[str, Any] | None:
    """Return seeded inputs; None where one cannot be drawn, or all of them are too large."""
    random, found, nbytes = np.random.default_rng(0), {}, 0
    for each in session.get_inputs():
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        shape = tuple(extent if isinstance(extent, int) and extent >= 0 else length for extent in each.shape or ())
        if not each.type.startswith("tensor(") or (kind not in _NUMBERS and kind != "string"):
            return None
        nbytes += int(np.prod(shape, dtype=object)) * 8
        if nbytes > MOST_INPUT_BYTES:
            return None
        found[each.name] = _drawn(random, kind, shape)
    return found


def _drawn(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    """Return numbers of a normal distribution; zeros and ones for integers, which are often positions."""
    if kind == "string":
        return np.full(shape, "a", dtype=object)
    dtype = np.dtype(_NUMBERS[kind])
    made = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
    return np.asarray(made).astype(dtype)


def _run(session: Any, feeds: Mapping[str, Any]) -> Any:
    """Return the answers; None if the run did not end in time."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    with _ended_in_time(options) as late:
        try:
            return session.run(None, dict(feeds), options)
        except errors():
            if late.is_set():
                return None
            raise


@contextlib.contextmanager
def _ended_in_time(options: Any) -> Iterator[threading.Event]:
    late = threading.Event()

    def end() -> None:
        late.set()
        options.terminate = True

    timer = threading.Timer(MOST_RUN_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _alike(found: Any, wanted: Any) -> bool:
    """Return whether two answers are the same, bit for bit: tensors, lists, maps and what may be missing."""
    if isinstance(wanted, np.ndarray):
        if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
            return False
        return found.tolist() == wanted.tolist() if wanted.dtype == object else found.tobytes() == wanted.tobytes()
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(_alike, found, wanted))
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_alike(found[key], each) for key, each in wanted.items())
    return type(found) is type(wanted) and (not isinstance(wanted, (int, float, str)) or repr(found) == repr(wanted))


def errors() -> tuple[type[Exception], ...]:
    """Return ONNX Runtime's errors, which have no base class of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = (kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))
    return (*own, RuntimeError, ValueError)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:500] or type(error).__name__
