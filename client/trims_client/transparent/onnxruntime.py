"""`InferenceSession` of a model's file: over weights in shared memory, optimized and packed once for all processes.

The original's constructor gets the optimized graph, and the initializers where they lie. That session answers what
inputs there are. The one that computes packs its weights, as ONNX Runtime does alone, and so takes longer to make: a
thread makes it meanwhile, and the first call that needs it waits (`_sess`, which all methods of the class go by). So
answers are those of the original, to the bit. The packed weights come from shared memory, too.
"""

from __future__ import annotations

import functools
import os
import weakref

from trims_client.transparent.file_bytes import opened, wanted_file
from trims_client.transparent.outcomes import StepAsideError, is_proven, note_aside, note_shared
from trims_client.transparent.replaced import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from trims_client.frameworks._onnxruntime_packed import Packing

_LOADER = "onnxruntime.InferenceSession"
#: Releases of ONNX Runtime that the adapter was proven with.
_PROVEN = ("1.31",)
#: Endings of files of external data, behind the model's name, as exporters write them.
_EXTERNAL = (".data", "_data")
#: Entry in the options of sessions over shared weights: see `trims_client.frameworks._onnxruntime_options`.
_OWNER = "trims.model"
_CPU = "CPUExecutionProvider"
#: Providers of ONNX Runtime's package for processors. Azure's computes nothing that is not asked of it by name.
_ON_HOST = {_CPU, "AzureExecutionProvider"}
#: Attributes of options that a session over shared weights takes as they are.
_KEPT_OPTIONS = (
    "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "execution_mode", "execution_order",
    "inter_op_num_threads", "intra_op_num_threads", "log_severity_level", "log_verbosity_level", "logid",
    "use_deterministic_compute", "use_per_session_threads",
)  # fmt: skip
_KEPT_ENTRIES = {
    "session.intra_op.allow_spinning", "session.inter_op.allow_spinning", "session.force_spinning_stop",
    "session.set_denormal_as_zero", "session.dynamic_block_base", "session.intra_op_thread_affinities",
}  # fmt: skip
#: Positional arguments of the original.
_ARGUMENTS = ("path_or_bytes", "sess_options", "providers", "provider_options")
#: Name of the attribute of a session that has what makes the one that computes.
_PACKING = "_trims_packing"


