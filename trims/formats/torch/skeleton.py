"""Torch skeletons: a module pickled without its tensors, so that a client has it ready in milliseconds.

Every parameter, buffer and other tensor of the module is pickled as a number: its place in the image's layout.
`trims_client.frameworks.torch` unpickles with a table of views. Runs in a converter child, as it calls the module's
builder. A module that cannot be pickled (parametrizations such as weight_norm's, lambdas, hooks that are closures) has
no skeleton, nor has one that would not give what builder and `load_state_dict` give (`trims.formats.torch.proof`): the
image then names the builder, which sessions call. Not covered: compiled modules, extra state that is no tensor.

The program's attributes:
    versions: of every package the skeleton's classes come from, which must be the same where it is used.
    buffers: names in the image, as are those of the next lists, that a forward pass may write; clients give them
        private copy-on-write memory.
    non_persistent: buffers that are not in the state dict, carried as tensors of the image.
    constants: other tensors found in the module, carried under names of their own; private as well.
    frozen: parameters without requires_grad.
    tied: lists of names that are one parameter.
    strides: of tensors that the module has in another order than row-major, by name; only if there are some.
    class, training (always false: the module is in eval mode).
    origin, modules: folder of the manifest, and which of the modules that the pickle names lie there; only if some do.
"""

from __future__ import annotations

import fnmatch
import io
import logging
import pickle
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from trims.core.errors import ArtifactError
from trims.formats.torch.proof import NoSkeletonError, Recorder, as_no_skeleton, as_sessions, first_line, why_other
from trims.formats.torch.state import builder_program
from trims.formats.torch.tensors import dtype_of, filler
from trims.image.modules_beside import files_beside
from trims.image.plan import SourceTensor
from trims.image.program import Program
from trims.image.torch_builders import build_module, own_names
from trims.image.torch_loading import load_copies, own_loading, strides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from trims.formats.base import Artifact

KIND = "torch-skeleton"
_SHOWN_NAMES = 20
_log = logging.getLogger(__name__)


def add_skeleton(
    sources: Sequence[SourceTensor],
    artifact: Artifact,
    given: Callable[[], Mapping[str, torch.Tensor]],
    fresh: Callable[[], dict[str, torch.Tensor]],
) -> tuple[list[SourceTensor], Program]:
    """Match the artifact's tensors with the module that its builder makes, and pickle the module without them.

    Args:
        sources: The artifact's tensors.
        artifact: Artifact with the options `module`, `module_args` and `ignore`: see `trims.formats.torch.converter`.
        given: Returns the tensors by name, which are not written.
        fresh: Returns them with versions of modules, in memory that the module's code may write.

    Returns:
        The artifact's tensors followed by what only the module knows, and the skeleton. If there is none that gives
        the module of builder and `load_state_dict`, the artifact's tensors and a program that names the builder.

    Raises:
        ArtifactError: Names, shapes or dtypes do not fit.
    """
    path, options = artifact.files[0], artifact.options
    module, loaded = _build(artifact), None
    skeleton = _Skeleton(module, sources, path, options.get("ignore", []))
    try:
        if own_loading(module):
            loaded = _loaded(skeleton, _build(artifact), fresh(), options)
            skeleton.match_loaded()
        else:
            skeleton.match()
        body = skeleton.pickle()
        attributes = skeleton.attributes(body, artifact.origin)
        skeleton.prove(body, attributes, given() if loaded is not None else None, loaded)
    except NoSkeletonError as error:
        why = f"each session builds it by {options['module']} and loads its weights: {error}"
        _log.warning("%s: %s", path, why)
        return list(sources), builder_program(options, artifact.origin, why)
    return skeleton.sources, Program(KIND, attributes, body)


