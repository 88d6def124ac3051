"""Building the torch module that weights belong to, by the function that a manifest names.

Converters do it to make a skeleton, and sessions whose model has no skeleton yet, so both have the same module.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from trims.core.errors import ArtifactError, NotSupportedError, TrimsError
from trims.image.descriptors import explain_descriptors, lacks_descriptors
from trims.image.modules_beside import load_name, modules_beside, refuse_others

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

__all__ = ["NoRandomInitialization", "build_module", "modules_beside", "own_names"]

from trims.process.packages import install_words


def build_module(call: Any, arguments: Any, what: str, origin: str = "") -> torch.nn.Module:
    """Call the builder; parameters of the module are not filled.

    Args:
        call: `package.module:function`.
        what: Owner of the module, for messages.
        origin: Folder of the manifest, where the builder may lie; empty if there is none.

    Raises:
        ArtifactError: The builder is named wrongly, raises, or returns no module.
        NotSupportedError: The builder cannot be imported here, or another module of its name has been.
    """
    if not isinstance(call, str) or ":" not in call or not isinstance(arguments, dict):
        raise ArtifactError(f"{what}: option module must be 'package.module:function' and module_args a map")
    with modules_beside(origin, [call.partition(":")[0]], what), _settings_kept():
        try:
            module = _call(call, arguments, what, origin)
        except (TrimsError, MemoryError):
            raise
        except ImportError as error:
            remedy = f"; install it there: {install_words(error.name, sys.executable)}" if error.name else ""
            raise NotSupportedError(f"{what}: {call} lacks a module in {sys.prefix}: {error}{remedy}") from error
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and lacks_descriptors(error):
                raise explain_descriptors(error) from error
            raise ArtifactError(f"{what}: {call} raised {type(error).__name__}: {error}") from error
    if not isinstance(module, torch.nn.Module):
        raise ArtifactError(f"{what}: {call} returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def _call(call: str, arguments: Mapping[str, Any], what: str, origin: str) -> Any:
    builder = load_name(call, f"{what}: the module builder")
    refuse_others(origin, [call.partition(":")[0]], what)
    state = torch.get_rng_state()
    try:
        with NoRandomInitialization(exact=True):
            return builder(**arguments)
    except _ValuesNeededError:
        torch.set_rng_state(state)
    return builder(**arguments)


def own_names(module: torch.nn.Module, names: Collection[str]) -> dict[str, str]:
    """Return what a module calls the tensors of a file, by their names in the file.

    Modules rename what older versions of them saved, by hooks that run when a state dict is loaded: `weight_g` of
    weight_norm becomes `parametrizations.weight.original0`. The hooks get tensors without elements here; where one
    fails or does more than rename, names stay as they are.
    """
    kept = {name: name for name in names}
    state = module.state_dict(keep_vars=True)
    if all(name in state for name in names):
        return kept
    given: dict[str, Any] = {name: torch.empty(0, device="meta") for name in names}
    known = {id(tensor): name for name, tensor in given.items()}
    alive = list(given.values())  # so that no other tensor gets the id of one
    try:
        for prefix, each in module.named_modules():
            for hook in each._load_state_dict_pre_hooks.values():
                hook(given, f"{prefix}." if prefix else "", {}, True, [], [], [])
    except Exception:  # noqa: BLE001 - the code of the module's author, which is called with its real tensors later
        return kept
    found = {known[id(tensor)]: name for name, tensor in given.items() if id(tensor) in known}
    del alive
    return {**kept, **found}


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Undo what a builder sets for the whole process or thread, so that it does not last."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)


class _ValuesNeededError(BaseException):
    """Raised out of a builder that makes something of random numbers or of its parameters' first values.

    No `Exception`: a builder that tries several ways would go on.
    """


#: Functions that fill with random numbers. By name: libraries put functions of their own in the place of torch's, which
#: call those where no mode looks.
_FILLS = frozenset(
    (
        "normal_", "uniform_", "erfinv_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_",
        "trunc_normal_", "orthogonal_",
    )
)  # fmt: skip
#: Other functions that draw random numbers.
_DRAWS = frozenset(
    (
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
        "bernoulli_", "multinomial", "poisson", "binomial", "random_", "exponential_", "geometric_", "log_normal_",
        "cauchy_", "dropout", "dropout_", "alpha_dropout", "feature_dropout", "native_dropout", "rrelu", "rrelu_",
        "gumbel_softmax", "sparse_",
    )
)  # fmt: skip
#: Functions of a tensor that read no element of it, or give the same elements under another shape.
_VIEWS = frozenset(
    (
        "__get__", "__set__", "__getitem__", "__len__", "__hash__", "size", "dim", "ndimension", "numel",
        "nelement", "stride", "storage_offset", "element_size", "is_contiguous", "is_floating_point", "is_complex",
        "is_signed", "is_same_size", "is_set_to", "is_shared", "is_pinned", "get_device", "untyped_storage",
        "data_ptr", "requires_grad_", "register_hook", "detach", "detach_", "view", "view_as", "t", "transpose",
        "permute", "narrow", "select", "unsqueeze", "squeeze", "expand", "expand_as", "flatten", "unflatten",
        "chunk", "split", "unbind", "as_strided", "share_memory_", "_is_view", "_has_compatible_shallow_copy_type",
        "has_names",
    )
)  # fmt: skip
_COPIES = frozenset(
    ("to", "type", "half", "float", "double", "bfloat16", "clone", "contiguous", "reshape", "cpu", "cuda", "pin_memory")
)
_WRITES = frozenset(("fill_", "zero_", "copy_", "constant_", "ones_", "zeros_", "__setitem__"))


class NoRandomInitialization(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed
    """Skips filling parameters with random numbers, seconds for a large model: all of them come from the artifact.

    Args:
        exact: Nothing but the parameters may have other values for it. Raises `_ValuesNeededError` out of a builder
            that draws other random numbers, which would be others, or reads a parameter that was not filled.
    """

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__()
        self._exact = exact
        #: Memory that was not filled, by its identity; kept, so that no other gets its place.
        self._unfilled: dict[int, Any] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        target = args[0] if args else given.get("tensor")
        if name in _FILLS:
            if self._is_parameter(target) and not (self._exact and given.get("generator") is not None):
                self._skip(target)
                return target
            self._need_values()
        elif name in _DRAWS:
            self._need_values()
        touched = [each for each in (*args, *given.values()) if self._is_touched(each)] if self._unfilled else []
        if not touched or name in _VIEWS or (name in _WRITES and len(touched) == 1 and touched[0] is target):
            return func(*args, **given)
        if name not in _COPIES:
            self._need_values()
        made = func(*args, **given)
        if name in _COPIES and isinstance(made, torch.Tensor):
            self._skip(made)
        return made

    def _need_values(self) -> None:
        if self._exact:
            raise _ValuesNeededError

    def _is_parameter(self, target: Any) -> bool:
        return isinstance(target, torch.nn.Parameter) or self._is_unfilled(target)

    def _is_touched(self, value: Any) -> bool:
        """Return whether a function's argument is, or holds, a tensor that was not filled."""
        if isinstance(value, (tuple, list)):
            return any(map(self._is_unfilled, value))
        return self._is_unfilled(value)

    def _is_unfilled(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and _memory_of(value) in self._unfilled

    def _skip(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided:
            self._unfilled[_memory_of(tensor)] = tensor.untyped_storage()


def _memory_of(tensor: torch.Tensor) -> int:
    """Return what identifies the memory of a tensor; 0 for one that has none of the usual kind."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0
