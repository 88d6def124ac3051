"""PyTorch over shared weights: state dicts and whole modules whose tensors are views, not copies.

There are three ways, fastest first:

- `module` unpickles the skeleton that an image has if its manifest names a `module` builder, or if it was made of a
  Hugging Face folder. Before the skeleton was made, it calls the builder, or transformers.
- `load_into` puts the weights into a module that you built (best on `torch.device("meta")`).
- `state_dict` gives the tensors alone.

transformers gives some parameters other names than their files do. Its own loader knows them, and copies nothing,
either: `ViTModel.from_pretrained(None, config=config, state_dict=trims.torch.state_dict(weights))`.

Example:
    with trims.connect() as session, session.open("bert") as weights:
        module = trims.torch.module(weights)
        state = trims.torch.state_dict(weights)

WARNING: shared memory is read-only. Writing into a parameter in place (an optimizer's step, `weight.data.mul_`,
`torch.nn.init`, pruning) does not raise: the kernel ends the process with SIGSEGV. Pass `writable=True` to get private
copy-on-write memory instead, which costs memory only for the pages that are written. Buffers are always private,
because some forward passes write them (BatchNorm in train mode). So are tensors that are not aligned to their elements
in an artifact's own file (place `file`): they are copies, and a write changes the copy.

Tensors keep the mapping alive: they stay valid after `weights.close()`, and the lease ends with the last of them.

Weights on a device (`session.open(name, place="gpu")`) give tensors on that device, over the shared bytes. There is no
copy-on-write there: buffers, and all tensors with `writable=True`, are clones and cost their size in device memory. If
the memory is shared by `vmm`, a kernel that writes into a shared parameter should end this process's use of the device
and nothing else. If it is shared by `ipc`, the write changes the weights of all processes. For weights on the host,
`module.to("cuda")` copies as usual. docs/operations.md says which of this a device has shown.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import pickle
import warnings
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import ArtifactError, CallerError, NotSupportedError, PermissionDeniedError
from trims.core.layout import DTYPE_BYTES
from trims.image.model_files import described_in
from trims.image.program import EXECUTABLE_KINDS, TORCH_BUILDER, TORCH_SKELETON, TRANSFORMERS, TRANSFORMERS_CODE
from trims_client.frameworks._torch_built import Views, check_fits
from trims_client.frameworks._torch_dtypes import DTYPES as _DTYPES
from trims_client.frameworks._torch_dtypes import dtype_of
from trims_client.frameworks._torch_names import (
    assign,
    complete_tied,
    listed,
    renamed,
    retie,
    take_non_persistent,
    tied_names,
)
from trims_client.mapping.prefault import map_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from trims.core.layout import TensorSpec
    from trims.image.program import Program
    from trims_client.weights import Weights

_KINDS = (TORCH_SKELETON, TORCH_BUILDER, TRANSFORMERS, TRANSFORMERS_CODE)
# torch warns once in a process that a tensor over a read-only buffer must not be written. Trigger that warning here and
# suppress it, so that no view pays for a warning filter. The module's docstring has the warning.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def state_dict(weights: Weights, *, writable: bool = False) -> dict[str, torch.Tensor]:
    """Return all tensors by name.

    Args:
        weights: An attached model.
        writable: Private copy-on-write memory instead of shared read-only memory; on a device, copies.

    Returns:
        Views, without a copy, whatever the size. Tied names share one storage; on a device all tensors do. The module's
        docstring says what a write into a view that is not writable does, and which tensors are copies nevertheless.
    """
    if weights.device is not None:
        on_device: dict[str, torch.Tensor] = _device().state_dict(weights, writable=writable)
        return on_device
    data = weights.data(private=writable)
    found: dict[str, torch.Tensor] = {}
    owners: dict[tuple[int, str, tuple[int, ...]], torch.Tensor] = {}
    for spec in weights.layout:
        place = (spec.offset, spec.dtype, spec.shape)
        owner = owners.get(place) if spec.nbytes else None
        found[spec.name] = _tensor(weights, data, spec, private=writable) if owner is None else owner.detach()
        owners.setdefault(place, found[spec.name])
    return found


def module(weights: Weights, *, trust_program: bool | None = None, writable: bool = False) -> torch.nn.Module:
    """Return the whole module, ready to infer, in eval mode.

    Args:
        weights: A model whose manifest names a `module` builder (formats torch and safetensors), or a Hugging Face
            folder (format transformers).
        trust_program: Whether code in the image may run: a skeleton is a pickle. None means `weights.trusted`, which is
            true when the daemon is run by this user or root, and the image was made on this machine or the manifest has
            `allow_pickle: true`.
        writable: Parameters in private copy-on-write memory, for training or editing; on a device, copies.

    Returns:
        The module as its builder and `load_state_dict` make it: with the same `requires_grad`, with one parameter for
        tied weights, and with the values of non-persistent buffers. A model at `file` has no skeleton yet, and a
        module that cannot be pickled has none at any place (`weights.program().kind` is `torch-builder`): the builder
        is called here, which takes longer.

    Raises:
        PermissionDeniedError: The image's origin is not trusted.
        NotSupportedError: The image has no skeleton, or one made with another version of torch or the model's package;
            or its builder or its classes cannot be imported here, or another file was under their name.
        ArtifactError: The builder raised, or returned no module that the weights fit; its own error is the cause.
    """
    program = _program(weights)
    if program.kind == TORCH_SKELETON and weights.foreign and not trust_program and described_in(program) is not None:
        program = program._replace(kind=TRANSFORMERS)  # its files say all that the pickle says
    if program.kind in EXECUTABLE_KINDS:
        _check_trust(weights, program, trust_program)
    if program.kind == TORCH_BUILDER:
        made = _built(weights, program.attributes, writable=writable)
    elif program.kind == TORCH_SKELETON:
        with _importable(weights.name, program.attributes):
            made = _unpickled(weights, program, writable=writable)
    else:
        made = _made_by_transformers(weights, program, writable=writable)
    _map_ahead(made, weights)
    return made


def _check_trust(weights: Weights, program: Program, trust_program: bool | None) -> None:
    """Raise PermissionDeniedError unless the code of an image may run."""
    if trust_program is None and weights.foreign:
        raise PermissionDeniedError(_foreign_program(weights, program))
    if not (weights.trusted if trust_program is None else trust_program):
        raise PermissionDeniedError(
            f"the {program.kind.replace('-', ' ')} of {weights.name!r} runs code when it is loaded, and it is not "
            "known to come from a daemon of yours; if you trust its origin, pass trust_program=True"
        )


def _foreign_program(weights: Weights, program: Program) -> str:
    """Return why the program of an image that others made is not run, and what to do."""
    skeleton = program.kind == TORCH_SKELETON
    what = "a pickle, which can run anything" if skeleton else "a call of any function, with any arguments"
    return (
        f"the image of {weights.name!r} came from {weights.foreign}, and its program is {what}; if you trust its "
        f"publisher, register a manifest of your own with artifact: {{uri: {weights.foreign}, allow_pickle: true}}; "
        "else build the module yourself, and use load_into: the tensors are safe"
    )


@contextlib.contextmanager
def _importable(name: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Have modules found in the manifest's folder during the block, if they lie there. Raises NotSupportedError."""
    found: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if origin := attributes.get("origin"):
        from trims.image.torch_builders import modules_beside

        found = modules_beside(origin, attributes["modules"], repr(name), alike=True)
    try:
        with found:
            yield
    except (ImportError, AttributeError) as error:  # of a module, and of a class in it
        where = f"it lay in {origin}" if origin else "install it here"
        raise NotSupportedError(
            f"the skeleton of {name!r} needs a module or class that is not here: {error}; {where}, or use load_into "
            "with a module that you build"
        ) from error