def skeleton_of_module(
    sources: Sequence[SourceTensor], path: Path, module: torch.nn.Module, options: Mapping[str, Any]
) -> tuple[list[SourceTensor], Program]:
    """Pickle a module that was unpickled, without its tensors: the artifact's, followed by what is in no state dict.

    Raises ArtifactError for one that cannot be pickled, unless the options name a builder, which sessions then call.
    """
    skeleton = _Skeleton(module.eval(), sources, path, options.get("ignore", []))
    skeleton.match()
    try:
        body = skeleton.pickle()
        # Without a builder the folder is not in the image's key, so it is not in the image.
        attributes = skeleton.attributes(body, "")
        skeleton.prove(body, attributes, None, module)
    except NoSkeletonError as error:
        if "module" not in options:
            raise ArtifactError(
                f"{path}: {error}; save module.state_dict() instead, and name the function that builds the module "
                "(option module)"
            ) from error
        why = f"each session builds it by {options['module']} and loads its weights: {error}"
        _log.warning("%s: %s", path, why)
        return list(sources), builder_program(options, "", why)
    return skeleton.sources, Program(KIND, attributes, body)


def skeleton_of(
    module: torch.nn.Module, sources: Sequence[SourceTensor], path: Path, names: Mapping[str, str]
) -> tuple[list[SourceTensor], Program] | str:
    """Return the tensors of a module that has its values, and its skeleton; or why it has none, with a warning.

    Args:
        sources: Tensors of the module, and others that it does not use.
        path: The artifact, for messages.
        names: What the module calls each of the sources that it uses.
    """
    skeleton = _Skeleton(module, sources, path, ["*"], names)
    skeleton.match()
    try:
        body = skeleton.pickle()
        attributes = skeleton.attributes(body, "")
        skeleton.prove(body, attributes, None, module)
    except NoSkeletonError as error:
        why = f"each session makes it: {error}"
        _log.warning("%s: %s", path, why)
        return why
    return skeleton.sources, Program(KIND, attributes, body)


def _build(artifact: Artifact) -> torch.nn.Module:
    options = artifact.options
    arguments = options.get("module_args", {})
    return build_module(options["module"], arguments, str(artifact.files[0]), artifact.origin).eval()