def adapt(onnxruntime: ModuleType) -> Callable[[], None]:
    """Put the adapter in the place of `InferenceSession.__init__`. Return what puts the original back."""
    sessions = onnxruntime.InferenceSession
    if not is_proven(_LOADER, onnxruntime, _PROVEN):
        return lambda: None
    if getattr(getattr(sessions, "__getattr__", None), "__module__", __name__) != __name__:
        note_aside(_LOADER, "another library has patched it")
        return lambda: None
    original, seen = sessions.__init__, _SeenOptions(onnxruntime.SessionOptions)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, given = dict(vars(self)), {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        if seen.are_ours(given.get("sess_options")):
            return original(self, *args, **kwargs)
        try:
            _check(onnxruntime, self, given, len(args))
            return _begin(onnxruntime, original, self, given, seen.entries(given.get("sess_options")))
        except StepAsideError as error:
            aside = error
        # Outside of the block: an error of the original has no context of ours.
        vars(self).clear()
        vars(self).update(before)
        return aside.load(_LOADER, lambda: original(self, *args, **kwargs))

    def absent(self: Any, name: str) -> Any:
        if name == "_sess" and _PACKING in vars(self):
            self._sess = made = _finished(original, self)
            return made
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    sessions.__getattr__ = absent
    undo_init = replace([(sessions, "__init__")], original, init, method=True)

    def undo() -> None:  # sessions that were made need `__getattr__`
        undo_init()
        seen.undo()

    return undo


class _SeenOptions:
    """Session options that were made while this is in place, and what was done to them that nothing else shows."""

    def __init__(self, options: Any) -> None:
        self._type = options
        self._entries: weakref.WeakKeyDictionary[Any, dict[str, str] | None] = weakref.WeakKeyDictionary()
        self._undo = [
            replace([(options, name)], getattr(options, name), self._wrapped(name, getattr(options, name)), method=True)
            for name in vars(options)
            if callable(getattr(options, name)) and (name == "__init__" or name.startswith(("add", "register", "set")))
        ]

    def _wrapped(self, name: str, original: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(options: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(options, *args, **kwargs)
            if name == "__init__":
                self._entries[options] = {}
                return made
            known = self._entries.get(options)
            if known is not None and name == "add_session_config_entry" and len(args) == 2:
                known[args[0]] = args[1]
            else:
                self._entries[options] = None
            return made

        return call

    def entries(self, options: Any) -> dict[str, str]:
        """Return the entries of options. Raises StepAsideError if they say more than a session here can take over."""
        if options is None:
            return {}
        entries = self._entries.get(options)
        if entries is None or not entries.keys() <= _KEPT_ENTRIES:
            raise StepAsideError("options that the adapter does not know")
        return entries

    def are_ours(self, options: Any) -> bool:
        """Return whether options are of a session over shared weights already."""
        return isinstance(options, self._type) and _OWNER in (self._entries.get(options) or ())

    def undo(self) -> None:
        """Put the originals back."""
        for each in self._undo:
            each()


def _check(onnxruntime: ModuleType, session: Any, given: dict[str, Any], positional: int) -> None:
    """Raise StepAsideError for what only the original can do."""
    path, providers, options = given.get("path_or_bytes"), given.get("providers"), given.get("sess_options")
    if not isinstance(path, (str, os.PathLike)) or str(path).endswith(".ort"):
        raise StepAsideError("not a path of an ONNX model")
    if positional > len(_ARGUMENTS) or given.get("provider_options") or given.keys() - set(_ARGUMENTS):
        raise StepAsideError("an argument that the adapter does not know")
    if not (list(providers) == [_CPU] if providers else set(onnxruntime.get_available_providers()) <= _ON_HOST):
        raise StepAsideError("a provider other than the processor's")
    if type(session).__getattr__ is not onnxruntime.InferenceSession.__getattr__:
        raise StepAsideError("a class with attributes of its own")
    if os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1":
        raise StepAsideError("options that lie in the model")
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if options is not None and type(options) is not onnxruntime.SessionOptions:
        raise StepAsideError("options that the adapter does not know")
    if options is not None and (
        options.enable_profiling or options.optimized_model_filepath or options.graph_optimization_level != level
    ):
        raise StepAsideError("options that need the model's own graph")


def _begin(
    onnxruntime: ModuleType, original: Any, session: Any, given: dict[str, Any], entries: dict[str, str]
) -> None:
    """Make a session over the shared weights, as the original's constructor would, and begin the one that computes."""
    stated = given.get("sess_options")

    def options() -> Any:
        made = onnxruntime.SessionOptions()
        for name in _KEPT_OPTIONS if stated is not None else ():
            setattr(made, name, getattr(stated, name))
        for key, value in entries.items():
            made.add_session_config_entry(key, value)
        return made

    wanted = wanted_file(given["path_or_bytes"], _EXTERNAL)
    with opened(wanted, f"onnx,prepack=shared,onnxruntime=={onnxruntime.__version__}") as weights:
        from trims_client.frameworks.onnxruntime import parts

        try:
            made = parts(weights, options)
            original(session, made.body, made.options, [_CPU], enable_fallback=0)
        except Exception as error:
            raise StepAsideError(getattr(error, "code", type(error).__name__)) from error
        _settle(session, given, options)
        session._trims_kept = made.kept
        if made.packing is not None:
            session._trims_packing = made.packing
            del session._sess
            made.packing.begin()
    note_shared(_LOADER, wanted.nbytes)


def _settle(session: Any, given: dict[str, Any], options: Callable[[], Any]) -> None:
    """Have the session say of itself what one of the original's would: `set_providers` reads the file again."""
    session._model_path, session._model_bytes = os.fspath(given["path_or_bytes"]), None
    session._sess_options, session._sess_options_initial = options(), given.get("sess_options")
    session._enable_fallback = True


def _finished(original: Any, session: Any) -> Any:
    """Return the session that computes: over packed weights in shared memory, or else the original's own."""
    packing: Packing = vars(session)[_PACKING]
    packing.wait()
    if packing.session is not None:
        return packing.session._sess
    note_aside(_LOADER, "its packed weights could not be used")
    made = object.__new__(type(session))
    original(made, session._model_path, session._sess_options_initial, [_CPU])
    return made._sess
