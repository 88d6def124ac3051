"""Options and providers of ONNX Runtime sessions over shared weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime

from trims.core.errors import CallerError, NotSupportedError
from trims.image.external import EXTERNAL_FOLDER, NO_FOLDER, NO_PREPACKING
from trims.image.host import cpu_features

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CPU_PROVIDER = "CPUExecutionProvider"
_OWNER = "trims.model"


def packing_options(given: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Return options of a session that packs its weights."""
    wanted = onnxruntime.SessionOptions() if given is None else given
    wanted.add_session_config_entry(NO_PREPACKING, "0")
    return wanted


def level_of(optimize: str) -> onnxruntime.GraphOptimizationLevel:
    """Return the level of optimization that a manifest names."""
    levels = onnxruntime.GraphOptimizationLevel
    known = {"extended": levels.ORT_ENABLE_EXTENDED, "basic": levels.ORT_ENABLE_BASIC, "none": levels.ORT_DISABLE_ALL}
    return known.get(optimize, levels.ORT_ENABLE_ALL)


def checked_providers(providers: Sequence[Any] | None) -> list[Any]:
    """Return the providers for weights on the host. Raises NotSupportedError for those that would copy them."""
    for provider in providers or ():
        name = provider[0] if isinstance(provider, tuple) else provider
        if name != CPU_PROVIDER:
            raise NotSupportedError(
                f"{name} would copy every weight to its own memory; shared weights need {CPU_PROVIDER}"
            )
    return list(providers or [CPU_PROVIDER])


def complete_options(
    given: onnxruntime.SessionOptions | None,
    name: str,
    attributes: Mapping[str, Any],
    folder: str | None = NO_FOLDER,
) -> onnxruntime.SessionOptions:
    """Return options of a session over shared weights: the given ones, checked and completed.

    Args:
        given: Options of the caller, which are changed in place.
        folder: Folder of external data; None for that of the model's file.

    Raises CallerError for options of another session, NotSupportedError for what shared weights cannot do.
    """
    options = onnxruntime.SessionOptions() if given is None else _check_options(given, name)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if attributes["threads"] and not options.intra_op_num_threads:
        options.intra_op_num_threads = attributes["threads"]
    if _entry(options, NO_PREPACKING) is None:
        options.add_session_config_entry(NO_PREPACKING, "0" if attributes["prepack"] is True else "1")
    if folder is not None:  # else it is that of the model's file
        options.add_session_config_entry(EXTERNAL_FOLDER, folder)
    options.add_session_config_entry(_OWNER, name)
    return options


def check_host(name: str, made_for: Mapping[str, Any]) -> None:
    """Refuse a graph made for another release or vector width: it may crash or give wrong results here."""
    version, features = made_for["onnxruntime"], made_for["cpu"]
    remedy = "load the model again here, or convert it with the option `optimize: none`"
    if version is not None and version != onnxruntime.__version__:
        raise NotSupportedError(
            f"{name!r} was optimized by ONNX Runtime {version}, this process has {onnxruntime.__version__}; "
            f"install onnxruntime=={version}, or {remedy}"
        )
    here = cpu_features()
    if features is not None and tuple(features) != here:
        raise NotSupportedError(
            f"{name!r} was optimized for a processor with {_difference(features, here)}, this one has "
            f"{_difference(here, features)}; {remedy}"
        )


def _difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    return ", ".join(sorted(set(ours) - set(theirs))) or "nothing beside"


def _check_options(options: onnxruntime.SessionOptions, name: str) -> onnxruntime.SessionOptions:
    owner = _entry(options, _OWNER)
    if owner is not None:
        raise CallerError(f"these SessionOptions carry the weights of {owner!r} already; make new ones for {name!r}")
    levels = onnxruntime.GraphOptimizationLevel
    if options.graph_optimization_level not in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL):
        raise NotSupportedError(
            f"{name!r} was optimized when converted; choose the level by the manifest's option `optimize`"
        )
    if options.optimized_model_filepath:
        raise NotSupportedError(f"{name!r} cannot be saved from here: its weights lie in shared memory, not in a file")
    if _entry(options, EXTERNAL_FOLDER) is not None:
        raise NotSupportedError(f"{name!r} has no external data; leave {EXTERNAL_FOLDER} out")
    return options


def _entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:  # ONNX Runtime's answer for an entry that is not set
        return None