class _Unpickler(pickle.Unpickler):
    """Unpickler of a skeleton, whose tensors are numbers in a list."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        return self._tensors[number]


def _unpickled(weights: Weights, program: Program, *, writable: bool) -> torch.nn.Module:
    _check_versions(weights.name, program.attributes["versions"])
    with _no_collection():
        if weights.device is not None:
            tensors = _device().tensors(weights, program.attributes, writable=writable)
        else:
            tensors = _tensors(weights, program.attributes, writable)
        loaded = _Unpickler(io.BytesIO(program.body), tensors).load()
    assert isinstance(loaded, torch.nn.Module)
    return loaded


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off while thousands of lasting objects are made: it would take a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def without_initialization() -> contextlib.AbstractContextManager[Any]:
    """Return a context manager for building a module for `load_into` without filling parameters with random numbers.

    Unlike `torch.device("meta")` it leaves buffers alone, so those that are in no state dict have their values.

    Example:
        with trims.torch.without_initialization():
            module = BertModel(config)
        trims.torch.load_into(module, weights)
    """
    from trims.image.torch_builders import NoRandomInitialization

    return NoRandomInitialization()


def load_into(
    module: torch.nn.Module,
    weights: Weights,
    *,
    strict: bool = True,
    writable: bool = False,
    names: Callable[[str], str] | None = None,
) -> torch.nn.Module:
    """Make a module's parameters and buffers views of the weights.

    Args:
        module: Best built under `torch.device("meta")`, because the memory of its own tensors is freed.
        weights: The weights.
        strict: Raise if names are missing from the weights or left over.
        writable: Parameters in private copy-on-write memory, on a device copies; buffers always are.
        names: What the module calls a tensor, given its name among the weights; by default the same. For files that
            were saved with a prefix ("module.", "model."), or by an older version of the model's library.

    Returns:
        The same module. Parameters that were tied in the module are tied again, and attributes that were views of
        parameters are views of the new ones. With weights on a device all its
        parameters and buffers lie there.

    Raises:
        CallerError: Names or shapes do not fit (all of them are listed), `names` gives two tensors one name, or a
            buffer outside the state dict is on the meta device and not among the weights.
    """
    loaded = _load(module, weights, strict=strict, writable=writable, names=names)
    _map_ahead(loaded, weights)
    return loaded


def _map_ahead(module: torch.nn.Module, weights: Weights) -> None:
    """Have the pages of weights in files mapped in the order of the parameters, which is about that of their use."""
    if weights.place in ("file", "disk"):
        tensors = itertools.chain(module.parameters(), module.buffers())
        with contextlib.suppress(OSError, RuntimeError):  # no /proc, or no more threads: runs are only slower
            map_ahead([(each.data_ptr(), each.nbytes) for each in tensors if each.device.type == "cpu"], module)


def _load(
    module: torch.nn.Module,
    weights: Weights,
    *,
    strict: bool = True,
    ignore: Sequence[str] = (),
    without: Collection[str] = (),
    writable: bool,
    names: Callable[[str], str] | None = None,
) -> torch.nn.Module:
    """See `load_into`. Names that match a pattern of `ignore` may be left over; those in `without` are not used."""
    tied, views = tied_names(module), Views(module)
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    tensors = state_dict(weights, writable=writable)
    for name in without:
        del tensors[name]
    named = {name: name for name in tensors} if names is None else renamed(weights, tensors, names)
    private = _private_views(weights)
    for spec in weights.layout:
        if named.get(spec.name) in buffers:
            tensors[spec.name] = private(spec)
    tensors = {named[name]: tensor for name, tensor in tensors.items()}
    complete_tied(tensors, tied)
    unknown_buffers = take_non_persistent(module, tensors, buffers)
    if unknown_buffers:
        unknown_buffers = _compute_buffers(module, tensors, unknown_buffers)
    known = set(module.state_dict(keep_vars=True)) if ignore else set()
    for name in [name for name in tensors if name not in known and any(fnmatchcase(name, each) for each in ignore)]:
        del tensors[name]
    assign(module, tensors, weights.name, strict=strict)
    retie(module, tied)
    if weights.device is not None:
        _device().bring_buffers(module, weights)
    if unknown_buffers:
        raise CallerError(
            f"buffers {listed(unknown_buffers)} are in no state dict and have no values on the meta device; build "
            "the module on the CPU, or name its builder in the manifest (option module)"
        )
    views.follow()
    return module


def _compute_buffers(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[str]:
    """Give buffers on the meta device the values that the module's library computes. Return those it does not know."""
    from trims.image.transformers_models import buffers_of

    found = buffers_of(module, tensors)
    for name in names:
        if name in found:
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._buffers[leaf] = found[name]
    return [name for name in names if name not in found]


