"""Choice of a checkpoint's values that are the weights, and how a session builds the module that they belong to.

Used with torch and without it, so that a conversion and a look at the file agree. Weights are one dict of tensors: the
checkpoint itself, what lies under a usual name in it, or what the option `state_key` names. A checkpoint that holds
tensors elsewhere too is refused, because a model must not be registered in part; only the state of its training is left
out (optimizers, schedulers, random numbers, a metric).
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Any

from trims.core.errors import ArtifactError
from trims.image.program import TORCH_BUILDER, WHY, Program
from trims.image.state_versions import STATE_VERSIONS, encode_versions

Key = str | int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from trims.formats.base import Artifact

#: Part of the key of an image whose manifest names a module, in whatever format its weights are: raised when the same
#: artifact would give another skeleton.
SKELETON_VERSION = 2
_WRAPPERS = ("state_dict", "model_state_dict", "model")
#: Names of training state, which may hold tensors and is no part of a model: usual ones, and such as say so in part.
_TRAINING = re.compile(
    r"\A(((lr|g|d)_)?(optim(izer)?|scheduler)s?(_(g|d|states?|state_dicts?))?|callbacks|loops|(\w+_)?rng_states?(_all)?)\Z",
    re.IGNORECASE,
)
#: Name, in a state dict, of a module's own state.
_EXTRA_STATE = "_extra_state"
_PERHAPS_TRAINING = re.compile(r"optim|scheduler|rng|random_state", re.IGNORECASE)
#: Names under which a tensor without dimensions is a number about the training.
_METRIC = re.compile(r"(acc|accuracy|best|epochs?|iter|iterations?|loss|lr|metric|score|steps?)\d*\Z", re.IGNORECASE)
#: Limits of an error: keys that it lists, letters of each, and containers searched for state dicts to propose.
_SHOWN, _SHOWN_LETTERS, _SEARCHED = 20, 80, 1000


class StateDict(dict[Any, Any]):
    """State dict, with the versions of its modules as torch keeps them; None if it has none."""

    _metadata: Any = None

    def join(self, other: StateDict) -> None:
        """Add the tensors and the versions of another shard."""
        self.update(other)
        if other._metadata:
            self._metadata = {**(self._metadata or {}), **other._metadata}


def state_dict(
    loaded: Any,
    path: Path,
    is_tensor: Callable[[Any], bool],
    key: Sequence[Key] | None = None,
    is_module: Callable[[Any], bool] = lambda _: False,
) -> tuple[StateDict, list[str]]:
    """Return the tensors by name, with the versions of their modules, and the names of what was left out.

    Args:
        loaded: The checkpoint's value: a state dict, or a dict with one under a usual name or under `key`.
        is_tensor: Whether a value is a tensor.
        key: What `key_of` returned: where in the value the state dict lies; None to find it.
        is_module: Whether a value is a whole module, which holds tensors, too.

    Raises:
        ArtifactError: There is no state dict, or what would be left out holds tensors.
    """
    found, ignored, beside = _chosen(loaded, path, is_tensor, key)
    if not isinstance(found, dict) or (found and not _has_tensors(found, is_tensor)):
        where = f"neither a state dict nor a dict with one under {', '.join(_WRAPPERS)}" if key is None else "not one"
        what = "" if key is None else f"what state_key {written(key)} names is "
        raise ArtifactError(f"{path}: {what}{where}, but a {type(found).__name__}{_proposal(loaded, is_tensor)}")
    tensors = StateDict((name, value) for name, value in found.items() if is_tensor(value))
    tensors._metadata = getattr(found, "_metadata", None)
    if strange := [name for name in tensors if not isinstance(name, str)]:
        raise ArtifactError(f"{path}: a tensor is named {strange[0]!r}, which is no string")
    left = {name: value for name, value in found.items() if name not in tensors}
    inside = {name: value for name, value in left.items() if found is not loaded or str(name).endswith(_EXTRA_STATE)}
    if inside := _with_weights(inside.items(), is_tensor, is_module):
        raise ArtifactError(
            f"{path}: its state dict holds tensors inside other values, which would be left out: "
            f"{_listed(inside, is_tensor)}; save them as tensors of their own, by names"
        )
    if hidden := _with_weights([*beside.items(), *left.items()], is_tensor, is_module):
        raise ArtifactError(
            f"{path}: tensors beside its state dict would be left out: {_listed(hidden, is_tensor)}"
            f"{_proposal(loaded, is_tensor)}"
        )
    return tensors, ignored + [str(name) for name in left]


def key_of(options: Mapping[str, Any], path: Path) -> tuple[Key, ...] | None:
    """Return the option `state_key` as a tuple; None if it is not given. Raises ArtifactError for another type."""
    given = options.get("state_key")
    if given is None:
        return None
    keys = [given] if isinstance(given, str) else given
    kinds = isinstance(keys, list) and keys and all(type(each) in (str, int) and each != "" for each in keys)
    if not kinds:
        raise ArtifactError(f"{path}: state_key must be a key ('net', 'ema.model') or a list, not {given!r:.80}")
    return tuple(keys)


def written(key: Sequence[Key]) -> str:
    """Return a state key as a manifest has it: dotted where that is the same, otherwise a list."""
    plain = all(isinstance(each, str) and each and "." not in each for each in key)
    return ".".join(map(str, key)) if plain or len(key) == 1 else str(list(key))


def select(loaded: Any, path: Path, key: Sequence[Key]) -> tuple[Any, list[str]]:
    """Return the value under a key, and the names beside it on the way. Raises ArtifactError if there is none.

    A single text is a key of the outermost dict if that has it, otherwise keys with dots between them.
    """
    alone = key[0] if len(key) == 1 else None
    dotted = isinstance(alone, str) and not (isinstance(loaded, dict) and alone in loaded)
    steps: Iterable[Key] = str(alone).split(".") if dotted else key
    value, ignored = loaded, []
    for step in steps:
        found = _step(value, step)
        if found is None:
            there = _names(value) if isinstance(value, dict) else f"a {type(value).__name__}"
            raise ArtifactError(f"{path}: it has no {step!r} of state_key {written(key)}; there is {there}")
        if isinstance(value, dict):
            ignored += [str(name) for name in value if name != found[0]]
        value = found[1]
    return value, ignored


def places_of(loaded: Any, is_tensor: Callable[[Any], bool]) -> list[tuple[Key, ...]]:
    """Return keys of dicts that have tensors, usual names first, then the outermost; a large checkpoint is cut off."""
    if not isinstance(loaded, (dict, list, tuple)):
        return []
    waiting: deque[tuple[tuple[Key, ...], Any]] = deque([((), loaded)])
    seen: set[int] = set()
    found: list[tuple[Key, ...]] = []
    while waiting and len(seen) < _SEARCHED and len(found) < _SHOWN:
        key, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if key and _has_tensors(value, is_tensor):
            found.append(key)
        pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        waiting.extend(
            ((*key, name), each)
            for name, each in pairs[:_SEARCHED]
            if isinstance(each, (dict, list, tuple)) and not is_tensor(each) and isinstance(name, (str, int))
        )
    return sorted(found, key=lambda key: key[-1] not in _WRAPPERS)


def metadata_of(ignored: Sequence[str], tensors: StateDict, path: Path) -> dict[str, str]:
    """Return the image's metadata: names of values that were left out, and versions of modules.

    Raises ArtifactError for versions that an image cannot carry.
    """
    try:
        versions = encode_versions(tensors._metadata)
    except ValueError as error:
        raise ArtifactError(
            f"{path}: its state dict has `_metadata` that images do not carry ({error!s:.200}); save it with the "
            "versions of its modules only, or without (state._metadata.clear())"
        ) from error
    found = {"ignored": ", ".join(ignored), STATE_VERSIONS: versions}
    return {key: text for key, text in found.items() if text}


def builder_of(artifact: Artifact) -> Program | None:
    """Return the program that an artifact in place has for a skeleton: its module's builder; None without one."""
    return builder_program(artifact.options, artifact.origin) if "module" in artifact.options else None


