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
from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import ArtifactError, CallerError, NotSupportedError, PermissionDeniedError
from trims.image.model_files import described_in
from trims.image.program import EXECUTABLE_KINDS, TORCH_BUILDER, TORCH_SKELETON, TRANSFORMERS, TRANSFORMERS_CODE
from trims.image.torch_loading import own_loading
from trims_client.frameworks._torch_built import check_fits, refuse_extra_state
from trims_client.frameworks._torch_load import load
from trims_client.frameworks._torch_views import device, state_dict, tensors_of
from trims_client.mapping.prefault import map_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims.image.program import Program
    from trims_client.weights import Weights

__all__ = ["load_into", "measured_workspace", "module", "state_dict", "without_initialization"]

_KINDS = (TORCH_SKELETON, TORCH_BUILDER, TRANSFORMERS, TRANSFORMERS_CODE)


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
        tied weights, with the values of non-persistent buffers, and with the strides that its tensors have
        (`torch.channels_last`), which takes private copies of these. A model at `file` has no skeleton yet, and a
        module has none at any place that cannot be pickled, or whose own code gives it other values than its file has
        (`weights.program().kind` is `torch-builder`): the builder is called here, which takes longer. Code of its own
        (hooks, `_load_from_state_dict`, extra state) then loads private copies of all weights.

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
            tensors = device().tensors(weights, program.attributes, writable=writable)
        else:
            tensors = tensors_of(weights, program.attributes, writable)
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
        strict: Raise if names are missing from the weights or left over.
        writable: Parameters in private copy-on-write memory, on a device copies; buffers always are.
        names: What the module calls a tensor, given its name among the weights; by default the same. For files that
            were saved with a prefix ("module.", "model."), or by an older version of the model's library.

    Returns:
        The same module. Parameters that were tied in the module are tied again, and attributes that were views of
        parameters are views of the new ones. With weights on a device all its
        parameters and buffers lie there. Tensors that are not row-major in the module (`torch.channels_last`) keep
        their strides, as private copies. A module with code of its own that loads state dicts (hooks,
        `_load_from_state_dict`, extra state) loads private copies of all weights, as with torch alone; built on the
        meta device it is given the tensors over private pages.

    Raises:
        CallerError: Names or shapes do not fit (all of them are listed), `names` gives two tensors one name, or a
            buffer outside the state dict is on the meta device and not among the weights.
    """
    loaded = load(module, weights, strict=strict, writable=writable, names=names)
    _map_ahead(loaded, weights)
    return loaded


def _map_ahead(module: torch.nn.Module, weights: Weights) -> None:
    """Have the pages of weights in files mapped in the order of the parameters, which is about that of their use."""
    if weights.place in ("file", "disk"):
        tensors = itertools.chain(module.parameters(), module.buffers())
        with contextlib.suppress(OSError, RuntimeError):  # no /proc, or no more threads: runs are only slower
            map_ahead([(each.data_ptr(), each.nbytes) for each in tensors if each.device.type == "cpu"], module)


def device_of(weights: Weights) -> torch.device:
    """Return the device on which weights lie. Raises NotSupportedError if this torch cannot compute there."""
    if weights.device is None:
        return torch.device("cpu")
    from trims_client.frameworks import _torch_device

    return _torch_device.Block(weights).device


@contextlib.contextmanager
def measured_workspace(weights: Weights) -> Iterator[None]:
    """Measure the device memory that torch needs in the `with` block, and have the daemon keep that much free.

    Run a typical forward pass in the block, with the largest batch that you expect. The measure is the peak of torch's
    own allocations, which does not include the weights. A block that raises reports nothing.

    Raises NotSupportedError on the host, and what `report_workspace` raises.
    """
    if weights.device is None:
        raise NotSupportedError(f"{weights.name!r} lies at {weights.place}; workspace is measured on devices only")
    with device().measured_workspace(weights):
        yield


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
        built = build_module(named["module"], named.get("module_args", {}), repr(weights.name), named["origin"]).eval()
        if own_loading(built):
            refuse_extra_state(built, weights.name)
            return load(built, weights, ignore=ignore, writable=writable)
        names = own_names(built, weights.layout.tensors)
        own = check_fits(built, weights, ignore, names)
        return load(built, weights, ignore=ignore, without=own, writable=writable, names=names.__getitem__)
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
        device().bring_buffers(made, weights)
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
