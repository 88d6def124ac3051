"""ONNX Runtime sessions over shared weights.

The image has the graph already optimized, and the weights stay where they are: a session costs milliseconds and, apart
from its activations, no private memory. A model that was not converted yet is served from its own files (place `file`):
its sessions load and optimize the model as published, as ONNX Runtime does alone. Covered: the CPU
execution provider, and CUDA's for weights that lie on its device. Not covered: other providers, which would copy every
weight to memory of their own.

Example:
    with trims.connect() as session, session.open("resnet50") as weights:
        runtime = trims.onnxruntime.session(weights)
        print(runtime.run(None, {"image": batch})[0].shape)

A model converted with `prepack: shared` has its weights twice, as published and as ONNX Runtime packs them for its
kernels. Its session begins with the first form, which is ready in milliseconds, and goes over to the second one shortly
after its first answer (`SharedSession.stage`). ONNX Runtime maps the second form by the path of a file. Where this
process sees no such file, as in a container, it packs the weights once more for itself.

From 1.29 on, ONNX Runtime sends telemetry to its maker, and keeps a database in the user's cache for that. This module
does not change that setting; `ORT_DISABLE_TELEMETRY=1` in the environment stops it and makes the import some 15 ms
shorter.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime

from trims.core.errors import ArtifactChangedError, NotSupportedError
from trims.core.units import format_bytes
from trims.image.external import NO_FOLDER, exchange_name
from trims.image.program import ONNX_ORIGINAL, WHY
from trims_client.frameworks._onnxruntime_options import (
    CPU_PROVIDER,
    check_host,
    checked_providers,
    complete_options,
    level_of,
    packing_options,
)
from trims_client.frameworks._onnxruntime_packed import Packing, file_behind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.image.program import Program
    from trims_client.frameworks._onnxruntime_packed import Stage
    from trims_client.weights import Weights

_log = logging.getLogger("trims")
_PROGRAM_KIND = "onnxruntime"
#: dtype -> (numpy's unsigned integer of the same width, onnx.TensorProto.DataType), for dtypes that numpy lacks.
_FOREIGN = {
    "BF16": ("uint16", 16), "F8_E4M3": ("uint8", 17), "F8_E4M3FNUZ": ("uint8", 18), "F8_E5M2": ("uint8", 19),
    "F8_E5M2FNUZ": ("uint8", 20), "F8_E8M0": ("uint8", 24),
}  # fmt: skip


class SharedSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """An InferenceSession that keeps the weights it reads alive, also after `Weights.close`.

    `io_binding`, `run_async` and profiling stay with the first session, whatever the stage is.

    Attributes:
        program: The program of the image; `program.attributes["inputs"]` describes what to feed. Its kind is
            `onnx-original` if this session optimized the graph itself, because the model was not converted yet, or was
            kept as published (its attribute `why` says why).
        host_copies: Names of initializers that lie on a device but that ONNX Runtime needs on the host. The session
            uses private copies of them.
    """

    program: Program
    host_copies: tuple[str, ...] = ()
    _weights: tuple[Any, ...]
    _packing: Packing | None = None
    _why_plain: str | None = None

    @property
    def stage(self) -> Stage:
        """Return how the session's runs read the weights.

        - `plain`: as they lie in the image, for as long as the session lives.
        - `first`: the same, until the first answer.
        - `packing`: the same, while a thread makes the other session. That takes some tenths of a second.
        - `packed`: as ONNX Runtime packed them for its kernels, in memory that all processes share. Answers are the
          same within rounding.
        - `private`: the same in memory of this process alone, which is about as much again (see `why_private`).
        """
        return "plain" if self._packing is None else self._packing.stage

    @property
    def why_plain(self) -> str | None:
        """Return why the stage is `plain` though the image has packed weights; None without any, or in other stages."""
        return self._why_plain if self._packing is None else self._packing.why_plain

    @property
    def why_private(self) -> str | None:
        """Return why this process packs the weights once more, or has done so; None if it uses those that all share."""
        return None if self._packing is None else self._packing.why_private

    def pack(self) -> Stage:
        """Change to the packed weights now, and wait until that is done. Return the stage. Idempotent."""
        if self._packing is not None:
            self._packing.begin()
            self._packing.wait()
        return self.stage

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """Run as `InferenceSession.run` does. The first run has the packed session made, in a thread."""
        if self._packing is None:
            return super().run(output_names, input_feed, run_options)
        packed = self._packing.session
        if packed is not None:
            return packed.run(output_names, input_feed, run_options)
        answer = super().run(output_names, input_feed, run_options)
        self._packing.begin()
        return answer

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """Run as `InferenceSession.run_with_ort_values` does, with the packed session if there is one."""
        packed = None if self._packing is None else self._packing.session
        if packed is not None:
            return packed.run_with_ort_values(output_names, input_dict_ort_values, run_options)
        return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)


def session(
    weights: Weights,
    *,
    providers: Sequence[Any] | None = None,
    session_options: onnxruntime.SessionOptions | None = None,
    packed_options: onnxruntime.SessionOptions | None = None,
) -> SharedSession:
    """Return an inference session that computes on the attached weights.

    Args:
        weights: Model converted from ONNX. On a device: of a model converted with `optimize: basic` or `none`,
            which is also the default for manifests whose `residency.place` is a GPU.
        providers: Execution providers. Only the CPU's can read shared memory. Only CUDA's, with the device's
            `device_id`, can read device memory. The default is the provider that can read the weights, then the CPU's
            for the other operators.
        session_options: Changed in place, so they can be used for this session only. Graph optimization is switched
            off, because the graph is optimized already; at `file` it is set to what the manifest says.
            `session.disable_prepacking` in these options overrides the manifest.
        packed_options: Options for the session over packed weights, where the image has them. Options cannot be
            copied: if you give `session_options` alone, the session stays in the stage `plain`.

    Returns:
        A session whose outputs are bit-identical to those of an ordinary `InferenceSession` with the same
        optimization level and the same choice of pre-packing.

    Raises:
        ArtifactChangedError: The model was not converted yet, and a file of it changed meanwhile.
        NotSupportedError: The image is no ONNX model, or was made for another ONNX Runtime or processor; or the
            providers or options ask for something that shared weights cannot do; or this ONNX Runtime has no CUDA.
    """
    program = _checked_program(weights)
    if program.kind == ONNX_ORIGINAL:
        return _over_original(weights, program, checked_providers(providers), session_options)
    check_host(weights.name, program.attributes)
    on_device = weights.device is not None
    chosen = _providers_on_device(weights, program, providers) if on_device else checked_providers(providers)

    make = functools.partial(_make, weights, program, chosen)
    if on_device:
        from trims_client.frameworks import _onnxruntime_device

        found: SharedSession = _onnxruntime_device.build(weights, make, session_options)
        return found
    if "packed" in program.attributes:
        return _in_two_stages(weights, program, chosen, session_options, packed_options)
    return make(session_options, {name: _ort_value(weights, name) for name in weights})


class Parts(NamedTuple):
    """Parts of an ordinary `InferenceSession`, in place of a model's file.

    Attributes:
        body: The optimized graph.
        options: Options that feed it the weights.
        kept: What the session reads: it must live as long.
        packing: Makes the session that computes, if this one is only to describe the model; None if it computes itself.
    """

    body: bytes
    options: onnxruntime.SessionOptions
    kept: object
    packing: Packing | None


def parts(weights: Weights, options: Callable[[], onnxruntime.SessionOptions]) -> Parts:
    """Return the parts of sessions whose runs are those of a session of the model's own file, to the bit.

    Args:
        weights: Model converted from ONNX with `prepack: shared`.
        options: Returns options as the program has stated them, new at each call.

    Raises:
        NotSupportedError: The image is no such model, was made for another ONNX Runtime or processor, or lies in no
            file that this process sees.
    """
    program = _checked_program(weights)
    if program.kind == ONNX_ORIGINAL:
        raise NotSupportedError(f"{weights.name!r} is as published: {program.attributes.get(WHY, 'not converted yet')}")
    check_host(weights.name, program.attributes)
    packed, providers = program.attributes.get("packed"), [CPU_PROVIDER]
    values = {name: _ort_value(weights, name) for name in weights if packed is None or name != packed["block"]}
    kept = (values, weights.view)
    if packed is None:
        return Parts(program.body, _fed(packing_options(options()), weights, program, values), kept, None)
    path = file_behind(weights)
    if path is None:
        raise NotSupportedError(f"no file that this process sees has the image of {weights.name!r}")
    plain = options()
    plain.enable_mem_reuse, plain.intra_op_num_threads, plain.inter_op_num_threads = False, 1, 1  # it runs nothing
    packing = Packing(weights.name, _packed_maker(weights, program, path, providers, options()))
    return Parts(program.body, _fed(plain, weights, program, values), kept, packing)


def running(session: onnxruntime.InferenceSession) -> onnxruntime.InferenceSession:
    """Return the session that carries out runs of this one now: itself, or the one over packed weights inside of it."""
    packing = getattr(session, "_packing", None)
    return session if packing is None or packing.session is None else packing.session


def _in_two_stages(
    weights: Weights,
    program: Program,
    providers: Sequence[Any],
    given: onnxruntime.SessionOptions | None,
    packed_options: onnxruntime.SessionOptions | None,
) -> SharedSession:
    """Return a session that changes to packed weights after its first answer: the shared ones, else its own."""
    block = program.attributes["packed"]["block"]
    values = {name: _ort_value(weights, name) for name in weights if name != block}
    if given is not None and packed_options is None:
        made = _make(weights, program, providers, given, values)
        made._why_plain = "session_options were given without packed_options"
        _log.warning("%s: its packed weights are not used, and runs stay slower: %s", weights.name, made._why_plain)
        return made
    given = onnxruntime.SessionOptions() if given is None else given
    # To plan which tensors share memory takes most of the start: 40 of 51 ms for BERT-base. The peak is the same.
    given.enable_mem_reuse = False
    made = _make(weights, program, providers, given, values)
    path = file_behind(weights)
    if path is not None:
        made._packing = Packing(weights.name, _packed_maker(weights, program, path, providers, packed_options))
        return made
    why = f"no file that this process sees has the image of {weights.name!r}: ONNX Runtime maps files"
    nbytes = format_bytes(weights.layout.tensors[block].nbytes)
    _log.warning("%s: this process packs its weights for itself, about %s: %s", weights.name, nbytes, why)
    made._packing = Packing(weights.name, _private_maker(weights, program, providers, packed_options, values), why)
    return made


def _packed_maker(
    weights: Weights,
    program: Program,
    path: str,
    providers: Sequence[Any],
    given: onnxruntime.SessionOptions | None,
) -> Callable[[], onnxruntime.InferenceSession]:
    """Return a function that makes the session for which ONNX Runtime maps the image's file by itself."""
    folder, file = os.path.split(path)
    options = complete_options(packing_options(given), weights.name, program.attributes, folder)

    def make(_held: object = weights.view) -> onnxruntime.InferenceSession:  # until it is made, its file must stay
        body = exchange_name(program.body, program.attributes["packed"]["name"], file)
        return onnxruntime.InferenceSession(body, options, providers=list(providers))

    return make