def builder_program(options: Mapping[str, Any], origin: str, why: str = "") -> Program:
    """Return the program that names the function that builds the module, for sessions to call; `why` says why they do.

    None is given for an artifact in place, whose module was not made yet.
    """
    named = {name: options[name] for name in ("module", "module_args", "ignore") if name in options}
    return Program(TORCH_BUILDER, {**named, "origin": origin, **({WHY: why} if why else {})})


def _chosen(
    loaded: Any, path: Path, is_tensor: Callable[[Any], bool], key: Sequence[Key] | None
) -> tuple[Any, list[str], dict[Any, Any]]:
    """Return the state dict, the names of the other entries, and those entries that must contain no tensors."""
    if key is not None:
        return *select(loaded, path, key), {}
    for wrapper in _WRAPPERS if isinstance(loaded, dict) else ():
        if _has_tensors(loaded.get(wrapper), is_tensor):
            beside = {name: value for name, value in loaded.items() if name != wrapper}
            return loaded[wrapper], [str(name) for name in beside], beside
    return loaded, [], {}


def _has_tensors(value: Any, is_tensor: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and any(map(is_tensor, value.values()))


def _step(value: Any, step: Key) -> tuple[Key, Any] | None:
    """Return a value inside another and the key under which it lies; a number may be written as text."""
    number = int(step) if isinstance(step, int) or (step.isdecimal() and len(step) < 10) else None
    if isinstance(value, dict):
        return next(((key, value[key]) for key in (step, number) if key is not None and key in value), None)
    if isinstance(value, (list, tuple)) and number is not None and 0 <= number < len(value):
        return number, value[number]
    return None


def _with_weights(
    values: Iterable[tuple[Any, Any]], is_tensor: Callable[[Any], bool], is_module: Callable[[Any], bool]
) -> dict[Any, Any]:
    """Return those that hold tensors and are no state of a training.

    Each container is searched once for all of them, so that many names of one large value cost no more than one.
    """
    seen: set[int] = set()
    found = {}

    def is_weight(value: Any) -> bool:
        return is_tensor(value) or is_module(value)

    for name, value in values:
        metric = is_tensor(value) and getattr(value, "shape", None) == () and _METRIC.search(str(name))
        if not metric and not _is_training(str(name), value, is_tensor) and _holds(value, is_weight, seen):
            found[name] = value
    return found


def _is_training(name: str, value: Any, is_tensor: Callable[[Any], bool]) -> bool:
    """Return whether a value is state of a training. A dict of tensors such as `optimizer_head` is none."""
    if _TRAINING.match(name):
        return True
    return _PERHAPS_TRAINING.search(name) is not None and not (is_tensor(value) or _has_tensors(value, is_tensor))


def _holds(value: Any, is_weight: Callable[[Any], bool], seen: set[int]) -> bool:
    left = [value]
    while left:
        each = left.pop()
        if is_weight(each):
            return True
        if isinstance(each, (dict, list, tuple, set, frozenset)) and id(each) not in seen:
            seen.add(id(each))
            left.extend(each.values() if isinstance(each, dict) else each)
    return False


def _proposal(loaded: Any, is_tensor: Callable[[Any], bool]) -> str:
    """Return the keys of a checkpoint, and which of them to name; empty for what has none."""
    if not isinstance(loaded, (dict, list, tuple)) or not loaded:
        return ""
    keys = f"; it holds {_listed(loaded, is_tensor)}" if isinstance(loaded, dict) else ""
    places = [text for key in places_of(loaded, is_tensor) if len(text := written(key)) <= _SHOWN_LETTERS]
    if not places:
        return keys
    return (
        f"{keys}; state dicts lie under {', '.join(places)}: name the one to take "
        f"(trims add --state-key {places[0]}; in a manifest options: {{state_key: {places[0]}}})"
    )


def _listed(values: Mapping[Any, Any], is_tensor: Callable[[Any], bool]) -> str:
    shown = [f"{name!r:.{_SHOWN_LETTERS}} ({_kind(value, is_tensor)})" for name, value in list(values.items())[:_SHOWN]]
    return ", ".join(shown) + _more(values)


def _names(values: Mapping[Any, Any]) -> str:
    return ", ".join(f"{name!r:.{_SHOWN_LETTERS}}" for name in list(values)[:_SHOWN]) + _more(values)


def _more(values: Mapping[Any, Any]) -> str:
    return f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""


def _kind(value: Any, is_tensor: Callable[[Any], bool]) -> str:
    if is_tensor(value):
        return "a tensor"
    if _has_tensors(value, is_tensor):
        return f"a dict of {sum(map(is_tensor, value.values()))} tensors"
    return f"a {type(value).__name__}"