def _loaded(
    skeleton: _Skeleton, module: torch.nn.Module, tensors: dict[str, torch.Tensor], options: Mapping[str, Any]
) -> torch.nn.Module:
    """Return a module with its values, loaded as torch does alone. Raises ArtifactError if it does not fit."""
    try:
        load_copies(module, tensors, ignore=options.get("ignore", []))
    except MemoryError:
        raise
    except Exception as error:
        skeleton.match()  # which may know better what does not fit
        kind = type(module).__name__
        raise ArtifactError(f"{skeleton.path}: the module {kind} does not load it: {first_line(error)}") from error
    return module


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with as many underscores behind it as it takes to differ from those that are taken."""
    while name in taken:
        name += "_"
    return name


class _Skeleton:
    """One module being matched with the tensors of one artifact."""

    def __init__(
        self,
        module: torch.nn.Module,
        sources: Sequence[SourceTensor],
        path: Path,
        ignore: Sequence[str],
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.module = module
        self.sources, self._published = list(sources), len(sources)
        self.path = path
        self._ignore = tuple(ignore)
        #: Names that hooks of the module give when they load a state dict: loading may do more than rename.
        self._renamed: list[str] = []
        if names is None:
            names = own_names(module, [source.name for source in sources])
            self._renamed = [name for name, own in names.items() if name != own]
        self._numbers = {names.get(each.name, each.name): number for number, each in enumerate(sources)}
        self._taken = {each.name for each in sources}
        self._state = module.state_dict(keep_vars=True)
        self._buffers = dict(module.named_buffers(remove_duplicate=False))
        self._constants: list[str] = []
        #: Tensors whose values are the module's own, by their numbers.
        self._own: dict[int, torch.Tensor] = {}
        #: id of a tensor of the module -> its number; the tensors live as long as the module.
        self._places: dict[int, int] = {}
        self._storages = {storage for each in module.parameters() if (storage := _storage_of(each))}

    def match(self) -> None:
        """Give every tensor of the module its number."""
        self._refuse_extra_state()
        names = defaultdict(list)
        for name, tensor in self._state.items():
            names[id(tensor)].append(name)
        missing = [name for group in names.values() for name in self._tie(group)]
        extra = [name for name in self._buffers if name not in self._state]
        unexpected = [name for name in self._numbers if name not in self._state and name not in extra]
        unexpected = [name for name in unexpected if not self._is_ignored(name)]
        if missing or unexpected:
            raise ArtifactError(
                f"{self.path} does not fit its module: missing {_listed(missing)}; unexpected {_listed(unexpected)} "
                "(option ignore: takes patterns of names that may be left over)"
            )
        self._check_alike()
        for name in extra:
            self._add_non_persistent(name)

    def match_loaded(self) -> None:
        """Match a module whose own code has loaded the artifact.

        Raises NoSkeletonError where names do not fit, ArtifactError for extra state that is no tensor.
        """
        self._refuse_extra_state()
        try:
            self.match()
        except ArtifactError as error:
            raise NoSkeletonError(str(error).removeprefix(f"{self.path}").lstrip(": ")) from error

    def _refuse_extra_state(self) -> None:
        for name, value in self._state.items():
            if not isinstance(value, torch.Tensor):
                raise ArtifactError(f"{self.path}: the module has extra state {name!r}, which images do not carry")

    def _tie(self, names: Sequence[str]) -> Sequence[str]:
        """Number the tensor that has these names. Return those that are missing: all of them, or none."""
        known = [name for name in names if name in self._numbers]
        if not known:
            return names
        # Loading a state dict writes a tied tensor once for each name: the last one stays.
        self._places[id(self._state[known[-1]])] = self._numbers[known[-1]]
        owner = self.sources[self._numbers[known[-1]]]
        for name in names:
            if name not in self._numbers:
                tied = SourceTensor(self._free(name), owner.dtype, owner.shape, tied_to=owner.tied_to or owner.name)
                self._add(name, tied)
        return []

    def _is_ignored(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._ignore)

    def _check_alike(self) -> None:
        for name, tensor in self._state.items():
            source = self.sources[self._numbers[name]]
            dtype = dtype_of(tensor, name, self.path)
            if (source.dtype, source.shape) != (dtype, tuple(tensor.shape)):
                raise ArtifactError(
                    f"{self.path}: tensor {name!r} is {source.dtype}{list(source.shape)}, the module has "
                    f"{dtype}{list(tensor.shape)}; let its builder return a module of the artifact's shapes and dtypes"
                )

    def _add_non_persistent(self, name: str) -> None:
        """Add a buffer that the state dict lacks: frameworks keep the module's own value, so that one must count."""
        tensor = self._buffers[name]
        if name not in self._numbers:
            self._places[id(tensor)] = self._add_tensor(name, tensor)
            return
        source = self.sources[self._numbers[name]]
        described = SourceTensor(name, dtype_of(tensor, name, self.path), tuple(tensor.shape), fill=filler(tensor))
        self._own[self._numbers[name]] = tensor
        self.sources[self._numbers[name]] = described
        self._places[id(tensor)] = self._numbers[name]
        if (source.dtype, source.shape) != (described.dtype, described.shape) and not self._is_ignored(name):
            raise ArtifactError(f"{self.path}: {name!r} has another shape or dtype than the module's own buffer")

    def _add_tensor(self, name: str, tensor: torch.Tensor) -> int:
        dtype = dtype_of(tensor, name, self.path)
        number = self._add(name, SourceTensor(self._free(name), dtype, tuple(tensor.shape), fill=filler(tensor)))
        self._own[number] = tensor
        return number

    def _add(self, name: str, source: SourceTensor) -> int:
        self._numbers[name] = len(self.sources)
        self._taken.add(source.name)
        self.sources.append(source)
        return len(self.sources) - 1

    def _free(self, name: str) -> str:
        """Return a name for a tensor of the module's own: the module's, unless a tensor of the artifact has it."""
        return free_name(name, self._taken)

    def _in_image(self, names: Iterable[str]) -> list[str]:
        """Return the names in the image of tensors that the module calls by these, sorted."""
        return sorted(self.sources[self._numbers[name]].name for name in names)

    def number_of(self, tensor: torch.Tensor) -> int:
        """Return the number under which a tensor is pickled; one seen for the first time becomes a constant."""
        known = self._places.get(id(tensor))
        if known is not None:
            return known
        if tensor.grad_fn is not None or _storage_of(tensor) in self._storages:
            raise NoSkeletonError(
                f"the module {type(self.module).__name__} keeps a tensor of shape {list(tensor.shape)} that was "
                "computed from its parameters before they had their values"
            )
        name = f"__constant__.{len(self._constants)}"
        self._places[id(tensor)] = self._add_tensor(name, tensor)
        self._constants.append(self.sources[-1].name)
        return self._places[id(tensor)]

    def pickle(self) -> bytes:
        """Return the pickled module, its tensors replaced by numbers. Raises NoSkeletonError."""
        if self._renamed:
            raise NoSkeletonError(f"the module {type(self.module).__name__} renames tensors ({_listed(self._renamed)})")
        body = io.BytesIO()
        with as_no_skeleton(self.module):
            _Pickler(body, self).dump(self.module)
        return body.getvalue()

    def attributes(self, body: bytes, origin: str) -> dict[str, Any]:
        """Return what a client must know before it unpickles. Unpickle once here, which proves that it can be done.

        Raises NoSkeletonError if it cannot.
        """
        reader = Recorder(body, self._tensors())
        with as_no_skeleton(self.module):
            reader.load()
        kind = type(self.module)
        beside = sorted(name for name in reader.modules if files_beside(origin, name))
        strides = strides_of((self.sources[number].name, tensor) for number, tensor in self._tensors().items())
        return {
            **({"origin": origin, "modules": beside} if beside else {}),
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "training": False,
            "versions": _versions({name.partition(".")[0] for name in reader.modules}),
            "buffers": self._in_image(self._buffers),
            "non_persistent": self._in_image(name for name in self._buffers if name not in self._state),
            # No state dict has these: the module's own, which were added to the artifact's.
            "added": sorted(self.sources[number].name for number in self._own if number >= self._published),
            "constants": [*self._constants, *self._in_image(self._extra_states())],
            "frozen": self._frozen(),
            "tied": self._tied(),
            **({"strides": strides} if strides else {}),
        }

    def _extra_states(self) -> list[str]:
        """Return the names of tensors in the state dict that are no parameters and no buffers."""
        parameter = torch.nn.Parameter
        return [name for name, each in self._state.items() if name not in self._buffers and type(each) is not parameter]

    def _frozen(self) -> list[str]:
        """Return the names in the image of tensors without gradients: the module's, and what it leaves over."""
        left = [name for name, number in self._numbers.items() if name not in self._state and number not in self._own]
        return self._in_image([*left, *(name for name, each in self._state.items() if not each.requires_grad)])

    def _tensors(self) -> dict[int, torch.Tensor]:
        tensors: Iterable[torch.Tensor] = (*self._state.values(), *self._buffers.values())
        found = {self._places[id(tensor)]: tensor for tensor in tensors} | self._own
        return defaultdict(lambda: torch.empty(0), found)

    def prove(
        self,
        body: bytes,
        attributes: Mapping[str, Any],
        given: Mapping[str, torch.Tensor] | None,
        loaded: torch.nn.Module | None,
    ) -> None:
        """Raise NoSkeletonError unless a session gets from the skeleton what `load_state_dict` gives.

        Args:
            given: The artifact's tensors by name, where `loaded` has copies; None: a module that has its values
                already, or that takes each tensor as it is.
            loaded: The module with its values; None: this one, which then takes tensors without memory.
        """
        own = self._tensors() if given is None and loaded is not None else self._own
        table = as_sessions(self.sources, attributes, own, given)
        with as_no_skeleton(self.module):
            made = Recorder(body, table).load()
            if loaded is None:
                loaded = self.module
                state = {name: table[self._places[id(tensor)]] for name, tensor in self._state.items()}
                loaded.load_state_dict(state, assign=True)
            if difference := why_other(made, loaded):
                raise NoSkeletonError(f"of the module {type(self.module).__name__}, {difference}")

    def _tied(self) -> list[list[str]]:
        groups = defaultdict(list)
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            groups[id(parameter)].append(name)
        return [names for names in groups.values() if len(names) > 1]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, skeleton: _Skeleton) -> None:
        super().__init__(file, protocol=5)
        self._skeleton = skeleton

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, torch.Tensor):
            return self._skeleton.number_of(obj)
        return None


def _storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a plain tensor's memory; 0 for none."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() if plain else 0


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {"torch": str(torch.__version__)}
    for package in packages:
        version = getattr(sys.modules[package], "__version__", None)
        if package not in sys.stdlib_module_names and isinstance(version, str):
            found[package] = str(version)
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "nothing"