def _private_maker(
    weights: Weights,
    program: Program,
    providers: Sequence[Any],
    given: onnxruntime.SessionOptions | None,
    values: Mapping[str, onnxruntime.OrtValue],
) -> Callable[[], onnxruntime.InferenceSession]:
    """Return a function that makes the session for which ONNX Runtime packs the weights in this process's memory."""
    options = _fed(packing_options(given), weights, program, values)
    return lambda: onnxruntime.InferenceSession(program.body, options, providers=list(providers))


def _make(
    weights: Weights,
    program: Program,
    providers: Sequence[Any],
    given: onnxruntime.SessionOptions | None,
    values: Mapping[str, onnxruntime.OrtValue],
) -> SharedSession:
    options = _fed(given, weights, program, values)
    return _kept(SharedSession(program.body, options, providers=list(providers)), weights, program, values)


def _fed(
    given: onnxruntime.SessionOptions | None,
    weights: Weights,
    program: Program,
    values: Mapping[str, onnxruntime.OrtValue],
) -> onnxruntime.SessionOptions:
    """Return options of a session that is given its initializers."""
    options = complete_options(given, weights.name, program.attributes)
    for name, value in values.items():
        options.add_initializer(name, value)
    return options


def _kept(
    made: SharedSession, weights: Weights, program: Program, values: Mapping[str, onnxruntime.OrtValue]
) -> SharedSession:
    """Keep alive what the session reads: ONNX Runtime has pointers to the values, and these have some to the bytes."""
    made.program = program
    made._weights = (values, weights.view)
    return made


