"""ONNX models: optimized once for this host, weights and graph taken apart.

The child lets ONNX Runtime optimize the model and save the result; its initializers become the image's
tensors, the graph that is left becomes the program. A client that feeds the initializers back has a session
without optimizing, parsing weights or copying them. Covered: weights inside the file or in external data,
over 2 GiB too. Not covered: custom operator libraries; initializers of types no tensor of an image has
(strings, 4-bit numbers) stay in the program. Before the first conversion the model is served in place: the graph as
published, over initializers where they lie (`trims.formats.onnx.graph`); sessions then optimize it themselves, as these
options say. So it stays where what ONNX Runtime saved cannot be used (`trims.formats.onnx.proof`): the image then has
the graph as published, and why.

Options:
    optimize: `all` (default, also `true`): for this host's processor and this ONNX Runtime alone. `extended`: for
        this ONNX Runtime on any processor. `basic`: for this ONNX Runtime on any processor or GPU; the default where
        the manifest's `residency.place` is a GPU. `none` (`false`): the graph as published, for every host.
    prepack: Whether sessions read matrix weights in the order that the processor likes best. Default false: every
        weight is shared and a session is ready in milliseconds. Convolutions run at full speed either way; products
        with few rows do not: measured on a BERT-sized stack of layers, 2.8, 1.9, 1.4 and 1.2 times slower for 8, 32,
        128 and 512 rows. With true the session makes re-ordered copies in private memory, which takes most of the
        framework's own time and memory. With `shared` the copies are kept in the image: it takes up to twice the
        bytes, once for all processes; a session is ready as soon, and runs at full speed shortly after its first
        answer.
    threads: Threads of one session's operators; 0 (default) leaves it to ONNX Runtime.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trims.core.errors import ArtifactError, ConversionError, NotInPlaceError
from trims.core.layout import DTYPE_BYTES, element_count
from trims.core.units import format_bytes
from trims.formats.base import check_options
from trims.formats.onnx.external_data import external_locations, look_at_external
from trims.formats.onnx.graph import DTYPES, FED_LOCATION, INLINE_BELOW_BYTES, read_graph
from trims.formats.onnx.initializers import Initializer, Saved
from trims.formats.onnx.packed import PackedWeights
from trims.formats.onnx.signature import read_signature
from trims.image.external import NO_PREPACKING
from trims.image.host import cpu_features
from trims.image.plan import Contents, ImagePlan, SourceTensor, plan_image
from trims.image.program import ONNX_ORIGINAL, WHY, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trims.formats.base import Artifact
    from trims.manifests.serving import Signature

#: On a GPU, integers are mostly read on the host (shapes, positions), where they cannot be fed from the device. In
#: programs that may run there, these stay in the program too.
INLINE_INTEGERS_BELOW_BYTES = 64 << 10
_INTEGERS = (6, 7, 9)
_ON_DEVICES = ("basic", "none")
PROGRAM_KIND = "onnxruntime"
SHARED = "shared"
#: No file that a session might read by itself, in the attributes of an `onnx-original` program.
_NO_FILE: Mapping[str, Any] = {"path": "", "known": []}
_NO_EXTERNAL: Mapping[str, Any] = {"folder": "", "names": [], "files": {}}
#: Largest model that becomes a program with all its weights: a protobuf has no more.
MOST_WHOLE_BYTES = (2 << 30) - 1
_SCRATCH_WEIGHTS = "weights"
_log = logging.getLogger(__name__)
_LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}


class OnnxConverter:
    """See the module."""

    format: ClassVar[str] = "onnx"
    version: ClassVar[int] = 3
    host_specific: ClassVar[bool] = True
    device_options: ClassVar[Mapping[str, Any]] = {"optimize": "basic"}

    def needs_child(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return True: ONNX Runtime reads the file."""
        return True

    def frameworks(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return ONNX Runtime, which optimizes, and onnx, which takes the result apart."""
        return ("onnxruntime", "onnx")

    def claims(self, main: Path, first_bytes: bytes) -> bool:  # noqa: ARG002
        """Return whether the name is that of an ONNX model: a protobuf has no magic number."""
        return main.suffix.lower() == ".onnx"

    def files(self, main: Path, options: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the model and its external data files."""
        _Options.read(options, main)
        return (main, *(look_at_external(main, location).path for location in external_locations(main)))

    def plan(self, artifact: Artifact) -> ImagePlan:
        """Optimize, then lay out what came of it, or the graph as published if that cannot be used."""
        from trims.formats.onnx import proof

        main = artifact.files[0]
        options = _Options.read(artifact.options, main)
        with _scratch_folder() as folder:
            original, model, weights = _optimize(main, options, folder)
        packed = PackedWeights.read(model)
        fed = _take_initializers(model, weights, on_devices=options.optimize in _ON_DEVICES)
        _inline_rest(model, weights)
        metadata = {entry.key: entry.value for entry in model.metadata_props}
        program = _program(model, options)
        if why := proof.why_unusable(original, program, fed, prepack=options.prepack == SHARED):
            return self._as_published(artifact, why)
        del original
        sources = [
            SourceTensor(name, DTYPES[each.data_type], each.shape, _copier(each.data)) for name, each in fed.items()
        ]
        if packed.nbytes:
            return packed.plan(model, program, [*sources, packed.source(weights.data)], metadata)
        return plan_image(sources, program=program, metadata=metadata)

    def _as_published(self, artifact: Artifact, why: str) -> ImagePlan:
        """Lay out the graph as published: sessions optimize it, as at its own file."""
        main, why = artifact.files[0], f"kept as published, and each session optimizes it: {why}"
        _log.warning("%s is %s", main, why)
        try:
            found = self.contents(artifact)
        except NotInPlaceError:
            found = Contents([], _whole(main, _Options.read(artifact.options, main)))
        assert found.program is not None
        attributes = dict(found.program.attributes)
        # No file is named: sessions are fed from the image.
        attributes["fed"] = [*attributes["fed"], *attributes["external"]["names"]]
        attributes |= {"file": _NO_FILE, "external": _NO_EXTERNAL, WHY: why}
        return replace(found, program=found.program._replace(attributes=attributes)).plan()

    def signature(self, artifact: Artifact) -> Signature:
        """Return the graph's inputs and outputs."""
        return read_signature(artifact.files[0])

    def may_be_in_place(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return True: a session can optimize the graph that was not converted yet."""
        return True

    def contents(self, artifact: Artifact) -> Contents:
        """Return the model's own graph, and its dense initializers where they lie."""
        main = artifact.files[0]
        options = _Options.read(artifact.options, main)
        found = read_graph(main, lambda location: look_at_external(main, location))
        attributes = {
            **options.for_sessions(),
            "inputs": found.inputs,
            "outputs": found.outputs,
            "fed": found.fed,
            "file": {"path": os.fspath(main), "known": found.main},
            "external": {"folder": os.fspath(main.parent), "names": found.external, "files": found.files},
        }
        return Contents(found.sources, Program(ONNX_ORIGINAL, attributes, found.body), found.metadata)


@dataclass(frozen=True, slots=True)
class _Options:
    optimize: str = "all"
    prepack: bool | str = False
    threads: int = 0

    @classmethod
    def read(cls, options: Mapping[str, Any], main: Path) -> _Options:
        check_options(main, options, ("optimize", "prepack", "threads"))
        optimize = options.get("optimize", "all")
        optimize = {True: "all", False: "none"}.get(optimize, optimize) if isinstance(optimize, bool) else optimize
        found = cls(optimize, options.get("prepack", False), options.get("threads", 0))
        if found.optimize not in _LEVELS:
            raise ArtifactError(f"{main}: option optimize is one of {', '.join(_LEVELS)}, not {found.optimize!r}")
        if type(found.prepack) is not bool and found.prepack != SHARED:
            raise ArtifactError(f"{main}: option prepack is true, false or {SHARED}, not {found.prepack!r}")
        if found.prepack == SHARED and found.optimize != "all":
            raise ArtifactError(
                f"{main}: option prepack: {SHARED} is for one processor and needs optimize: all, not {found.optimize}"
            )
        if type(found.threads) is not int or not 0 <= found.threads <= 1024:
            raise ArtifactError(f"{main}: option threads is a number from 0 to 1024, not {found.threads!r}")
        return found

    def for_sessions(self) -> dict[str, Any]:
        """Return the options for the program, which sessions read."""
        return {"optimize": self.optimize, "prepack": self.prepack, "threads": self.threads}


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trims-onnx-") as folder:
        yield Path(folder)


def _optimize(main: Path, options: _Options, folder: Path) -> tuple[Any, Any, Saved]:
    """Return the session that optimized, the model without its weights, and these: mapped, to outlive the folder.

    Raises ArtifactError for what ONNX Runtime refuses.
    """
    import onnx

    original = _save_optimized(main, options, folder)
    model = onnx.load(os.fspath(folder / "model.onnx"), load_external_data=False)
    _drop_repeated(model)
    _drop_left_inputs(model, original)
    return original, model, Saved.map(folder / _SCRATCH_WEIGHTS)


def _whole(main: Path, options: _Options) -> Program:
    """Return the program of a model whose weights cannot be taken out as they are: all of them stay in it.

    Raises ConversionError for one that is too large to be a program.
    """
    import onnx

    model = onnx.load(os.fspath(main))
    if model.ByteSize() > MOST_WHOLE_BYTES:
        raise ConversionError(
            f"{main}: what ONNX Runtime {_version()} made of it cannot be used, and {format_bytes(model.ByteSize())} "
            f"are too many to be kept as published ({format_bytes(MOST_WHOLE_BYTES)}); use another version of it"
        )
    ends = {"inputs": _inputs(model), "outputs": [_describe(value) for value in model.graph.output]}
    attributes = {**options.for_sessions(), **ends, "fed": [], "external": _NO_EXTERNAL}
    return Program(ONNX_ORIGINAL, attributes, model.SerializeToString(deterministic=True))


def _save_optimized(main: Path, options: _Options, folder: Path) -> Any:
    # Since 1.29 ONNX Runtime reports to its maker when it is imported; a converter speaks to its daemon only.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    from trims.formats.onnx.proof import errors

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[options.optimize])
    settings.optimized_model_filepath = os.fspath(folder / "model.onnx")
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    for key, value in {
        "session.optimized_model_external_initializers_file_name": _SCRATCH_WEIGHTS,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(INLINE_BELOW_BYTES),
        NO_PREPACKING: "0" if options.prepack == SHARED else "1",
        "session.save_external_prepacked_constant_initializers": "1" if options.prepack == SHARED else "0",
    }.items():
        settings.add_session_config_entry(key, value)
    try:
        return onnxruntime.InferenceSession(os.fspath(main), settings, providers=["CPUExecutionProvider"])
    except errors() as error:
        raise ArtifactError(f"{main}: ONNX Runtime {onnxruntime.__version__} refuses it: {error}") from error


def _take_initializers(model: Any, weights: Saved, *, on_devices: bool) -> dict[str, Initializer]:
    """Return the graph's large initializers by name; in the graph their declarations stay."""
    found: dict[str, Initializer] = {}
    for tensor in model.graph.initializer:
        if not _is_external(tensor) or tensor.data_type not in DTYPES:
            continue
        if on_devices and tensor.data_type in _INTEGERS and len(weights.of(tensor)) < INLINE_INTEGERS_BELOW_BYTES:
            continue
        data, dtype, shape = weights.of(tensor), DTYPES[tensor.data_type], tuple(tensor.dims)
        if len(data) != element_count(shape) * DTYPE_BYTES[dtype]:
            raise ArtifactError(f"initializer {tensor.name!r} of {dtype}{list(shape)} has {len(data)} bytes")
        found[tensor.name] = Initializer(data, tensor.data_type, shape)
        _declare_fed(tensor, len(data))
    return found


def _copier(data: memoryview) -> Callable[[memoryview], None]:
    def copy(target: memoryview) -> None:
        target[:] = data

    return copy


def _declare_fed(tensor: Any, n_bytes: int) -> None:
    del tensor.external_data[:]
    for key, value in {"location": FED_LOCATION, "offset": "0", "length": str(n_bytes)}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


def _inline_rest(model: Any, weights: Saved) -> None:
    """Put what cannot be fed into the program: tensors of subgraphs and of types that images do not have."""
    for tensor in _all_tensors(model.graph):
        if _is_external(tensor) and not any(pair.value == FED_LOCATION for pair in tensor.external_data):
            tensor.raw_data = bytes(weights.of(tensor))
            tensor.data_location = 0
            del tensor.external_data[:]


def _all_tensors(graph: Any) -> Iterator[Any]:
    for inner in _graphs(graph):
        yield from inner.initializer
        for sparse in inner.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for attribute in _attributes(inner):
            yield from (attribute.t, *attribute.tensors)


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield the graph and all graphs nested in it."""
    yield graph
    for attribute in _attributes(graph):
        for inner in (attribute.g, *attribute.graphs):
            yield from _graphs(inner)


def _attributes(graph: Any) -> Iterator[Any]:
    return (attribute for node in graph.node for attribute in node.attribute)


def _drop_repeated(model: Any) -> None:
    """Drop from subgraphs what ONNX Runtime saves twice, and then refuses to load.

    1.22 to 1.26 repeat initializers. Up to 1.31, a `Constant` in a subgraph of a subgraph becomes an initializer, and
    stays.
    """
    for graph in _graphs(model.graph):
        given = {tensor.name for tensor in graph.initializer}
        for node in [each for each in graph.node if each.op_type == "Constant" and given.issuperset(each.output)]:
            graph.node.remove(node)
        once = {tensor.name: tensor for tensor in reversed(graph.initializer)}
        if len(once) < len(graph.initializer):
            kept = [tensor for tensor in graph.initializer if once[tensor.name] is tensor]
            copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
            del graph.initializer[:]
            graph.initializer.extend(copies)


def _drop_left_inputs(model: Any, original: Any) -> None:
    """Drop inputs that were initializers: the optimizer merges equal ones, and leaves their inputs behind."""
    kept = {each.name for each in (*original.get_inputs(), *original.get_overridable_initializers())}
    kept.update(tensor.name for tensor in model.graph.initializer)
    for value in [each for each in model.graph.input if each.name not in kept]:
        model.graph.input.remove(value)


def _is_external(tensor: Any) -> bool:
    return bool(tensor.data_location == 1)


def _program(model: Any, options: _Options) -> Program:
    attributes = {
        "onnxruntime": _version() if options.optimize != "none" else None,
        "cpu": list(cpu_features()) if options.optimize == "all" else None,
        **options.for_sessions(),
        "inputs": _inputs(model),
        "outputs": [_describe(value) for value in model.graph.output],
    }
    return Program(PROGRAM_KIND, attributes, model.SerializeToString(deterministic=True))


def _version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def _inputs(model: Any) -> list[dict[str, Any]]:
    """Return what to feed a session: inputs that no initializer is for."""
    given = {tensor.name for tensor in model.graph.initializer}
    return [_describe(value) for value in model.graph.input if value.name not in given]


def _describe(value: Any) -> dict[str, Any]:
    """Return name, dtype and shape of an input or output; a dimension is a number, a name, or None if unknown."""
    tensor = value.type.tensor_type
    shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
    return {"name": value.name, "dtype": DTYPES.get(tensor.elem_type), "shape": shape}