@contextlib.contextmanager
def measured_workspace(weights: Weights) -> Iterator[None]:
    """Measure the device memory that torch needs in the `with` block, and have the daemon keep that much free.

    Run a typical forward pass in the block, with the largest batch that you expect. The measure is the peak of torch's
    own allocations, which does not include the weights. A block that raises reports nothing.

    Raises NotSupportedError on the host, and what `report_workspace` raises.
    """
    if weights.device is None:
        raise NotSupportedError(f"{weights.name!r} lies at {weights.place}; workspace is measured on devices only")
    with _device().measured_workspace(weights):
        yield


def _device() -> Any:
    """Return the module for weights on devices, imported only when it is needed."""
    from trims_client.frameworks import _torch_device

    return _torch_device


def _private_views(weights: Weights) -> Callable[[TensorSpec], torch.Tensor]:
    if weights.device is not None:
        made: Callable[[TensorSpec], torch.Tensor] = _device().Block(weights).private
        return made
    private = weights.data(private=True)
    return lambda spec: _tensor(weights, private, spec, private=True)


def _tensor(weights: Weights, data: memoryview, spec: TensorSpec, *, private: bool) -> torch.Tensor:
    """Return a view of the data block, or of a copy if the tensor is not aligned to its element there."""
    if spec.offset & 7 == 0 or spec.offset % DTYPE_BYTES[spec.dtype] == 0:
        return _view(data, spec)
    copy = bytearray(weights.raw(spec.name)) if private else weights.aligned(spec.name)
    return _view(memoryview(copy), spec._replace(offset=0))