def _over_original(
    weights: Weights, program: Program, providers: Sequence[Any], given: onnxruntime.SessionOptions | None
) -> SharedSession:
    """Return a session of a model that was not converted, or not yet: ONNX Runtime optimizes it, as it does alone.

    It reads the very files that the daemon has opened, if this process sees them: what it is fed before it optimizes it
    copies once more (seen in 1.31), so its own way is the shorter one. Where they are not seen, such as in a container,
    it is fed from the mapped files.
    """
    attributes = program.attributes
    if weights.device is not None:
        raise NotSupportedError(
            f"{weights.name!r} lies at {weights.place} as published, which its sessions would have to optimize there: "
            f"{attributes.get(WHY, 'it was not converted yet')}; open it with place='cpu'"
        )
    fed, external, file = attributes["fed"], attributes["external"], attributes["file"]
    mapped = bool(external["names"]) and _are_the_same(external)
    whole = _is_the_same(file["path"], file["known"]) and (mapped or not external["names"])
    folder = os.path.realpath(external["folder"]) if mapped else NO_FOLDER
    options = complete_options(given, weights.name, attributes, None if whole else folder)
    options.graph_optimization_level = level_of(attributes["optimize"])
    names = () if whole else fed if mapped else [*fed, *external["names"]]
    values = {name: _ort_value(weights, name) for name in names}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    made = SharedSession(file["path"] if whole else program.body, options, providers=list(providers))
    same = not whole or _is_the_same(file["path"], file["known"])
    if not same or (mapped and not _are_the_same(external)):
        raise ArtifactChangedError(f"{weights.name}: a file of it changed while a session was made; open it again")
    return _kept(made, weights, program, values)


def _are_the_same(external: Mapping[str, Any]) -> bool:
    """Return whether this process sees the daemon's files of external data, inside the model's folder."""
    folder = os.path.realpath(external["folder"])
    for location, known in external["files"].items():
        path = os.path.realpath(os.path.join(folder, location))
        # ONNX Runtime refuses files outside the folder, where links may lead.
        if os.path.commonpath([folder, path]) != folder or not _is_the_same(path, known):
            return False
    return True


def _is_the_same(path: str, known: Sequence[int]) -> bool:
    """Return whether this process sees the file of this device, inode, length and time in ns under the path."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return list(known) == [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _providers_on_device(weights: Weights, program: Program, providers: Sequence[Any] | None) -> list[Any]:
    from trims_client.frameworks import _onnxruntime_device

    _onnxruntime_device.check_program(weights.name, program.attributes)
    return _onnxruntime_device.providers_on(weights, providers)


def _checked_program(weights: Weights) -> Program:
    program = weights.program()
    if program is None or program.kind not in (_PROGRAM_KIND, ONNX_ORIGINAL):
        kind = "no program" if program is None else f"a program for {program.kind}"
        raise NotSupportedError(f"{weights.name!r} carries {kind}; a session needs a model converted from ONNX")
    return program


def _ort_value(weights: Weights, name: str) -> onnxruntime.OrtValue:
    """Return the tensor as an OrtValue over shared memory. It keeps the numpy view, and so the mapping, alive."""
    dtype = weights.layout.tensors[name].dtype
    if dtype not in _FOREIGN:
        return onnxruntime.OrtValue.ortvalue_from_numpy(weights.numpy(name))
    import numpy as np

    width, onnx_type = _FOREIGN[dtype]
    bits = np.frombuffer(weights.aligned(name), dtype=width).reshape(weights.layout.tensors[name].shape)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_type)