def _view(data: memoryview, spec: TensorSpec) -> torch.Tensor:
    dtype = _DTYPES.get(spec.dtype) or dtype_of(spec)
    if not spec.nbytes:
        return torch.empty(spec.shape, dtype=dtype)
    shape = spec.shape
    flat = torch.frombuffer(data, dtype=dtype, count=spec.nbytes // dtype.itemsize, offset=spec.offset)
    return flat if len(shape) == 1 else flat.view(shape)


def _tensors(weights: Weights, attributes: Mapping[str, Any], writable: bool) -> list[torch.Tensor]:
    """Return the tensors that the skeleton refers to by number, in the order of the layout.

    This is most of the time that `module` takes, hence the local names in the loop.
    """
    private = weights.data(private=True)
    shared = private if writable else weights.data()
    frozen = set(attributes["frozen"])
    plain = {*attributes["buffers"], *attributes["constants"]}
    view_of, parameter, dtypes, found = torch.frombuffer, torch.nn.Parameter, _DTYPES, []
    for spec in weights.layout:
        name, dtype, shape, offset = spec
        own = name in plain
        if dtype in dtypes and (count := prod(shape)):
            made = view_of(private if own else shared, dtype=dtypes[dtype], count=count, offset=offset)
            if len(shape) != 1:
                made = made.view(shape)
        else:
            made = _view(private, spec)
        found.append(made if own else parameter(made, name not in frozen))
    return found


def _program(weights: Weights) -> Program:
    program = weights.program()
    if program is None or program.kind not in _KINDS:
        kind = "no program" if program is None else f"a program for {program.kind}"
        raise NotSupportedError(
            f"{weights.name!r} carries {kind}; name the module's builder in its manifest (option module), or use "
            "load_into with a module that you build"
        )
    return program


def _built(weights: Weights, named: Mapping[str, Any], *, writable: bool) -> torch.nn.Module:
    """Return the module of a model that has no skeleton yet, built as a converter would build it."""
    from trims.image.torch_builders import build_module, own_names

    ignore = named.get("ignore", ())
    try:
        built = build_module(named["module"], named.get("module_args", {}), repr(weights.name), named["origin"])
        names = own_names(built.eval(), weights.layout.tensors)
        own = check_fits(built, weights, ignore, names)
        return _load(built, weights, ignore=ignore, without=own, writable=writable, names=names.__getitem__)
    except NotSupportedError as error:
        if error.__cause__ is None or weights.place != "file":  # nothing is missing: it says itself what to do
            raise
        raise NotSupportedError(f"{error}; open it with place='cpu', where a converter has built the module") from error
    except CallerError as error:
        raise ArtifactError(str(error)) from error


def _made_by_transformers(weights: Weights, program: Program, *, writable: bool) -> torch.nn.Module:
    """Return the module of a Hugging Face model that has no skeleton, as transformers makes it over the weights."""
    from trims.image.transformers_models import make_module

    described = described_in(program)
    if described is None:
        raise ArtifactError(f"the program of {weights.name!r} has no files of a model; have its image made again")
    with_code = program.kind == TRANSFORMERS_CODE
    state = state_dict(weights, writable=writable)
    made, _ = make_module(state, described, repr(weights.name), with_code=with_code)
    for owner in made.modules():  # forward passes may write them
        owner._buffers.update({name: each.clone() for name, each in owner._buffers.items() if each is not None})
    if weights.device is not None:
        _device().bring_buffers(made, weights)
    return made


def _check_versions(name: str, made_with: Mapping[str, str]) -> None:
    """Refuse a skeleton made with other package versions: they may load a pickled module wrongly without an error."""
    for package, version in made_with.items():
        here = str(importlib.import_module(package).__version__)
        if here != version:
            raise NotSupportedError(
                f"the skeleton of {name!r} was made with {package} {version}, here is {package} {here}; use the same "
                f"version, or have it made again: `trims evict --all-tiers {name}`, then open it"
            )
